"""Averages and maxima: mix and max nodes (S3)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.builder import Builder, Call, flat, lowers
from backplay.network.choice import bound, detached_rival
from backplay.network.linear import Averaging
from backplay.network.nodes import Max, Mix, Node, Oracle, Ref


@lowers(*operators.AVERAGES)
def average(builder: Builder, call: Call) -> Node | None:
    x = call.args[0]
    if any(isinstance(a, (Node, Ref)) for a in flat(call.args[1:])):
        return None
    node = Mix(call.function, call.args, operator=call.operator, nonnegative=x.nonnegative)
    node.operand = x
    node.map = Averaging(lambda a: call.function(a, *call.args[1:]), lambda a: _predecessors(call, a))
    node.weight = lambda scope: torch.ones((), dtype=torch.float64)
    builder.add(node)
    node.count = builder.fewer(x, node)
    return node


def _predecessors(call: Call, x: Tensor) -> Tensor | float:
    """How many elements each output of a mean, sum or average pooling is made of."""
    function = torch.nn.functional
    if "adaptive" in call.operator:
        counts = torch.ones((), dtype=x.dtype, device=x.device)
        sizes = call["output_size"]
        for size, out in zip(x.shape[-len(sizes) :], sizes, strict=True):
            window = torch.tensor([-(-(k + 1) * size // out) - k * size // out for k in range(out)])
            counts = counts[..., None] * window.to(counts)
        return counts
    if call.operator in ("mean", "sum"):
        return x.numel() / call.function(x, *call.args[1:]).numel()
    kernel, stride = call["kernel_size"], call["stride"] or call["kernel_size"]
    padding, ceil = call["padding"], call["ceil_mode"]
    ones = torch.ones_like(x)
    if call.operator == "avg_pool1d":
        flat = (1, *kernel), (1, *stride), (0, *padding)
        return function.avg_pool2d(ones[..., None, :], *flat, ceil, True, 1)[..., 0, :]
    return getattr(function, call.operator)(ones, kernel, stride, padding, ceil, True, 1)


@lowers("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(builder: Builder, call: Call) -> Any:
    x = call["self"]
    dims = 1 if "1d" in call.operator else 3 if "3d" in call.operator else 2
    pool = getattr(torch.nn.functional, f"max_pool{dims}d")
    geometry = {k: call[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")}
    geometry["stride"] = geometry["stride"] or None
    node = Max(lambda a: pool(a, **geometry), (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _flat_planes(pool(a, **geometry, return_indices=True)[1], a, dims)
    return _chosen(builder, call, node)


def _flat_planes(index: Tensor, x: Tensor, dims: int) -> Tensor:
    """Indices within each plane of the last `dims` axes, as indices into the whole tensor."""
    plane = x[0, 0].numel() if x.ndim == dims + 2 else x[0].numel()
    planes = torch.arange(x.numel() // plane, device=x.device) * plane
    return index + planes.view(list(x.shape[:-dims]) + [1] * dims)


@lowers("adaptive_max_pool2d", "adaptive_max_pool1d", "adaptive_max_pool3d")
def adaptive_max_pool(builder: Builder, call: Call) -> Any:
    x, dims = call["self"], int(call.operator[-2])
    function, size = call.function, call["output_size"]
    node = Max(lambda a: function(a, size)[0], (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _flat_planes(function(a, size)[1], a, dims)
    return _chosen(builder, call, node)


def _chosen(builder: Builder, call: Call, node: Max) -> Any:
    """The values, and beside them, where the operator gives both, the indices: these are told."""
    traced = call.node.meta["val"]
    if not isinstance(traced, (tuple, list)):
        return builder.add(node)
    builder.add(node, traced[0].shape)

    def indices() -> Ref:
        oracle = Oracle(lambda *args: call.function(*args)[1], call.args, operator=call.operator)
        return builder.tell(builder.add(oracle, traced[1].shape), traced[1])

    return [lambda: node, indices]


@lowers("amax", "max", "amin", "min")
def extremum(builder: Builder, call: Call) -> Any:
    """Over some dimensions; over all of them it would compare the samples of a batch, which their layout shows."""
    x = call["self"]
    if call.get("other") is not None:
        return duel(builder, call)
    axes = call.get("dim")
    axes = [axes] if isinstance(axes, int) else list(axes or range(len(builder.traced[x])))
    keep, least = bool(call.get("keepdim", False)), call.operator in ("amin", "min")
    function = torch.amin if least else torch.amax
    node = Max(lambda a: function(a, axes, keep), (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner, node.least = lambda a: first_winner(-a if least else a, axes, keep), least
    return _chosen(builder, call, node)


def first_winner(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Flat index of the first maximum over `axes` (argmax over equal values: the smallest index)."""
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    ties = x == x.amax(axes, keepdim=True)
    return torch.where(ties, index, x.numel()).amin(axes, keepdim=keep)


@lowers("maximum", "fmax", "minimum", "fmin")
def duel(builder: Builder, call: Call) -> Node | None:
    # a detached rival is no constant bound: mass that comes to it has come to a terminal (S3d)
    left, right = cast("list[Any]", [builder.told.get(a, a) if isinstance(a, Ref) else a for a in call.args[:2]])
    if not isinstance(right, Node):
        return bound(builder, call, left, right, above="min" in call.operator)
    if not isinstance(left, Node):
        return bound(builder, call, right, left, above="min" in call.operator)
    left, right = builder.expand(left, call.node), builder.expand(right, call.node)
    least = "min" in call.operator
    decides = all if least else any  # one operand below 0 makes a minimum negative
    if left.carries != right.carries:
        return detached_rival(builder, call, left, right, least)
    node = Max(torch.minimum if least else torch.maximum, (left, right), operator=call.operator)
    node.least, node.nonnegative = least, decides((left.nonnegative, right.nonnegative))
    return builder.add(node)


def clamp(builder: Builder, call: Call) -> Node | None:
    """A clamp with a live bound is a maximum and a minimum."""
    found: Any = call.args[0]
    for name, operator, op in (("min", "maximum", torch.maximum), ("max", "minimum", torch.minimum)):
        limit = call.get(name)
        if limit is not None:
            named = {"self": found, "other": limit}
            found = duel(builder, Call(call.node, operator, op, (found, limit), (), named))
    return found


@lowers("topk", "sort", "msort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin")
def order(builder: Builder, call: Call) -> Any:
    """Order statistics along a dimension: each value is that of one element, as at a maximum."""
    x, rest = call.args[0], call.args[1:]
    if any(isinstance(a, (Node, Ref)) for a in flat(rest)) or not isinstance(call.node.meta["val"], (tuple, list)):
        return None
    dim = call.get("dim", -1)
    node = Max(lambda a: call.function(a, *rest)[0], (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _along(call.function(a, *rest)[1], a, dim)
    return _chosen(builder, call, node)


def _along(index: Tensor, x: Tensor, dim: int) -> Tensor:
    """Indices along a dimension, as indices into the whole tensor."""
    numbers, dropped = torch.arange(x.numel(), device=x.device).view(x.shape), index.ndim < x.ndim
    found = torch.take_along_dim(numbers, index.unsqueeze(dim) if dropped else index, dim)
    return found.squeeze(dim) if dropped else found
