"""Choices: `where`, and maxima, minima and clamps against constants (S3a, S3f)."""

from __future__ import annotations

from typing import Any

import torch

from backplay.network.arithmetic import composite
from backplay.network.builder import Builder, Call
from backplay.network.elementwise import common_ancestor
from backplay.network.nodes import Gate, Node, Oracle, Select


def choose(builder: Builder, call: Call) -> Node | None:
    """`where` and `masked_fill` by a live mask: a gate if all rests on one tensor, else a choice; None otherwise."""
    if call.operator == "where":
        mask, chosen, other = (*call.args, None, None)[:3]
    else:
        other, mask, chosen = call.args[:3]
    if not isinstance(mask, Node) or chosen is None:
        return None
    if not isinstance(chosen, Node) and not isinstance(other, Node):  # a step from one constant to another
        return builder.add(Oracle(call.function, call.args, operator=call.operator))
    live = [a for a in (mask, chosen, other) if isinstance(a, Node)]
    common = common_ancestor(*live) if len(live) > 1 else None
    if common is not None:
        return composite(builder, call, common, None)
    sides = [builder.expand(a, call.node) if isinstance(a, Node) else a for a in (chosen, other)]
    node = Select(_where, (mask, *sides), operator=call.operator)
    node.mask, node.sides = mask, (sides[0], sides[1])
    node.nonnegative = all(builder.is_nonnegative(side) for side in sides)
    return builder.add(node)


def _where(mask: torch.Tensor, chosen: Any, other: Any) -> torch.Tensor:
    like = next(side for side in (chosen, other) if isinstance(side, torch.Tensor))
    sides = [side if isinstance(side, torch.Tensor) else torch.as_tensor(side).to(like) for side in (chosen, other)]
    return torch.where(mask, *sides)


def bound(builder: Builder, call: Call, live: Node, limit: Any, above: bool) -> Node:
    """The maximum or minimum of a tensor and a constant is a gate (S3a)."""
    live = builder.expand(live, call.node)
    function = torch.minimum if above else torch.maximum
    node = Gate(lambda x, c: function(x, torch.as_tensor(c).to(x)), (live, limit), operator=call.operator)
    node.operand, node.gate, node.options = live, "clamp", {"max" if above else "min": limit}
    node.nonnegative = (live.nonnegative or not above) and builder.is_nonnegative(limit)
    return builder.add(node)


def detached_rival(builder: Builder, call: Call, left: Node, right: Node, least: bool) -> Node:
    """The maximum or minimum of a live and a detached tensor: the latter is a terminal (S3d)."""
    function, name = (torch.le, "le") if least else (torch.ge, "ge")
    wins = builder.add(Oracle(function, (left, right), operator=name), builder.traced[left])
    node = Select(_where, (wins, left, right), operator=call.operator)
    node.mask, node.sides = wins, (left, right)
    node.nonnegative = (all if least else any)((left.nonnegative, right.nonnegative))
    return builder.add(node)
