"""Build wheel and sdist, install each into an empty environment, and see it work from there: `make release`.

    python release/check.py --torch torch==2.13.0

The archives stay in `dist`. The environment is made in a temporary folder; after the wheel it is emptied, down to
torch, for the sdist. Packages come from where pip is configured to find them, and nothing else is fetched.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
EXTRAS = "cli,view,zoo"
START = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(description="build, install and try wheel and sdist")
    parser.add_argument("--torch", required=True, help="what to install first: an open range may bring all of CUDA")
    torch: str = parser.parse_args().torch
    shutil.rmtree(DIST, ignore_errors=True)
    _say("build")
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)  # the wheel is made from the sdist
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _say("tests of the sdist")
        _collect(sdist, folder)
        _say(f"an empty environment with {torch}")
        _run(sys.executable, "-m", "venv", folder / "env")
        python = folder / "env" / "bin" / "python"
        _pip(python, "install", torch)
        before = _installed(python)
        for archive in (wheel, sdist):
            _say(archive.name)
            _try(archive, python, version, folder)
            _pip(python, "uninstall", "--yes", *sorted(_installed(python) - before))
    _say(f"done: {wheel.relative_to(ROOT)}, {sdist.relative_to(ROOT)}")
    return 0


def _try(archive: Path, python: Path, version: str, folder: Path) -> None:
    """Install an archive alone and look at it, then with extras and through its command."""
    smoke, command = ROOT / "release" / "smoke.py", python.parent / "backplay"
    _pip(python, "install", archive)
    _run(python, "-I", smoke, "plain", version, cwd=folder)
    assert _run(command, "--version", cwd=folder, quiet=True).strip() == f"backplay {version}"
    _pip(python, "install", f"{archive}[{EXTRAS}]")
    _run(python, "-I", smoke, "extras", cwd=folder)
    page = folder / archive.name / "report.html"
    _run(command, "demo", "--out", page.parent, cwd=folder)
    assert page.stat().st_size > 100_000, f"{page} has {page.stat().st_size} bytes"


def _collect(sdist: Path, folder: Path) -> None:
    """The sdist brings all tests: as many as this clone are collected from it, with its own source."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    counts = [_collected(place) for place in (ROOT, unpacked)]
    assert counts[0] == counts[1] > 0, f"{counts[0]} tests here, {counts[1]} in the sdist"
    print(f"tests: {counts[1]} collected from the sdist, as many as here")


def _collected(place: Path) -> int:
    order = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    shown = _run(*order, cwd=place, quiet=True, source=place / "src")
    return sum("::" in line for line in shown.splitlines())


def _installed(python: Path) -> set[str]:
    shown = _run(python, "-m", "pip", "list", "--format=freeze", quiet=True)
    return {line.partition("==")[0] for line in shown.splitlines()}


def _pip(python: Path, *words: object) -> None:
    _run(python, "-m", "pip", *words[:1], "-qq", "--disable-pip-version-check", *words[1:])


def _run(*order: object, cwd: Path = ROOT, quiet: bool = False, source: Path | None = None) -> str:
    """Run a program without this clone on its path, unless `source` puts one there; a failure ends everything."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    done = subprocess.run(
        [str(word) for word in order], cwd=cwd, env=environment, text=True, check=False, stdout=subprocess.PIPE
    )
    if done.returncode or not quiet:
        print("\n".join(done.stdout.splitlines()[-60:]), flush=True)
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, order))} ended with {done.returncode}")
    return done.stdout


def _say(words: str) -> None:
    print(f"release: {words} ({time.monotonic() - START:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
