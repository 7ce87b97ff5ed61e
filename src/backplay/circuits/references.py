"""Reference images as callers give them: a batch, one of the zoo, a list of images, a folder of photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError, MissingFileError
from backplay.games import Play

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")


def read_references(given: Any, play: Play) -> Tensor:
    """(N, …) images as the play's model takes them."""
    if len(play.network.inputs) != 1 or not isinstance(play.inputs.pack([play.x]), Tensor):
        raise InputError("references need a model that takes one tensor of images; leave them out.")
    if isinstance(given, (str, Path)):
        images = _folder(Path(given), play)
    elif isinstance(given, (list, tuple)):
        images = torch.stack(list(given)) if given and all(isinstance(g, Tensor) for g in given) else None
    else:
        images = getattr(given, "x", given)  # a batch of the zoo
    if not isinstance(images, Tensor):
        raise InputTypeError(
            f"references of type {type(given).__name__}: give a batch of images, a list of them, or a folder."
        )
    if images.ndim != play.x.ndim or not len(images):
        raise InputError(
            f"references of shape {tuple(images.shape)}: give a batch of images like {tuple(play.x.shape[1:])}."
        )
    return images.detach().to(play.x)


def _folder(path: Path, play: Play) -> Tensor:
    from backplay.models.loaded import loaded_from  # with libraries of pictures, which others need not have

    loaded = loaded_from(play.network.model)
    if loaded is None:
        raise InputError(
            f"nobody knows how pictures in {path} are made ready for this model; load it with backplay.models.load, "
            "or give a tensor."
        )
    if not path.is_dir():
        raise MissingFileError(f"{path} is no folder; give a folder of photographs.")
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES)
    if not files:
        raise MissingFileError(f"{path} holds no photographs; give a folder with JPEG, PNG, TIFF, WebP or BMP files.")
    return torch.stack([loaded.photograph(file) for file in files])
