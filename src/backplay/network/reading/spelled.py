"""Operators that are what they spell out (S3b, S3f): each is written as the calls that it stands for."""

from __future__ import annotations

import math
from typing import Any

import torch

from backplay.network.nodes import Node, Ref
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, reading

aten = torch.ops.aten


@reading
def glu(builder: Builder, call: Call) -> Any:
    """`a · sigmoid(b)`, both halves of one tensor."""
    x, dim = call["self"], call.get("dim", -1)
    size = builder.size(builder.traced[x][dim])
    if isinstance(size, Ref):
        return None
    carried, gate = (builder.spell(aten.slice.Tensor, x, dim, k * size // 2, (k + 1) * size // 2) for k in range(2))
    return builder.spell(aten.mul.Tensor, carried, builder.spell(aten.sigmoid.default, gate))


@reading
def combined(builder: Builder, call: Call) -> Any:
    """`self + value · tensor1 · tensor2`, or divided by it."""
    op = aten.mul.Tensor if call.operator == "addcmul" else aten.div.Tensor
    inner = builder.spell(op, call["tensor1"], call["tensor2"])
    return builder.spell(aten.add.Tensor, call["self"], inner, alpha=call.get("value", 1))


def interpolation(builder: Builder, call: Call) -> Any:
    """`(1 − w) a + w b`; of two live operands with a constant weight it is a mix, which `mixes.lerp` makes."""
    start, end, weight = call["self"], call["end"], call["weight"]
    mul: Any = aten.mul.Tensor
    if isinstance(weight, (int, float)):
        rest: Any = 1 - weight
    else:
        rest = builder.spell(aten.rsub.Scalar, weight, 1)
    return builder.spell(aten.add.Tensor, builder.spell(mul, start, rest), builder.spell(mul, end, weight))


@reading
def log_sum_exp(builder: Builder, call: Call) -> Any:
    """`log Σ exp(x − m) + m`; the largest `m` only keeps it in range, so it is held fixed."""
    x, dim, keep = call["self"], call["dim"], bool(call.get("keepdim", False))
    largest = [builder.spell(aten.detach.default, builder.spell(aten.amax.default, x, dim, k)) for k in (True, keep)]
    powers = builder.spell(aten.exp.default, builder.spell(aten.sub.Tensor, x, largest[0]))
    total = builder.spell(aten.sum.dim_IntList, powers, dim, keep)
    log_sum: Node = builder.spell(aten.add.Tensor, builder.spell(aten.log.default, total), largest[1])
    if keep and len(dim) == 1:
        builder.log_sums[log_sum] = x, dim[0] % len(builder.traced[x])
    return log_sum


@reading
def cosine_similarity(builder: Builder, call: Call) -> Any:
    """The sum of products of two normalised tensors."""
    dim, eps = call.get("dim", 1), call.get("eps", 1e-8)
    parts: list[Node | Ref] = []
    for x in (call["x1"], call["x2"]):
        size = builder.spell(aten.linalg_vector_norm.default, x, 2, [dim], True)
        parts.append(builder.spell(aten.div.Tensor, x, builder.spell(aten.clamp_min.default, size, eps)))
    return builder.spell(aten.sum.dim_IntList, builder.spell(aten.mul.Tensor, *parts), [dim])


# ---------------------------------------------------------------- statistics: powers and means


@reading
def variance(builder: Builder, call: Call) -> Any:
    """The mean of squared departures from the mean, times `n / (n − correction)`, and its root."""
    x, keep, axes = call["self"], bool(call.get("keepdim", False)), _axes(builder, call)
    if axes is None:
        return None
    count = math.prod(builder.traced[x][d] for d in axes)
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    apart = builder.spell(aten.sub.Tensor, x, builder.spell(aten.mean.dim, x, axes, True))
    result = builder.spell(aten.mean.dim, builder.spell(aten.pow.Tensor_Scalar, apart, 2), axes, keep)
    if correction:
        result = builder.scaled(result, count / (count - correction) if count > correction else math.nan)
    if call.operator.startswith("std"):
        result = builder.spell(aten.sqrt.default, result)
    if not call.operator.endswith("mean"):
        return result
    return [lambda: result, lambda: builder.spell(aten.mean.dim, x, axes, keep)]


@reading
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
