"""ImageNet-S: `validation/WNID/*.JPEG` and `validation-segmentation/WNID/*.png`, whose labels are `R + 256·G`.

The class list names the classes that take part, one a line: the WordNet id, the label in the masks, the index among
ImageNet's 1000 classes. One image of each class is for validation by default, the others are for the test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backplay.bench.data.entries import DataError, Entry, Labels, folder, in_turn, lines

WHAT = "ImageNet-S (validation/ and validation-segmentation/)"
IGNORED = 1000  # the label of regions that nobody annotated


def entries(root: Path, classes: Path, validation: int | None) -> dict[str, list[Entry]]:
    """Both parts; `validation` images, as many classes as possible, are the first part."""
    found = in_turn(_all(root, _classes(classes)))
    count = len({entry.target for entry in found}) if validation is None else validation
    return {"validation": found[:count], "test": found[count:]}


def _classes(path: Path) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for line in lines(path, "the class list of ImageNet-S"):
        words = line.split()
        if len(words) < 3 or not words[1].isdigit() or not words[2].isdigit():
            raise DataError(f"{path} holds {line!r}; expected a WordNet id, a mask label and an ImageNet index.")
        found.append((words[0], int(words[1]), int(words[2])))
    if not found:
        raise DataError(f"{path} names no class; expected a line for each: a WordNet id, a mask label, an index.")
    return found


def _all(root: Path, classes: list[tuple[str, int, int]]) -> Iterator[Entry]:
    for wnid, label, target in classes:
        images = folder(root, "validation", wnid, what=WHAT)
        masks = folder(root, "validation-segmentation", wnid, what=WHAT)
        here = sorted(images.glob("*.JPEG"))
        if not here:
            raise DataError(f"{images} holds no *.JPEG; {WHAT} has some in each class.")
        for image in here:
            mask = masks / f"{image.stem}.png"
            if not mask.is_file():
                raise DataError(f"{mask} does not exist, but {image.name} does; {WHAT} has a mask for each image.")
            yield Entry(f"{wnid}/{image.stem}", image, mask, target, functools.partial(_read, label))


def _read(label: int, labels: Labels) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    if labels.ndim != 3:
        raise DataError(f"a mask of ImageNet-S has colours (label = R + 256·G), this one has shape {labels.shape}.")
    numbers = labels[..., 0].astype(np.int64) + 256 * labels[..., 1].astype(np.int64)
    return numbers == label, numbers == IGNORED
