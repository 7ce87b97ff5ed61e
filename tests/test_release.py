"""What is shipped: the files of wheel and sdist, and what their metadata asks for. `make release` installs them."""

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import backplay as bp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "backplay"
NAMES = "vgg", "resnet", "vit", "text"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist, and the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    order = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    """The files of the wheel: their bytes by their names."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def files(folder):
    """Everything in a folder but what was generated there, by the path from the clone's root."""
    found = [p.relative_to(ROOT) for p in folder.rglob("*") if p.is_file()]
    return {p.as_posix() for p in found if not {"__pycache__", "_generated"} & set(p.parts)}


def test_the_wheel_is_the_package(wheel):
    """Every file of it and no other: types, weights, and no tests."""
    shipped = {name for name in wheel if ".dist-info/" not in name}
    assert shipped == {path.removeprefix("src/") for path in files(PACKAGE)}
    assert "backplay/py.typed" in shipped
    weights = {f"backplay/zoo/trained/{name}{kind}.safetensors" for name in NAMES for kind in ("", "-spurious")}
    assert {name for name in shipped if name.endswith(".safetensors")} == weights
    assert all(wheel[name] == (ROOT / "src" / name).read_bytes() for name in weights)
    assert not [name for name in wheel if "test" in Path(name).name]


def test_what_the_wheel_says(wheel):
    """Version, dependencies, the command and the licence."""
    folder = f"backplay-{bp.__version__}.dist-info"
    said = email.message_from_bytes(wheel[f"{folder}/METADATA"])
    assert said["Version"] == bp.__version__ and said["Requires-Python"] == ">=3.11"
    asked = [r for r in said.get_all("Requires-Dist") if "extra ==" not in r]
    assert sorted(re.sub(r"[^\w.-].*", "", r) for r in asked) == ["numpy", "torch"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(said.get_all("Provides-Extra")) == project["optional-dependencies"].keys()
    assert said.get_all("Project-URL") == [f"{name}, {url}" for name, url in project["urls"].items()]
    assert b"backplay = backplay.cli:main" in wheel[f"{folder}/entry_points.txt"]
    assert wheel[f"{folder}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_is_the_clone(built):
    """With tests, pages and what they read, so that everything can be done from it."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        shipped = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    for folder in ("src", "tests", "benchmarks", "configs", "docs", "release"):
        assert files(ROOT / folder) <= shipped, files(ROOT / folder) - shipped
    for name in ("pyproject.toml", "Makefile", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", ".ci/run"):
        assert name in shipped
    assert not [name for name in shipped if {"__pycache__", "_generated"} & set(Path(name).parts)]
    assert not [name for name in shipped if name.startswith((".venv", "out/", "dist/"))]
