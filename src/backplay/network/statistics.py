"""Variances, deviations and vector norms as the powers and means that they spell out (S3b)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network.builder import Builder, Call, lowers
from backplay.network.linear import Averaging
from backplay.network.nodes import Gate, Max, Mix, Node, Sum, Wire
from backplay.network.pooling import first_winner


@lowers("var", "std", "var_mean", "std_mean")
def variance(builder: Builder, call: Call) -> Any:
    x, keep = call["self"], bool(call.get("keepdim", False))
    axes = _axes(builder, x, call.get("dim"))
    count = None if axes is None else math.prod(builder.traced[x][d] for d in axes)
    if axes is None or not isinstance(count, int):
        return None
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    mean = _reduced(builder, x, "mean", axes, keep=True)
    apart = Sum(torch.add, (x, builder.scaled(_expanded(builder, mean, x), -1)), operator="sub", helper=True)
    builder.add(apart, builder.traced[x])
    squares = _activated(builder, apart, "pow", lambda a: a.square(), nonnegative=True)
    found: Node = _reduced(builder, squares, "mean", axes, keep)
    if correction:
        found = builder.scaled(found, count / (count - correction) if count > correction else math.nan)
    if call.operator.startswith("std"):
        found = _activated(builder, found, "sqrt", torch.sqrt, nonnegative=False)
    if not call.operator.endswith("mean"):
        return found
    return [lambda: found, lambda: _reduced(builder, x, "mean", axes, keep)]


@lowers("linalg_vector_norm", "norm")
def vector_norm(builder: Builder, call: Call) -> Node | None:
    x, keep = call["self"], bool(call.get("keepdim", False))
    order, axes = float(call.get("ord", call.get("p", 2))), _axes(builder, x, call.get("dim"))
    if axes is None or order <= 0:
        return None
    size = x if x.nonnegative else _activated(builder, x, "abs", torch.abs, nonnegative=True)
    if order == math.inf:
        largest = Max(lambda a: torch.amax(a, axes, keep), (size,), operator="amax", nonnegative=True)
        largest.winner = lambda a: first_winner(a, axes, keep)
        return builder.add(largest, _shape(builder, x, axes, keep))
    if order == 1:
        return _reduced(builder, size, "sum", axes, keep)
    if order == 2:
        squares = _activated(builder, x, "pow", torch.square, nonnegative=True, exponent=2)
        return _activated(builder, _reduced(builder, squares, "sum", axes, keep), "sqrt", torch.sqrt, nonnegative=False)
    powers = _activated(builder, size, "pow", lambda a: a.pow(order), nonnegative=order % 2 == 0, exponent=order)
    total = _reduced(builder, powers, "sum", axes, keep)
    return _activated(builder, total, "pow", lambda a: a.pow(1 / order), nonnegative=False, exponent=1 / order)


def _axes(builder: Builder, x: Node, dim: Any) -> list[int] | None:
    """The axes of a reduction, counted from the front; None where it would run over the samples too."""
    if dim is None or dim == []:
        return None
    axes = [d % len(builder.traced[x]) for d in ([dim] if isinstance(dim, int) else dim)]
    return axes if all(isinstance(builder.traced[x][d], int) for d in axes) else None


def _shape(builder: Builder, x: Node, axes: list[int], keep: bool) -> torch.Size:
    sizes = [1 if d in axes else s for d, s in enumerate(builder.traced[x])]
    return torch.Size(sizes if keep else [s for d, s in enumerate(sizes) if d not in axes])


def _reduced(builder: Builder, x: Node, operator: str, axes: list[int], keep: bool) -> Mix:
    """A mean or a sum over some axes."""
    function: Callable[..., Tensor] = getattr(torch, operator)

    def run(a: Tensor, *_: Any) -> Tensor:
        return function(a, axes, keepdim=keep)

    node = Mix(run, (x, axes, keep), operator=operator, nonnegative=x.nonnegative, helper=True)
    node.operand, node.map = x, Averaging(run, lambda a: a.numel() / run(a).numel())
    node.weight = lambda scope: torch.ones((), dtype=torch.float64)
    builder.add(node, _shape(builder, x, axes, keep))
    node.count = builder.fewer(x, node)
    return node


def _activated(
    builder: Builder,
    x: Node,
    operator: str,
    function: Callable[[Tensor], Tensor],
    nonnegative: bool,
    exponent: float = 2,
) -> Gate:
    args = (x, exponent) if operator == "pow" else (x,)
    node = Gate(lambda a, *_: function(a), args, operator=operator, nonnegative=nonnegative, helper=True)
    node.operand, node.gate = x, "other"
    builder.add(node, builder.traced[x])
    return node


def _expanded(builder: Builder, narrow: Node, like: Node) -> Node:
    shape = [builder.size(s) for s in builder.traced[like]]
    wire = Wire(Tensor.expand, (narrow, shape), operator="expand", nonnegative=narrow.nonnegative, helper=True)
    return builder.add(wire, builder.traced[like])
