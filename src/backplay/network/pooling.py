"""Averages, interpolation and maxima: mix and max nodes (S3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.builder import Builder, Call, flat, lowers
from backplay.network.choice import bound, larger
from backplay.network.linear import Averaging, Resampling
from backplay.network.nodes import Max, Mix, Node, Ref


@lowers(*operators.AVERAGES)
def average(builder: Builder, call: Call) -> Node | None:
    x = call.args[0]
    if any(isinstance(a, (Node, Ref)) for a in flat(call.args[1:])):
        return None
    node = Mix(call.function, call.args, operator=call.operator, nonnegative=x.nonnegative)
    node.operand = x
    node.map = Averaging(lambda a: call.function(a, *call.args[1:]), lambda a: _predecessors(call, a))
    node.weight = lambda scope: torch.ones((), dtype=torch.float64)
    return builder.add(node)


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


@lowers(*operators.RESAMPLINGS)
def resampling(builder: Builder, call: Call) -> Node | None:
    x = call.args[0]
    if any(isinstance(a, (Node, Ref)) for a in flat(call.args[1:])):
        return None
    sizes = [int(s) for s in builder.traced[x][2:]]
    matrices: list[Tensor] = []
    for axis, size in enumerate(sizes):
        # a channel for each input position of this axis, constant along the others: the response is the matrix
        probe = torch.eye(size, dtype=torch.float64).view(
            [1, size] + [size if a == axis else 1 for a in range(len(sizes))]
        )
        probe = probe.expand(1, size, *sizes)
        response = call.function(probe, *call.args[1:])[0]
        matrices.append(response.movedim(axis + 1, 1).flatten(2)[:, :, 0].T.contiguous())
    entries = torch.cat([m.flatten() for m in matrices])
    node = Mix(call.function, call.args, operator=call.operator, nonnegative=x.nonnegative)
    node.operand, node.map = x, Resampling(tuple((m.shape[0], m.shape[1]) for m in matrices))
    node.weight = lambda scope: entries.to(scope[x])
    return builder.add(node)


@lowers("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(builder: Builder, call: Call) -> Any:
    x = call["self"]
    dims = 1 if "1d" in call.operator else 3 if "3d" in call.operator else 2
    pool = getattr(torch.nn.functional, f"max_pool{dims}d")
    geometry = {k: call[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")}
    geometry["stride"] = geometry["stride"] or None
    node = Max(lambda a: pool(a, **geometry), (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _flat_planes(pool(a, **geometry, return_indices=True)[1], a, dims)
    shape = call.node.meta["val"]
    builder.add(node, shape[0].shape if isinstance(shape, (tuple, list)) else shape.shape)
    return [lambda: node] if "indices" in call.operator else node


def _flat_planes(index: Tensor, x: Tensor, dims: int) -> Tensor:
    """Indices within each plane of the last `dims` axes, as indices into the whole tensor."""
    plane = x[0, 0].numel() if x.ndim == dims + 2 else x[0].numel()
    planes = torch.arange(x.numel() // plane, device=x.device) * plane
    return index + planes.view(list(x.shape[:-dims]) + [1] * dims)


@lowers("adaptive_max_pool2d", "adaptive_max_pool1d", "adaptive_max_pool3d")
def adaptive_max_pool(builder: Builder, call: Call) -> list[Callable[[], Node]]:
    x, dims = call["self"], int(call.operator[-2])
    function, size = call.function, call["output_size"]
    node = Max(lambda a: function(a, size)[0], (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _flat_planes(function(a, size)[1], a, dims)
    builder.add(node, call.node.meta["val"][0].shape)
    return [lambda: node]


@lowers("amax", "max")
def reduce_max(builder: Builder, call: Call) -> Any:
    x = call["self"]
    if isinstance(call.get("other"), Node):
        return maximum(builder, call)
    axes = call.get("dim", None)
    if axes is None or axes == []:
        return None
    axes = [axes] if isinstance(axes, int) else list(axes)
    keep = bool(call.get("keepdim", False))
    node = Max(lambda a: torch.amax(a, axes, keep), (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: first_winner(a, axes, keep)
    pair = call.operator == "max"
    builder.add(node, call.node.meta["val"][0].shape if pair else None)
    return [lambda: node] if pair else node


def first_winner(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Flat index of the first maximum over `axes` (argmax over equal values: the smallest index)."""
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    ties = x == x.amax(axes, keepdim=True)
    return torch.where(ties, index, x.numel()).amin(axes, keepdim=keep)


@lowers("maximum", "fmax")
def maximum(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[:2]
    if not isinstance(left, Node) or not isinstance(right, Node):
        live, limit = (left, right) if isinstance(left, Node) else (right, left)
        return bound(builder, call, live, limit, above=False)
    left, right = builder.expand(left, call.node), builder.expand(right, call.node)
    if left.carries != right.carries:
        return larger(builder, call, left, right)
    nonnegative = left.nonnegative or right.nonnegative
    return builder.add(Max(torch.maximum, (left, right), operator=call.operator, nonnegative=nonnegative))
