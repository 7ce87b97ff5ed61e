"""Lay the photographs of the assets out as Oxford-IIIT Pet is published: `python results/real/layout.py out/pets`.

The assets hold four photographs of each of the 37 breeds, all from the published test split. Here the first of a breed,
by name, goes to `annotations/trainval.txt`, which the benchmark selects on, and the other three to `test.txt`: 37 and
111. Images and trimaps are links.
"""

import csv
import os
import sys
from pathlib import Path


def lay_out(assets: Path, root: Path) -> None:
    """`root` gets `images/`, `annotations/trimaps/` and the two lists, which are written anew."""
    with (assets / "list.csv").open() as listed:
        rows = sorted(csv.DictReader(listed), key=lambda row: (int(row["class_id"]), row["image"]))
    parts: dict[str, list[str]] = {"trainval": [], "test": []}
    seen: set[str] = set()
    for row in rows:
        name, number = row["image"], row["class_id"]
        species = 1 if name[0].isupper() else 2  # the data set writes cats with a capital letter
        link(assets / "original" / f"{name}.jpg", root / "images" / f"{name}.jpg")
        link(assets / "trimaps" / f"{name}.png", root / "annotations" / "trimaps" / f"{name}.png")
        parts["test" if number in seen else "trainval"].append(f"{name} {number} {species} {number}")
        seen.add(number)
    for part, lines in parts.items():
        (root / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")


def link(source: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(source)


if __name__ == "__main__":
    lay_out(Path(os.environ["BACKPLAY_ASSETS"]).resolve() / "pets", Path(sys.argv[1]))
