"""What the README shows: its picture, and the two tables that are taken from measurements.

    python docs/make_readme.py             # the tables, from benchmarks/results
    python docs/make_readme.py --picture   # and docs/images/readme.png, from networks and pictures of the zoo

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; a test holds it against the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "readme.png"
RESULTS = ROOT / "benchmarks" / "results"

NETWORKS = "VGG-16", "ResNet-50", "ViT-B/16"
# rows of the table: section of the results, what was measured, and how the README calls it
SPEEDS = (
    ("games", "Stopping map", "Stopping Game"),
    ("games", "Routing anchor", "Routing Game, τ = 1 (αβ-LRP)"),
    ("games", "τ = 0.5", "Routing Game, τ = ½"),
    ("peers", "zennit AlphaBeta(2, 1)", "zennit 0.5.1, AlphaBeta(2, 1)"),
    ("peers", "zennit Epsilon", "zennit 0.5.1, Epsilon"),
    ("peers", "captum LRP", "captum 0.9.0, LRP"),
    ("peers", "captum DeepLift", "captum 0.9.0, DeepLift"),
)
STAR = "\\*"  # Markdown takes a bare one for the beginning of something
PICTURES = {"n": 2, "start": 1}  # a ring and a triangle


def main() -> int:
    parser = argparse.ArgumentParser(description="the README's tables, and its picture")
    parser.add_argument("--picture", action="store_true", help="draw the picture too")
    if parser.parse_args().picture:
        draw()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def written(page: str) -> str:
    """The page with its tables as the results are now."""
    for name, table in {"peers": peers(), "speed": speed()}.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = block.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
        assert count == 1, f"the README has {count} blocks called {name}"
    return page


def peers() -> str:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from peers_table import read, table
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return table(read())


def speed() -> str:
    """How many gradients of the same network a map costs, at batch 1; what does not run is a dash."""
    cases = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))["cases"]
    lines = [f"| one map, in gradients | {' | '.join(NETWORKS)} |", f"|{'---|' * (len(NETWORKS) + 1)}"]
    for section, what, called in SPEEDS:
        cells = [_ratio(cases, section, network, what) for network in NETWORKS]
        lines.append(f"| {called} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_notes(cases)])


def _notes(cases: list[dict[str, Any]]) -> list[str]:
    """What is said of figures with a star."""
    rows = [_row(cases, section, network, what) for section, what, _ in SPEEDS for network in NETWORKS]
    said = [row["why"] for row in rows if row and row["why"] and row["ratio"] is not None]
    return [f"{STAR} {why}" for why in dict.fromkeys(said)]


def _ratio(cases: list[dict[str, Any]], section: str, network: str, what: str) -> str:
    """Beside the gradient of the same run, to one digit behind the point, with a star where something is said of it."""
    row = _row(cases, section, network, what)
    if row is None or row["ratio"] is None:
        return "–"
    return f"{row['ratio']:.1f}{STAR if row['why'] else ''}"


def _row(cases: list[dict[str, Any]], section: str, network: str, what: str) -> dict[str, Any] | None:
    """What was measured at batch 1."""
    rows = [
        row
        for case in cases
        if (case["section"], case["network"], case.get("batch")) == (section, network, 1)
        for row in case["rows"]
    ]
    return next((row for row in rows if row["what"] == what), None)


def draw() -> None:
    """Two networks that say the same of a picture: one learned from objects, one from a tile that gave them away."""
    from PIL import Image

    import backplay as bp
    from backplay import zoo

    batch = zoo.images(**PICTURES, spurious=True)
    plays = [
        bp.RoutingGame(zoo.load("resnet", spurious=spurious)).play(batch.x, batch.target) for spurious in (False, True)
    ]
    assert all((play.network.model(batch.x).argmax(1) == batch.target).all() for play in plays)
    maps = {
        "learned from objects": plays[0],
        "learned from the tile": plays[1],
        "where their walks differ": bp.hellinger(*plays).map(),
    }
    figure = bp.view.grid(batch.x, maps, labels=batch.target, model=plays[0].network, width=8.0)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=120)
    Image.open(PICTURE).convert("RGB").quantize(256).save(PICTURE, optimize=True)  # a third of the size


if __name__ == "__main__":
    sys.exit(main())
