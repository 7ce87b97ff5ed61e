"""Weights as kernels need them: copies made once for each state of the model, never views of its tensors (S1)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from backplay.network.attention import Attention
from backplay.network.linear import Averaging, Convolution, Dense
from backplay.network.nodes import Affine, Mix, Node, Wire
from backplay.values.forward import Values


def signed_weight(node: Affine, values: Values) -> Tensor:
    """`W`, batch norm folded in."""

    def make() -> Tensor:
        weight = node.weight(values)
        return weight.clone() if _shares_storage(weight, values) else weight

    return _prepared(node, values, "signed", make)


def _shares_storage(weight: Tensor, values: Values) -> bool:
    pointers = {p.pointer for p in values.weights.prints.values()}
    return weight.untyped_storage().data_ptr() in pointers or weight._base is not None


def split_weight(node: Affine, values: Values, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """What the streams of a node need to the power `1/τ`, and the scale of each output row.

    Behind a non-negative operand these are `W⁺, W⁻`, else `W, |W|` (S12). At another temperature than 1 the rows are
    divided by their largest entry first, which leaves every policy as it is and keeps small weights in range; the
    outside option is divided alike.
    """

    def make() -> tuple[Tensor, Tensor, Tensor]:
        weight = node.weight(values)
        scale = torch.ones((), dtype=weight.dtype, device=weight.device)
        if tau != 1 and isinstance(node.map, Averaging):
            # the operator itself stands in for its power: outputs are off by w^{1-1/τ}, and so is the outside option
            scale = node.map.row_weight(values[node.operand]).pow(1 - tau)
        elif tau != 1:
            scale = _row_scale(node, weight)
            weight = weight / _along_rows(scale, weight)
            weight = weight.sign() * weight.abs().pow(1 / tau)
        if node.operand.nonnegative:
            return weight.clamp(min=0), (-weight).clamp(min=0), scale
        return weight.clone() if _shares_storage(weight, values) else weight, weight.abs(), scale

    batch = values.batch if isinstance(node.map, Averaging) else None
    return _prepared(node, values, ("split", tau, batch), make)


def _prepared(node: Affine, values: Values, key: Hashable, make: Callable[[], Any]) -> Any:
    """Made once for each state of the model, unless the weights are values of the play themselves."""
    return make() if isinstance(node, Attention) else values.weights.prepared((node, key), make)


def _row_scale(node: Affine, weight: Tensor) -> Tensor:
    """Largest `|W_ij|` of each output, broadcastable against the output."""
    if isinstance(node.map, Dense):
        rows = weight.abs().amax(1)
    elif isinstance(node.map, Convolution) and not node.map.transposed:
        rows = weight.abs().flatten(1).amax(1).view([-1] + [1] * (weight.ndim - 2))
    else:
        rows = weight.abs().amax()
    return torch.where(rows > 0, rows, 1)


def _along_rows(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view([-1] + [1] * (weight.ndim - 1)) if scale.ndim else scale


def stopping_total(node: Affine, values: Values) -> Tensor:
    """`γ_j`: the sum of `|W_ij|` over real predecessors; zero padding has none (S6)."""

    def make() -> Tensor:
        weight = signed_weight(node, values).abs()
        mask = reality(node.operand, values)
        if mask is None:
            operand = values[node.operand]
            plain = isinstance(node.map, (Convolution, Averaging)) and node.operand.layout.dim == 0
            shape = (1, *operand.shape[1:]) if plain else operand.shape
            mask = torch.ones(1, dtype=operand.dtype, device=operand.device).expand(shape)
            if isinstance(node.map, Dense):
                return weight.sum(1)
        return node.map.apply(mask, weight)

    batch = None if _always_real(node.operand) and not isinstance(node, Mix) else values.batch
    return _prepared(node, values, ("total", batch), make)


def reality(node: Node, values: Values) -> Tensor | None:
    """1 on elements, 0 on zero padding, seen through wires; None where all are real."""
    if _always_real(node):
        return None
    assert isinstance(node, Wire)
    masks: list[Tensor] = []
    for operand in node.inputs:
        value = values[operand]
        mask = reality(operand, values)
        masks.append(torch.ones((), dtype=value.dtype, device=value.device).expand(value.shape) if mask is None else mask)
    return node.move(masks, values, constant=1.0)


def _always_real(node: Node) -> bool:
    return not isinstance(node, Wire) or not (node.pads or not all(_always_real(n) for n in node.inputs))
