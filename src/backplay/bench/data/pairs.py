"""Any folder of images and masks: `images/`, `masks/` with the same names, and `labels.csv`.

`labels.csv` has the columns `image` (a file name with or without its ending) and `target` (the class that is
explained), and may have `split` (`validation` or `test`). Without it the images are shuffled with seed 42 and a sixth
of them is for validation. In a mask, 0 is the background and everything else the object.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backplay.bench.data.entries import IMAGES, SPLITS, DataError, Entry, Labels, folder, in_turn

WHAT = "a folder of images and masks (images/, masks/, labels.csv)"
SEED, SHARE = 42, 1 / 6


def entries(root: Path) -> dict[str, list[Entry]]:
    """Both parts."""
    images, masks = folder(root, "images", what=WHAT), folder(root, "masks", what=WHAT)
    rows = _labels(root / "labels.csv")
    made = [(_entry(row, images, masks, root / "labels.csv"), row.get("split")) for row in rows]
    if made and made[0][1] is not None:
        return {split: in_turn(entry for entry, part in made if part == split) for split in SPLITS}
    shuffled = sorted((entry for entry, _ in made), key=lambda e: e.name)
    random.Random(SEED).shuffle(shuffled)
    count = round(SHARE * len(shuffled))
    return {"validation": in_turn(shuffled[:count]), "test": in_turn(shuffled[count:])}


def _labels(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; {WHAT} has it, with the columns image, target and perhaps split.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}.") from error
    if not rows or not {"image", "target"} <= set(rows[0]):
        found = ", ".join(rows[0]) if rows else "no rows"
        raise DataError(f"{path} needs the columns image and target; found {found}.")
    return rows


def _entry(row: dict[str, str], images: Path, masks: Path, labels: Path) -> Entry:
    stem = Path(row["image"]).stem if Path(row["image"]).suffix.lower() in IMAGES else row["image"]
    if not (row["target"] or "").strip().isdigit():
        raise DataError(f"{labels} gives {row['image']} the target {row['target']!r}; expected a class number.")
    if row.get("split") is not None and row["split"] not in SPLITS:
        raise DataError(f"{labels} puts {row['image']} into {row['split']!r}; expected {' or '.join(SPLITS)}.")
    return Entry(stem, _named(images, stem), _named(masks, stem), int(row["target"]), _read)


def _named(where: Path, stem: str) -> Path:
    found = [where / f"{stem}{ending}" for ending in IMAGES if (where / f"{stem}{ending}").is_file()]
    if not found:
        raise DataError(
            f"{where} holds no picture named {stem}; expected {stem}.png or another of {', '.join(IMAGES)}."
        )
    return found[0]


def _read(labels: Labels) -> tuple[NDArray[np.bool_], None]:
    return (labels.reshape(*labels.shape[:2], -1)[..., :3] != 0).any(-1), None
