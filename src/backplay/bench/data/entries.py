"""What a data set lists: files and classes, before a pixel is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backplay.errors import BackplayError

SPLITS = ("validation", "test")
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

Labels = NDArray[np.integer]  # (H, W), or (H, W, C) where a mask has colours
# the object, and what nobody knows, out of the labels of a mask
Read = Callable[[Labels], tuple[NDArray[np.bool_], NDArray[np.bool_] | None]]


class DataError(BackplayError, ValueError):
    """Files that are missing, or not what the layout of the data set says; the message names both."""


@dataclass(frozen=True)
class Entry:
    """One sample: an image, the class that is explained in it, and the mask of that class."""

    name: str
    image: Path
    mask: Path
    target: int
    read: Read


def folder(root: Path, *parts: str, what: str) -> Path:
    """A folder of the layout, or what was found instead of it."""
    path = root.joinpath(*parts)
    if path.is_dir():
        return path
    if not root.is_dir():
        raise DataError(f"{root} does not exist; expected the folder of {what}.")
    inside = sorted(p.name for p in path.parent.iterdir())[:6] if path.parent.is_dir() else []
    found = ", ".join(inside) or "nothing"
    raise DataError(f"{path} does not exist; {what} has it. Found in {path.parent}: {found}.")


def lines(path: Path, what: str) -> list[str]:
    """The lines of a list, without empty ones and comments."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; {what} has it.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}.") from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def existing(path: Path, what: str) -> Path:
    """A file that the layout promises."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected {what}.")
    return path


def in_turn(entries: Iterable[Entry]) -> list[Entry]:
    """Class by class in turn, sorted by name: the first few are of many classes, and the order is always the same."""
    by_class: dict[int, list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e.name):
        by_class.setdefault(entry.target, []).append(entry)
    longest = max((len(group) for group in by_class.values()), default=0)
    return [by_class[c][k] for k in range(longest) for c in sorted(by_class) if k < len(by_class[c])]
