"""How it scales: tables and growth plots of the pages, from benchmarks/results/results.json.

    python docs/make_scaling.py

writes docs/_generated/growth.md and the plots beside it, as every build of the pages does. The figures themselves are
measured by `make bench`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "results.json"
FOLDER = Path(__file__).parent / "_generated"
sys.path.insert(0, str(ROOT / "benchmarks"))

import plots  # noqa: E402
import tables  # noqa: E402

NAMED = {"batch": "The batch", "side": "The image", "layers": "The depth", "tokens": "The text"}


def span(values: list[float]) -> str:
    """The least and the largest, rounded as tables are."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def page(machine: dict[str, Any], cases: list[dict[str, Any]]) -> Iterator[str]:
    """The measured part of the page, in Markdown."""
    revisions = ", ".join(sorted({str(c["revision"]) for c in cases}))
    yield f"Measured on {machine['processor']}, {machine['cores']} cores, {machine['threads']} threads, "
    yield f"torch {machine['torch']}, at revision {revisions}. Networks have random weights, those of the zoo apart.\n"
    chosen = {name: [c for c in cases if c["section"] == name] for name in tables.TITLES}
    yield from _growth([c for c in chosen["growth"] if all(r["seconds"] for r in c["rows"])])
    for name, title, words in (
        ("games", "Calls beside one gradient", "Seconds of one gradient, and all else as multiples of it."),
        ("memory", "Memory", ""),
        ("capture", "Capture", "A network is captured once for each input shape."),
    ):
        if chosen[name]:
            yield f"## {title}\n"
            if words:
                yield f"{words}\n"
            yield from tables._SECTIONS[name](chosen[name])


def _growth(cases: list[dict[str, Any]]) -> Iterator[str]:
    for axis in dict.fromkeys(c["axis"] for c in cases):
        grown = sorted((c for c in cases if c["axis"] == axis), key=lambda c: c[axis])
        names = [r["what"] for r in grown[0]["rows"] if r["what"] != "gradient"]
        yield f"## {NAMED.get(axis, axis)}\n"
        first, last = grown[0][axis], grown[-1][axis]
        said = [f"{what} {span([_ratio(c, what) for c in grown])}" for what in names]
        yield f"{grown[0]['network']}, {plots.WORDS.get(axis, axis)} from {first} to {last}, times the gradient: "
        yield f"{', '.join(said)}.\n"
        yield f"![Seconds and ratios by {plots.WORDS.get(axis, axis)}](growth-{axis}.png)\n"
        yield from tables._growth(grown)


def _ratio(case: dict[str, Any], what: str) -> float:
    return next(r["ratio"] for r in case["rows"] if r["what"] == what)


def write(folder: Path = FOLDER) -> None:
    """Tables and plots; both are made again only where the results are newer."""
    file = folder / "growth.md"
    made = [RESULTS, Path(__file__), Path(plots.__file__), Path(tables.__file__)]
    if file.is_file() and file.stat().st_mtime > max(path.stat().st_mtime for path in made):
        return
    held = json.loads(RESULTS.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    plots.draw(folder, {c["key"]: c for c in held["cases"]})
    file.write_text("\n".join(page(held["machine"], held["cases"])) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
