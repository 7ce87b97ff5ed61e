"""Oxford-IIIT Pet: `images/NAME.jpg`, `annotations/trimaps/NAME.png`, `annotations/trainval.txt` and `test.txt`.

In a trimap 1 is the animal, 2 the background, 3 the border, which no metric looks at. Classes are the 37 breeds, or
the ImageNet classes of the breeds that have one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backplay.bench.data.entries import DataError, Entry, Labels, existing, folder, in_turn, lines

WHAT = "Oxford-IIIT Pet (images/, annotations/trimaps/, annotations/trainval.txt, annotations/test.txt)"
LISTS = {"validation": "trainval.txt", "test": "test.txt"}
# breeds that are classes of ImageNet, by the name before the number of a file
IMAGENET = {
    "basset_hound": 161,
    "beagle": 162,
    "boxer": 242,
    "chihuahua": 151,
    "Egyptian_Mau": 285,
    "english_cocker_spaniel": 219,
    "english_setter": 212,
    "german_shorthaired": 210,
    "great_pyrenees": 257,
    "japanese_chin": 152,
    "keeshond": 261,
    "leonberger": 255,
    "miniature_pinscher": 237,
    "newfoundland": 256,
    "Persian": 283,
    "pomeranian": 259,
    "pug": 254,
    "saint_bernard": 247,
    "samoyed": 258,
    "scottish_terrier": 199,
    "Siamese": 284,
    "staffordshire_bull_terrier": 179,
    "wheaten_terrier": 202,
    "yorkshire_terrier": 187,
}


def entries(root: Path, imagenet: bool) -> dict[str, list[Entry]]:
    """Validation out of `trainval.txt`, test out of `test.txt`."""
    images = folder(root, "images", what=WHAT)
    trimaps = folder(root, "annotations", "trimaps", what=WHAT)
    return {
        split: in_turn(_listed(root / "annotations" / name, images, trimaps, imagenet)) for split, name in LISTS.items()
    }


def _listed(path: Path, images: Path, trimaps: Path, imagenet: bool) -> list[Entry]:
    found: list[Entry] = []
    for line in lines(path, WHAT):
        words = line.split()
        if len(words) != 4 or not words[1].isdigit() or not 1 <= int(words[1]) <= 37:
            raise DataError(f"{path} holds {line!r}; expected a name, a class from 1 to 37, a species and a breed id.")
        name, breed = words[0], words[0].rpartition("_")[0]
        if imagenet and breed not in IMAGENET:
            continue
        target = IMAGENET[breed] if imagenet else int(words[1]) - 1
        image = existing(images / f"{name}.jpg", f"the image of each name in {path.name}")
        mask = existing(trimaps / f"{name}.png", f"a trimap for each name in {path.name}")
        found.append(Entry(name, image, mask, target, _read))
    return found


def _read(labels: Labels) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    strange = set(np.unique(labels).tolist()) - {1, 2, 3}
    if labels.ndim != 2 or strange:
        raise DataError(f"a trimap holds 1, 2 and 3, this one {sorted(strange) or f'has shape {labels.shape}'}.")
    return labels == 1, labels == 3
