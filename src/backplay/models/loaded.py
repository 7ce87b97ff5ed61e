"""What a loader returns."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from backplay import photographs
from backplay.errors import MissingLibraryError
from backplay.interop.torchvision import ensure

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, repr=False)
class Loaded:
    """A network, and what belongs to it."""

    model: nn.Module  # in eval mode, on the CPU
    preprocess: Callable[[Image], Tensor]  # an RGB picture -> (3, H, W), as the network was trained to see it
    classes: tuple[str, ...] | None  # a name for each logit, None where nobody knows them
    size: tuple[int, int]  # (H, W) of what `preprocess` makes
    source: str  # the name under which it was loaded, and where the weights come from

    def __post_init__(self) -> None:
        _LOADED[self.model] = self.preprocess, self.classes, self.size, self.source

    def __repr__(self) -> str:
        classes = "classes unnamed" if self.classes is None else f"{len(self.classes)} classes"
        height, width = self.size
        return f"Loaded({type(self.model).__name__} from {self.source}; pictures of {height} x {width}, {classes})"

    def photograph(self, path: str | Path) -> Tensor:
        """(3, H, W): the photograph in a file as the network takes it."""
        image = photographs.read(path)
        photographs.check_proportions(path, image, self.size)
        return self.preprocess(image)

    @property
    def colours(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and std that `preprocess` normalises by, None where it does not tell them."""
        parts: list[Any] = [self.preprocess, getattr(self.preprocess, "processor", None)]
        parts += list(getattr(self.preprocess, "transforms", ()))
        for part in parts:
            for names in (("mean", "std"), ("image_mean", "image_std")):
                mean, std = (getattr(part, name, None) for name in names)
                if mean is not None and std is not None:
                    return tuple(map(float, mean)), tuple(map(float, std))
        return None

    def class_name(self, index: int) -> str:
        """The name of a class, or its number where it has none."""
        if self.classes is None or not 0 <= index < len(self.classes):
            return f"class {index}"
        return self.classes[index]


# what was told of a model when it was loaded, for pictures of its plays: a play knows the model alone
_LOADED: weakref.WeakKeyDictionary[nn.Module, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def loaded_from(model: object) -> Loaded | None:
    """The `Loaded` that a model came in, None where it was not loaded here."""
    known = _LOADED.get(model) if isinstance(model, nn.Module) else None
    return None if known is None or not isinstance(model, nn.Module) else Loaded(model, *known)


def library(name: str, extra: str, why: str) -> ModuleType:
    """An optional library, or how to install it."""
    needs = f"{why} needs {name}: pip install 'backplay[{extra}]'"
    try:
        ensure()  # timm and transformers import torchvision, and die with it where its operators do not load
    except ImportError as error:
        if name == "torchvision":
            raise MissingLibraryError(needs) from error
    except (RuntimeError, OSError) as error:
        raise MissingLibraryError(
            f"{why} needs torchvision, which is installed but cannot be imported: {error}"
        ) from error
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibraryError(needs) from error
