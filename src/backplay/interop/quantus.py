"""Quantus: every method as its `explain_func`.

import quantus
from backplay.interop.quantus import explain
quantus.MaxSensitivity(nr_samples=10)(
    model=model, x_batch=x, y_batch=y, explain_func=explain, explain_func_kwargs={"method": "rg", "tau": 0.5}
)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backplay.errors import InputError
from backplay.methods import explain as explain_method
from backplay.network import Model

_OF_QUANTUS = ("device", "nr_channels", "img_size", "interpolate")  # what it passes on to every explain_func


def explain(model: Model, inputs: Any, targets: Any, method: str = "rg", **params: Any) -> NDArray[np.float64]:
    """(B, 1, H, W): the maps of a method, channels summed, as Quantus' metrics take them.

    `inputs` is an array (B, C, H, W) of any floating type and is computed in the model's own; `targets` holds a class
    for each sample. Nothing is rescaled: where a metric shall normalise, do so image by image, for Quantus'
    `normalise_by_max` takes the largest value of a whole batch.
    """
    x = np.asarray(inputs)
    if x.ndim != 4:
        raise InputError(f"inputs must be images of shape (B, C, H, W), got {x.shape}.")
    wanted = {name: value for name, value in params.items() if name not in _OF_QUANTUS}
    dtype, device = _home(model)
    tensor = torch.as_tensor(x, dtype=dtype, device=device)
    classes = torch.as_tensor(np.asarray(targets).reshape(-1).astype(np.int64), device=device)
    maps = explain_method(model, tensor, classes, method=method, **wanted)
    return maps.detach().double().sum(1, keepdim=True).cpu().numpy()


def _home(model: Model) -> tuple[torch.dtype, torch.device]:
    """The type and place of the model's parameters."""
    module: Any = getattr(model, "model", model)
    for tensor in module.parameters():
        if tensor.is_floating_point():
            return tensor.dtype, tensor.device
    return torch.float32, torch.device("cpu")
