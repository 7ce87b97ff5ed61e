"""Choices: maxima and minima, max pooling, order statistics, `where` and clamps (S3, S3a, S3f)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from backplay.network.choices import Max, Select
from backplay.network.elementwise import common_ancestor
from backplay.network.nodes import Gate, Node, Oracle, Ref
from backplay.network.reading.activations import composite, gate, has_live_options
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, has_tensors, reading
from backplay.network.reading.wires import wire

# ---------------------------------------------------------------- within one tensor


@reading
def max_pool(builder: Builder, call: Call) -> Any:
    dims = 1 if "1d" in call.operator else 3 if "3d" in call.operator else 2
    pool = getattr(torch.nn.functional, f"max_pool{dims}d")
    geometry = {k: call[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")}
    geometry["stride"] = geometry["stride"] or None

    def both(a: Tensor) -> tuple[Tensor, Tensor]:
        values, index = pool(a, **geometry, return_indices=True)
        return values, _flat_planes(index, a, dims)

    return _winners(
        builder,
        call,
        lambda a: pool(a, **geometry),
        lambda a: both(a)[1],
        both=both,
    )


@reading
def adaptive_max_pool(builder: Builder, call: Call) -> Any:
    dims, function, size = int(call.operator[-2]), call.function, call["output_size"]
    return _winners(
        builder, call, lambda a: function(a, size)[0], lambda a: _flat_planes(function(a, size)[1], a, dims)
    )


@reading
def extremum(builder: Builder, call: Call) -> Any:
    """Over some dimensions; over all of them it would compare the samples of a batch, which their layout shows."""
    if call.get("other") is not None:
        return duel(builder, call)
    axes = call.get("dim")
    axes = [axes] if isinstance(axes, int) else list(axes or range(len(builder.traced[call["self"]])))
    keep, least = bool(call.get("keepdim", False)), call.operator in ("amin", "min")
    function = torch.amin if least else torch.amax
    return _winners(
        builder, call, lambda a: function(a, axes, keep), lambda a: _first_winner(-a if least else a, axes, keep), least
    )


@reading
def order(builder: Builder, call: Call) -> Any:
    """Order statistics along a dimension: each value is that of one element, as at a maximum."""
    rest = call.args[1:]
    if has_tensors(rest) or not isinstance(call.node.meta["val"], (tuple, list)):
        return None
    dim = call.get("dim", -1)
    return _winners(
        builder, call, lambda a: call.function(a, *rest)[0], lambda a: _along(call.function(a, *rest)[1], a, dim)
    )


def _winners(
    builder: Builder,
    call: Call,
    function: Callable[[Tensor], Tensor],
    winner: Callable[[Tensor], Tensor],
    least: bool = False,
    both: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> Any:
    """A max node, and beside it, where the operator gives both, the winners' indices as constants."""
    x, traced = call["self"], call.node.meta["val"]
    node = Max(function, (x,), call.operator, winner=winner, both=both, least=least, nonnegative=x.nonnegative)
    if not isinstance(traced, (tuple, list)):
        return builder.add(node)
    builder.add(node, traced[0].shape)

    def indices() -> Ref:
        oracle = Oracle(lambda *args: call.function(*args)[1], call.args, call.operator)
        return builder.detach(builder.add(oracle, traced[1].shape), traced[1])

    return [lambda: node, indices]


def _flat_planes(index: Tensor, x: Tensor, dims: int) -> Tensor:
    """Indices within each plane of the last `dims` axes, as indices into the whole tensor."""
    plane = x[0, 0].numel() if x.ndim == dims + 2 else x[0].numel()
    planes = torch.arange(x.numel() // plane, device=x.device) * plane
    return index + planes.view(list(x.shape[:-dims]) + [1] * dims)


def _first_winner(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Flat index of the first maximum over `axes` (argmax over equal values: the smallest index)."""
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    ties = x == x.amax(axes, keepdim=True)
    return torch.where(ties, index, x.numel()).amin(axes, keepdim=keep)


def _along(index: Tensor, x: Tensor, dim: int) -> Tensor:
    """Indices along a dimension, as indices into the whole tensor."""
    numbers, dropped = torch.arange(x.numel(), device=x.device).view(x.shape), index.ndim < x.ndim
    places = torch.take_along_dim(numbers, index.unsqueeze(dim) if dropped else index, dim)
    return places.squeeze(dim) if dropped else places


# ---------------------------------------------------------------- between two operands


@reading
def duel(builder: Builder, call: Call) -> Node | None:
    """The maximum or minimum of two operands; a constant one makes it a gate, a detached one ends mass (S3d)."""
    left, right = cast("list[Any]", [builder.detached.get(a, a) if isinstance(a, Ref) else a for a in call.args[:2]])
    least = "min" in call.operator
    if not isinstance(right, Node):
        return bound(builder, call, left, right, above=least)
    if not isinstance(left, Node):
        return bound(builder, call, right, left, above=least)
    left, right = builder.expand(left, call.node), builder.expand(right, call.node)
    # one operand below 0 makes a minimum negative
    nonnegative = (all if least else any)((left.nonnegative, right.nonnegative))
    if left.carries != right.carries:
        return detached_rival(builder, call, left, right, nonnegative)
    node = Max(
        torch.minimum if least else torch.maximum, (left, right), call.operator, least=least, nonnegative=nonnegative
    )
    return builder.add(node)


@reading
def clamp(builder: Builder, call: Call) -> Node | None:
    """An activation; with a live bound a maximum and a minimum."""
    clamped: Any = call.args[0]
    if not isinstance(clamped, Node) or not has_live_options(builder, call):
        return gate(builder, call)
    for name, operator, op in (("min", "maximum", torch.maximum), ("max", "minimum", torch.minimum)):
        limit = call.get(name)
        if limit is not None:
            named = {"self": clamped, "other": limit}
            clamped = duel(builder, Call(call.node, operator, op, (clamped, limit), (), named))
    return clamped


def bound(builder: Builder, call: Call, live: Node, limit: Any, above: bool) -> Node:
    """The maximum or minimum of a tensor and a constant is a gate (S3a)."""
    live = builder.expand(live, call.node)
    function = torch.minimum if above else torch.maximum
    node = Gate(
        lambda x, c: function(x, torch.as_tensor(c).to(x)),
        (live, limit),
        call.operator,
        operand=live,
        gate="clamp",
        options={"max" if above else "min": limit},
        nonnegative=(live.nonnegative or not above) and builder.is_nonnegative(limit),
    )
    return builder.add(node)


def detached_rival(builder: Builder, call: Call, left: Node, right: Node, nonnegative: bool) -> Node:
    """The maximum or minimum of a live and a detached tensor: the latter is a terminal (S3d)."""
    function, name = (torch.le, "le") if "min" in call.operator else (torch.ge, "ge")
    wins = builder.add(Oracle(function, (left, right), name), builder.traced[left])
    return _select(builder, call, wins, (left, right), nonnegative)


@reading
def selection(builder: Builder, call: Call) -> Node | Ref:
    """`where` and `masked_fill`: by a constant mask a wire, by a live one a choice."""
    chosen = choose(builder, call)
    return wire(builder, call) if chosen is None else chosen


def choose(builder: Builder, call: Call) -> Node | None:
    """A choice by a live mask: a gate if all rests on one tensor, else a select node; None for a constant mask."""
    if call.operator == "where":
        mask, chosen, other = (*call.args, None, None)[:3]
    else:
        other, mask, chosen = call.args[:3]
    if not isinstance(mask, Node) or chosen is None:
        return None
    if not isinstance(chosen, Node) and not isinstance(other, Node):  # a step from one constant to another
        return builder.add(Oracle(*call.itself))
    live = [a for a in (mask, chosen, other) if isinstance(a, Node)]
    common = common_ancestor(*live) if len(live) > 1 else None
    if common is not None:
        return composite(builder, call, common, None)
    sides = [builder.expand(a, call.node) if isinstance(a, Node) else a for a in (chosen, other)]
    nonnegative = all(builder.is_nonnegative(side) for side in sides)
    return _select(builder, call, mask, (sides[0], sides[1]), nonnegative)


def _select(builder: Builder, call: Call, mask: Node, sides: tuple[Any, Any], nonnegative: bool) -> Node:
    node = Select(_where, (mask, *sides), call.operator, mask=mask, sides=sides, nonnegative=nonnegative)
    return builder.add(node)


def _where(mask: Tensor, chosen: Any, other: Any) -> Tensor:
    like = next(side for side in (chosen, other) if isinstance(side, Tensor))
    sides = [side if isinstance(side, Tensor) else torch.as_tensor(side).to(like) for side in (chosen, other)]
    return torch.where(mask, *sides)
