"""Operators that are what they spell out (S3f): each is written as the calls that it stands for."""

from __future__ import annotations

from typing import Any

import torch

from backplay.network.builder import Builder, Call, lowers
from backplay.network.nodes import Node, Ref

aten = torch.ops.aten


@lowers("glu")
def glu(builder: Builder, call: Call) -> Any:
    """`a · sigmoid(b)`, both halves of one tensor."""
    x, dim = call["self"], call.get("dim", -1)
    size = builder.size(builder.traced[x][dim])
    if isinstance(size, Ref):
        return None
    carried, gate = (builder.spell(aten.slice.Tensor, x, dim, k * size // 2, (k + 1) * size // 2) for k in range(2))
    return builder.spell(aten.mul.Tensor, carried, builder.spell(aten.sigmoid.default, gate))


@lowers("addcmul", "addcdiv")
def combined(builder: Builder, call: Call) -> Any:
    """`self + value · tensor1 · tensor2`, or divided by it."""
    op = aten.mul.Tensor if call.operator == "addcmul" else aten.div.Tensor
    inner = builder.spell(op, call["tensor1"], call["tensor2"])
    return builder.spell(aten.add.Tensor, call["self"], inner, alpha=call.get("value", 1))


def interpolation(builder: Builder, call: Call) -> Any:
    """`(1 − w) a + w b`; of two live operands with a constant weight it is a mix, which `mixing` makes."""
    start, end, weight = call["self"], call["end"], call["weight"]
    mul: Any = aten.mul.Tensor
    if isinstance(weight, (int, float)):
        rest: Any = 1 - weight
    else:
        rest = builder.spell(aten.rsub.Scalar, weight, 1)
    return builder.spell(aten.add.Tensor, builder.spell(mul, start, rest), builder.spell(mul, end, weight))


@lowers("logsumexp")
def log_sum_exp(builder: Builder, call: Call) -> Any:
    """`log Σ exp(x − m) + m`; the largest `m` only keeps it in range, so it is held fixed."""
    x, dim, keep = call["self"], call["dim"], bool(call.get("keepdim", False))
    largest = [builder.spell(aten.detach.default, builder.spell(aten.amax.default, x, dim, k)) for k in (True, keep)]
    powers = builder.spell(aten.exp.default, builder.spell(aten.sub.Tensor, x, largest[0]))
    total = builder.spell(aten.sum.dim_IntList, powers, dim, keep)
    return builder.spell(aten.add.Tensor, builder.spell(aten.log.default, total), largest[1])


@lowers("cosine_similarity")
def cosine_similarity(builder: Builder, call: Call) -> Any:
    """The sum of products of two normalised tensors."""
    dim, eps = call.get("dim", 1), call.get("eps", 1e-8)
    parts: list[Node | Ref] = []
    for x in (call["x1"], call["x2"]):
        size = builder.spell(aten.linalg_vector_norm.default, x, 2, [dim], True)
        parts.append(builder.spell(aten.div.Tensor, x, builder.spell(aten.clamp_min.default, size, eps)))
    return builder.spell(aten.sum.dim_IntList, builder.spell(aten.mul.Tensor, *parts), [dim])
