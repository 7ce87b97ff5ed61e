"""Variances, deviations and vector norms as the powers and means that they spell out (S3b)."""

from __future__ import annotations

import math
from typing import Any

import torch

from backplay.network.builder import Builder, Call, lowers
from backplay.network.nodes import Node

aten = torch.ops.aten


@lowers("var", "std", "var_mean", "std_mean")
def variance(builder: Builder, call: Call) -> Any:
    """The mean of squared departures from the mean, times `n / (n − correction)`, and its root."""
    x, keep, axes = call["self"], bool(call.get("keepdim", False)), _axes(builder, call)
    if axes is None:
        return None
    count = math.prod(builder.traced[x][d] for d in axes)
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    apart = builder.spell(aten.sub.Tensor, x, builder.spell(aten.mean.dim, x, axes, True))
    found = builder.spell(aten.mean.dim, builder.spell(aten.pow.Tensor_Scalar, apart, 2), axes, keep)
    if correction:
        found = builder.scaled(found, count / (count - correction) if count > correction else math.nan)
    if call.operator.startswith("std"):
        found = builder.spell(aten.sqrt.default, found)
    if not call.operator.endswith("mean"):
        return found
    return [lambda: found, lambda: builder.spell(aten.mean.dim, x, axes, keep)]


@lowers("linalg_vector_norm", "norm")
def vector_norm(builder: Builder, call: Call) -> Node | None:
    """`(Σ |x|^p)^{1/p}`; the largest magnitude for p = ∞."""
    x, keep, axes = call["self"], bool(call.get("keepdim", False)), _axes(builder, call)
    order = float(call.get("ord", call.get("p", 2)))
    if axes is None or order <= 0:
        return None
    if order == math.inf:
        return builder.spell(aten.amax.default, builder.spell(aten.abs.default, x), axes, keep)
    if order == 2:
        powers = builder.spell(aten.pow.Tensor_Scalar, x, 2)
    else:
        powers = builder.spell(aten.abs.default, x)
        powers = powers if order == 1 else builder.spell(aten.pow.Tensor_Scalar, powers, order)
    total = builder.spell(aten.sum.dim_IntList, powers, axes, keep)
    if order == 2:
        return builder.spell(aten.sqrt.default, total)
    return total if order == 1 else builder.spell(aten.pow.Tensor_Scalar, total, 1 / order)


def _axes(builder: Builder, call: Call) -> list[int] | None:
    """The axes of a reduction, counted from the front; None where it would run over the samples too."""
    shape, dim = builder.traced[call["self"]], call.get("dim")
    if dim is None or dim == []:
        return None
    axes = [d % len(shape) for d in ([dim] if isinstance(dim, int) else dim)]
    return axes if all(isinstance(shape[d], int) for d in axes) else None
