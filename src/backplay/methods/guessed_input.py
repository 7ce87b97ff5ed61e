"""An input that a model takes, guessed from the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from backplay.entry import without_gradients
from backplay.errors import InputError
from backplay.network.precision import HALF, in_single, precision_of
from backplay.network.running import EXPORTING, evaluation

_SIZES = (224, 96, 64, 32, 28, 256, 299, 384, 518)


def guess(model: nn.Module) -> Tensor:
    """Zeros of a shape that the model takes: read off its settings and its first layer, else tried out."""
    first = next((m for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))), None)
    precision = precision_of(model.parameters(), torch.float32)
    dtype = torch.float32 if precision in HALF else precision
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for shape in _shapes(model, first):
        x = torch.zeros(2, *shape, dtype=dtype, device=device)
        try:
            with without_gradients(), EXPORTING, evaluation(model), in_single(precision in HALF):
                model(x)
        except Exception:
            continue
        return x
    raise InputError(
        f"no input was found that {type(model).__name__} takes; capture it with an example of yours, "
        "`bp.capture(model, x)`, and ask again with the network."
    )


def _shapes(model: nn.Module, first: nn.Module | None) -> Iterator[tuple[int, ...]]:
    if isinstance(first, nn.Linear):
        yield (first.in_features,)
        return
    channels = getattr(first, "in_channels", 3)
    for size in [*_declared(model), *_SIZES]:
        yield (channels, size, size)


def _declared(model: nn.Module) -> Iterator[int]:
    """The image size that a model of the usual libraries declares."""
    for owner in (model, getattr(model, "config", None)):
        size: Any = getattr(owner, "image_size", None)
        if isinstance(size, int):
            yield size
    settings: Any = getattr(model, "default_cfg", None)
    if isinstance(settings, dict) and "input_size" in settings:
        yield int(settings["input_size"][-1])  # pyright: ignore[reportUnknownArgumentType]
