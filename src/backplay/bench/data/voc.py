"""Pascal VOC 2012 segmentation: one sample for each image and class in it (app:voc-cross-data-split).

`person` has no ImageNet class and is dropped, as are masks of fewer than 64 pixels in the annotation itself. Images are
shuffled with seed 42, and the first sixth of them is for validation: no image is in both parts.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backplay.bench.data.entries import DataError, Entry, Labels, existing, folder, in_turn, lines
from backplay.bench.data.pictures import labels_of

WHAT = "Pascal VOC 2012 (JPEGImages/, SegmentationClass/, ImageSets/Segmentation/trainval.txt)"
CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)  # label k + 1 in the masks
# the ImageNet class that is nearest to the middle of each; the paper names those of horse and tvmonitor
IMAGENET = {
    "aeroplane": 404,  # airliner
    "bicycle": 671,  # mountain bike
    "bird": 15,  # robin
    "boat": 814,  # speedboat
    "bottle": 898,  # water bottle
    "bus": 779,  # school bus
    "car": 817,  # sports car
    "cat": 281,  # tabby
    "chair": 559,  # folding chair
    "cow": 345,  # ox
    "diningtable": 532,  # dining table
    "dog": 208,  # Labrador retriever
    "horse": 339,  # sorrel
    "motorbike": 670,  # motor scooter
    "pottedplant": 738,  # pot
    "sheep": 348,  # ram
    "sofa": 831,  # studio couch
    "train": 466,  # bullet train
    "tvmonitor": 664,  # monitor
}
SMALLEST = 64  # pixels
SEED = 42
SHARE = 1 / 6  # of the images, for validation


def entries(root: Path) -> dict[str, list[Entry]]:
    """Both parts, disjoint by image."""
    root = root / "VOC2012" if (root / "VOC2012").is_dir() else root
    root = root / "VOCdevkit" / "VOC2012" if (root / "VOCdevkit" / "VOC2012").is_dir() else root
    images = folder(root, "JPEGImages", what=WHAT)
    masks = folder(root, "SegmentationClass", what=WHAT)
    stems = sorted(set(lines(root / "ImageSets" / "Segmentation" / "trainval.txt", WHAT)))
    found = {stem: list(_of_image(images / f"{stem}.jpg", masks / f"{stem}.png")) for stem in stems}
    used = [stem for stem in stems if found[stem]]
    random.Random(SEED).shuffle(used)
    count = round(SHARE * len(used))
    parts = {"validation": used[:count], "test": used[count:]}
    return {name: in_turn(entry for stem in part for entry in found[stem]) for name, part in parts.items()}


def _of_image(image: Path, mask: Path) -> Iterator[Entry]:
    existing(image, "the image of each name in trainval.txt")
    labels = labels_of(existing(mask, "a mask for each name in trainval.txt"))
    if labels.ndim != 2:
        raise DataError(f"{mask} has shape {labels.shape}; masks of VOC are palette pictures, one number a pixel.")
    numbers, counts = np.unique(labels, return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        if not 1 <= number <= len(CLASSES):
            if number not in (0, 255):
                raise DataError(f"{mask} holds the label {number}; VOC has 0 to 20, and 255 along borders.")
            continue
        name = CLASSES[number - 1]
        if name in IMAGENET and count >= SMALLEST:
            yield Entry(f"{image.stem}/{name}", image, mask, IMAGENET[name], functools.partial(_read, number))


def _read(number: int, labels: Labels) -> tuple[NDArray[np.bool_], None]:
    return labels == number, None
