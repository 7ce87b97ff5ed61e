"""A data set by name: how many samples it has, and each of them as a network takes it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Protocol

from backplay import zoo
from backplay.bench.data import imagenet_s, pairs, pets, voc
from backplay.bench.data.entries import DataError, Entry
from backplay.bench.data.pictures import Lens
from backplay.bench.metrics import Sample
from backplay.models import Loaded

KINDS = ("zoo", "imagenet-s", "voc", "pets", "folder")
ZOO_SIZES = {"validation": 50, "test": 500}


class DataSet(Protocol):
    """Samples of both splits, the same ones in the same order wherever it is opened."""

    def size(self, split: str) -> int: ...
    def target(self, split: str, index: int) -> int: ...
    def sample(self, split: str, index: int, loaded: Loaded) -> Sample: ...


class Zoo:
    """Generated pictures with the mask of the object; nothing is read from a disk."""

    def __init__(self, limits: dict[str, int | None], seed: int) -> None:
        self.limits, self.seed = limits, seed

    def size(self, split: str) -> int:
        return self.limits.get(split) or ZOO_SIZES[split]

    def target(self, split: str, index: int) -> int:
        return int(_scene("val" if split == "validation" else "test", index, self.seed).target[0])

    def sample(self, split: str, index: int, loaded: Loaded) -> Sample:
        if loaded.size != (96, 96):
            raise DataError(f"the zoo's pictures are 96 × 96, this network takes {loaded.size[1]} × {loaded.size[0]}.")
        x, target, mask = _scene("val" if split == "validation" else "test", index, self.seed)
        return Sample(f"{split}-{index:04d}", x[0], int(target[0]), mask[0].numpy())


@functools.lru_cache(maxsize=32)  # a run comes back to its last few pictures, cell by cell
def _scene(split: Any, index: int, seed: int) -> zoo.Batch:
    return zoo.images(1, split, seed, start=index)


class Files:
    """A data set of files; `limits` keeps the first samples of a split, whose classes come in turn."""

    def __init__(self, parts: dict[str, list[Entry]], limits: dict[str, int | None], resize: int | None) -> None:
        self.parts = {name: found[: limits.get(name)] for name, found in parts.items()}
        self.resize = resize
        self._lens: tuple[Loaded, Lens] | None = None

    def size(self, split: str) -> int:
        return len(self.parts[split])

    def target(self, split: str, index: int) -> int:
        return self.parts[split][index].target

    def sample(self, split: str, index: int, loaded: Loaded) -> Sample:
        if self._lens is None or self._lens[0] is not loaded:
            self._lens = loaded, Lens(loaded, self.resize)
        return self._lens[1].sample(self.parts[split][index])


def open_data(settings: dict[str, Any]) -> DataSet:
    """The data set that a config names; paths in it are taken as they are."""
    kind = settings["kind"]
    limits = {"validation": settings.get("validation"), "test": settings.get("test")}
    if kind == "zoo":
        return Zoo(limits, settings.get("seed", 0))
    root = Path(settings["root"])
    match kind:
        case "imagenet-s":
            parts = imagenet_s.entries(root, Path(settings["classes"]), settings.get("validation"))
        case "voc":
            parts = voc.entries(root)
        case "pets":
            parts = pets.entries(root, settings.get("targets", "breeds") == "imagenet")
        case _:
            parts = pairs.entries(root)
    empty = [name for name, found in parts.items() if not found]
    if empty:
        raise DataError(f"{root} has no samples for {empty[0]}; expected some in each of {', '.join(parts)}.")
    return Files(parts, limits, settings.get("resize"))
