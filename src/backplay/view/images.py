"""What a network sees as what people see: images in their own colours, maps as planes.

An image is a tensor or array (C, H, W), (H, W, C) or (H, W), or a batch of those, or a Pillow picture; a map is a
tensor (B, C, H, W), whose channels are summed, (B, H, W), (C, H, W) or (H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backplay.errors import InputError, InputTypeError
from backplay.network import Network
from backplay.photographs import IMAGENET_MEAN, IMAGENET_STD
from backplay.view.colours import Plane

Shown = NDArray[np.float64]  # (H, W, 3) or (H, W), from 0 to 1

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Looks:
    """How a network's inputs are shown: pixel = input · std + mean, for each channel; None where nobody knows."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] | None = None

    def class_name(self, index: int) -> str:
        known = self.classes is not None and 0 <= index < len(self.classes)
        return self.classes[index] if known and self.classes is not None else f"class {index}"


def looks_of(model: Any = None, mean: Any = None, std: Any = None) -> Looks:
    """The model's own mean, std and class names; `mean` and `std`, where they are given, come first."""
    known = _known(model)
    if mean is None and std is None:
        return known
    found = _numbers("mean", 0.0 if mean is None else mean), _numbers("std", 1.0 if std is None else std)
    if min(found[1]) <= 0:
        raise InputError(f"std={std!r}: deviations are positive.")
    return Looks(*found, known.classes)


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    try:
        found = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError):
        found = np.array([np.nan])
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(f"{name}={given!r}: it takes a number, or one for each channel.")
    return tuple(found.tolist())


def _known(model: Any) -> Looks:
    """What is known of a Loaded, of a network of the zoo, or of a module that brings a timm configuration."""
    from backplay.models.loaded import Loaded, loaded_from

    if model is None:
        return Looks()
    if isinstance(model, Network):
        model = model.model
    loaded = model if isinstance(model, Loaded) else loaded_from(model)
    if loaded is not None:
        return Looks(*(loaded.colours or (None, None)), loaded.classes)
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model={type(model).__name__}: give the network, or what backplay.models.load returned.")
    from backplay.zoo.networks import Classifier
    from backplay.zoo.scenes import MEAN, SPREAD

    if isinstance(model, Classifier):
        return Looks((MEAN,), (SPREAD,), tuple(model.classes))
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, dict) and {"mean", "std"} <= config.keys():
        return Looks(tuple(config["mean"]), tuple(config["std"]))
    return Looks()


# ---------------------------------------------------------------- images


def shown_images(images: Any, looks: Looks) -> list[Shown]:
    """Every image of a batch or list as colours to look at."""
    if isinstance(images, (list, tuple)):
        if not images:
            raise InputError("there is no image in an empty list.")
        return [_shown([_channels_first(_array(image))], looks)[0] for image in images]
    array = _array(images)
    if array.ndim == 4:
        return _shown([_channels_first(image) for image in array], looks)
    return _shown([_channels_first(array)], looks)


def shown_image(image: Any, looks: Looks, sample: int) -> Shown:
    """One image: the given one, or that of a sample where it is a batch."""
    if not isinstance(image, (list, tuple)) and getattr(image, "ndim", 0) != 4:
        return shown_images(image, looks)[0]
    check_sample(sample, len(image), "the batch of images")
    return shown_images(image[sample], looks)[0]


def count_of(image: Any) -> int | None:
    """How many samples a batch of images holds, None where there is no image."""
    if image is None:
        return None
    return len(image) if isinstance(image, (list, tuple)) or getattr(image, "ndim", 0) == 4 else 1


def check_sample(sample: int, count: int, holder: str) -> None:
    if isinstance(sample, bool) or not isinstance(sample, int) or not 0 <= sample < count:
        raise InputError(f"sample {sample!r} is out of range: {holder} holds samples 0 to {count - 1}.")


def _array(image: Any) -> NDArray[Any]:
    """As numbers; a Pillow picture is (H, W, C)."""
    if isinstance(image, Tensor):
        found = image.detach().cpu()
        array = found.numpy() if found.dtype in (torch.uint8, torch.bool) else found.double().numpy()
    elif isinstance(image, np.ndarray):
        array = image
    elif hasattr(image, "getbands"):  # Pillow
        array = np.asarray(image.convert("RGB"))
    else:
        raise InputTypeError(f"an image is a tensor, an array or a picture, got {type(image).__name__}.")
    if array.ndim not in (2, 3, 4) or not array.size:
        raise InputError(f"an image has the shape (C, H, W) or (H, W), a batch (B, C, H, W); got {array.shape}.")
    return array


def _channels_first(array: NDArray[Any]) -> NDArray[Any]:
    """(C, H, W) of one image."""
    if array.ndim == 2:
        return array[None]
    last = array.shape[-1] in _CHANNELS and array.shape[0] not in _CHANNELS
    return np.moveaxis(array, -1, 0) if last else array


def _shown(images: Sequence[NDArray[Any]], looks: Looks) -> list[Shown]:
    """Colours between 0 and 1. What was normalised is put back by the model's mean and std.

    Whole numbers of 8 bits, and numbers between 0 and 1, are colours already, unless they are said to be normalised by
    a model that could have made them. Where nobody knows how negative numbers came about, the usual normalisations are
    tried and the first that gives colours is taken; else they are stretched from the smallest to the largest.
    """
    if all(image.dtype == np.uint8 or image.dtype == np.bool_ for image in images):
        return [_coloured(image / (255.0 if image.dtype == np.uint8 else 1.0)) for image in images]
    low = min(float(np.nanmin(image)) for image in images)
    high = max(float(np.nanmax(image)) for image in images)
    if low >= 0 and high <= 1:
        return [_coloured(image) for image in images]
    tried = [(looks.mean, looks.std)] if looks.mean and looks.std else [((0.5,), (0.5,)), (IMAGENET_MEAN, IMAGENET_STD)]
    for mean, std in tried:
        back = [_unnormalised(image, mean, std) for image in images]
        if all(b is not None for b in back) and (looks.mean or _colours(back)):
            return [_coloured(np.clip(b, 0, 1)) for b in back if b is not None]
    if low >= 0 and 1.5 < high <= 255 and all((image == np.round(image)).all() for image in images):
        return [_coloured(image / 255) for image in images]
    return [_coloured((image - low) / (high - low or 1.0)) for image in images]


def _unnormalised(image: NDArray[Any], mean: Sequence[float], std: Sequence[float]) -> NDArray[Any] | None:
    """`image · std + mean`; None where the channels do not fit."""
    if not (len(mean) == len(std) or 1 in (len(mean), len(std))) or max(len(mean), len(std)) not in (1, len(image)):
        return None
    return image * np.reshape(std, (-1, 1, 1)) + np.reshape(mean, (-1, 1, 1))


def _colours(images: Sequence[NDArray[Any] | None]) -> bool:
    """Whether all of it could be colours, but for rounding."""
    return all(b is not None and float(np.nanmin(b)) >= -0.01 and float(np.nanmax(b)) <= 1.01 for b in images)


def _coloured(image: NDArray[Any]) -> Shown:
    """(C, H, W) → (H, W, 3), or (H, W) where the channels are no colours."""
    image = np.nan_to_num(image.astype(np.float64, copy=False))
    if len(image) >= 3 and len(image) in _CHANNELS:
        return np.moveaxis(image[:3], 0, -1)
    return image.mean(0)


# ---------------------------------------------------------------- maps


def planes(maps: Any, count: int | None = None, name: str = "map") -> list[Plane]:
    """(H, W) of every sample, channels summed. `count` is how many samples there are, where that is known."""
    if isinstance(maps, (list, tuple)):
        return [one for part in maps for one in planes(part, 1, name)]
    array = _numbers_of(maps, name)
    if array.ndim == 3:
        batch = count > 1 if count is not None else array.shape[0] not in _CHANNELS
        array = array if batch else array.sum(0)[None]
    elif array.ndim == 4:
        array = array.sum(1)
    elif array.ndim == 2:
        array = array[None]
    else:
        raise InputError(f"{name} has the shape {array.shape}; a map is (B, C, H, W), (B, H, W), (C, H, W) or (H, W).")
    if not array.size:
        raise InputError(f"{name} has the shape {array.shape}: there is nothing to draw.")
    return list(array)


def _numbers_of(maps: Any, name: str) -> NDArray[np.float64]:
    if hasattr(maps, "attribution"):  # a play
        maps = maps.attribution()
    if isinstance(maps, Tensor):
        return maps.detach().double().cpu().numpy()
    if isinstance(maps, np.ndarray):
        return maps.astype(np.float64)
    raise InputTypeError(f"{name} is of type {type(maps).__name__}; a map is a tensor, an array or a play.")


def check_proportions(plane: Plane, image: Shown, name: str = "the map") -> None:
    """A map belongs to an image of its proportions."""
    (h, w), (height, width) = plane.shape, image.shape[:2]
    if abs(h * width - w * height) > 0.02 * h * width + max(h, w):
        raise InputError(f"{name} is {h} × {w} and the image {height} × {width}: they cannot lie over each other.")


def extent_of(image: NDArray[Any]) -> tuple[float, float, float, float]:
    """Where an image lies in its own pixels, so that a map of another size covers it all."""
    return -0.5, image.shape[1] - 0.5, image.shape[0] - 0.5, -0.5
