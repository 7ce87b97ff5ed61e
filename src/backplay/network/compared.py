"""The captured program compared with the model itself (S38)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from backplay.errors import CaptureError
from backplay.network.graph import Network
from backplay.network.nodes import Affine, Mix

TOLERANCE = 1e-4
_warned: WeakSet[nn.Module] = WeakSet()  # each model once, however many shapes of it are captured


def check_sound(network: Network, example: Mapping[Any, Any]) -> None:
    """Compare a fresh capture with its model on the example: randomness is refused, other differences are warned of.

    Two runs of the model tell randomness and counters from what the capture got wrong.
    """
    name = type(network.model).__name__
    replayed, network.example_logits = network.example_logits, torch.empty(0)
    with torch.inference_mode(False), torch.no_grad():
        model, again = (network.model_logits(example) for _ in range(2))
        agreed = _agree(network, example, replayed, model)
    if _difference(model, again) >= TOLERANCE:
        raise CaptureError(
            f"two runs of {name} on the same input differ: its forward pass draws random numbers or keeps state.\n"
            "Switch that off (dropout with training=self.training, no noise, no counters) and capture again."
        )
    if agreed or network.model in _warned:
        return
    _warned.add(network.model)
    warnings.warn(
        f"the capture of {name} is unsound: its replay is {_difference(replayed, model):.1e} off the model. A branch, "
        ".item() or tensor built from values was fixed at capture; rewrite that part with tensor operations.",
        stacklevel=2,
    )


def _agree(network: Network, example: Mapping[Any, Any], replayed: Tensor, model: Tensor) -> bool:
    if replayed.shape != model.shape:
        return False
    if _difference(replayed, model) < TOLERANCE:
        return True
    scope = network.scope(example, network.weights())
    for _ in network.steps(scope):
        pass
    return forward_error(network, scope, scope[network.output], model) < TOLERANCE


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference beside the largest number; what is not finite must be so in both."""
    if found.shape != expected.shape:
        return math.inf
    same = (found == expected) | (found.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    error = (found - expected).abs()[~same].max()
    size = expected[expected.isfinite()].abs()
    share = float(error / size.max()) if size.numel() else math.inf
    return math.inf if math.isnan(share) else share


def forward_error(network: Network, scope: Mapping[Any, Any], replayed: Tensor, model: Tensor) -> float:
    """`max|replayed − model| / max(max|model|, 1e-3 · max of the last affine node's |W||a|)`, 0 where both are 0."""
    error = (replayed - model).abs().max()
    if error == 0:
        return 0.0
    return float(error / torch.maximum(model.abs().max(), 1e-3 * _last_magnitude(network, scope)))


def _last_magnitude(network: Network, scope: Mapping[Any, Any]) -> Tensor:
    affine = [n for n in network.nodes if isinstance(n, Affine) and not isinstance(n, Mix)]
    if not affine:
        return torch.zeros(())
    last = affine[-1]
    return last.map.apply(scope[last.operand].abs(), last.weight(scope).abs()).max()
