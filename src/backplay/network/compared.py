"""The captured program compared with the model itself (S38)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backplay.network.graph import Network
from backplay.network.nodes import Affine, Mix

TOLERANCE = 1e-4


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
