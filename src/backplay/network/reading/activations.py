"""Activations: one operator, or several that spell one function of a tensor (S3a)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.elementwise import ancestors, between, common_ancestor, is_copy, is_nonnegative, same
from backplay.network.forms import is_softplus
from backplay.network.nodes import Diagonal, Gate, Mix, Node, Oracle, Ref, Scope, Sum
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, reading
from backplay.network.reading.spelled_norms import literal_scale, unexpanded
from backplay.network.wires import Wire


@reading
def gate(builder: Builder, call: Call) -> Node | None:
    """An activation by its name; `exp` of a log-softmax is a softmax."""
    operand, facts = call.args[0], operators.meaning(call.operator)
    if not isinstance(operand, Node) or has_live_options(builder, call):
        return None
    if call.operator == "exp" and operand.operator in operators.LOG_SOFTMAX:
        softmax = Oracle(torch.softmax, operand.args[:2], "softmax", nonnegative=True)
        return builder.add(softmax)
    if call.operator == "exp" and (softmax := _softmax_of_difference(builder, operand)) is not None:
        return softmax
    options = {k: v for k, v in call.named.items() if v is not operand}
    if call.operator == "relu6":
        options = {"min_val": 0.0, "max_val": 6.0}
    floor = options.get("min_val", options.get("min"))
    node = Gate(
        *call.itself,
        operand=operand,
        gate=facts.gate,
        options=options,
        nonnegative=facts.nonnegative or builder.is_nonnegative(floor),
    )
    return builder.add(_softplus(builder, node) if call.operator in ("log", "log1p") else node)


def has_live_options(builder: Builder, call: Call) -> bool:
    """Whether the numbers of an activation, such as its bounds, depend on the input."""
    return any(isinstance(a, Node) or a in builder.detached for a in call.args[1:])


def _softplus(builder: Builder, node: Gate) -> Gate:
    """A logarithm that ends the spelling `log(1 + exp z)` makes it that gate (S3a)."""
    for z in ancestors(node)[2:]:
        if builder.decide(lambda constants, z=z: is_softplus(node, z, constants)):
            options = {"beta": 1.0, "threshold": math.inf}
            return replace(node, operand=z, gate="softplus", nonnegative=True, options=options)
    return node


@reading
def power(builder: Builder, call: Call) -> Node | None:
    """`base ^ exponent` with one live operand, or both functions of one tensor."""
    base, exponent = call.args[:2]
    live = [a for a in (base, exponent) if isinstance(a, Node)]
    if len(live) == 2:
        common = common_ancestor(*live)
        return None if common is None else composite(builder, call, common, None)
    even = isinstance(exponent, (int, float)) and exponent % 2 == 0
    node = Gate(
        call.function,
        call.args,
        "pow",
        operand=live[0],
        gate="other",
        nonnegative=even or (isinstance(base, (int, float)) and base >= 0),
    )
    return builder.add(node)


@reading
def softmax(builder: Builder, call: Call) -> Node:
    return builder.add(Oracle(call.function, call.args, "softmax", nonnegative=True))


@reading
def detached(builder: Builder, call: Call) -> Ref:
    return builder.oracle(call)


# ---------------------------------------------------------------- composites


def composite(
    builder: Builder,
    call: Call,
    operand: Node,
    factors: tuple[Any, ...] | None,
    behind: tuple[Callable[[Scope], Tensor], ...] = (),
) -> Gate:
    """An elementwise function of one tensor that is spelled out in several operators is one gate (S3a)."""
    draft = Gate(*call.itself, operand=operand, gate="composite", factors=factors, behind=behind)
    fleeting = any(inner.fleeting for inner in between(draft, operand))
    nonnegative = builder.decide(lambda constants: is_nonnegative(draft, constants))
    return builder.add(replace(draft, fleeting=fleeting, nonnegative=nonnegative))


def factors_beside(left: Node, right: Node, z: Node) -> tuple[Any, ...] | None:
    """The functions and constants that `z` is multiplied by in a product; None where it is no factor of it."""
    for multiple, function in ((left, right), (right, left)):
        parts = _parts(multiple, z)
        if parts is not None:
            return (*parts, function)
    return None


def _parts(node: Node, z: Node) -> tuple[Any, ...] | None:
    """What `z` is multiplied by to give a node; None if that is no product with `z`."""
    if node is z:
        return ()
    if is_copy(node):
        return _parts(node.inputs[0], z)
    if isinstance(node, Diagonal) and node.offset is None and node.scale is not None:
        below = _parts(node.operand, z)
        return None if below is None else (*below, node.scale)
    if isinstance(node, Gate) and node.operand is z and node.factors is not None:
        return (*node.factors, *node.behind)
    return None


def _softmax_of_difference(builder: Builder, difference: Node) -> Node | None:
    """`exp(x − log Σ exp x)` is softmax as well."""
    for x, taken in _differences(difference):
        summed, axis = _log_sum(builder, taken) or (None, 0)
        shape = [1 if d == axis else size for d, size in enumerate(builder.traced[x])]
        if summed is not None and same(summed, x) and list(builder.traced[unexpanded(taken)]) == shape:
            scores = unshifted(builder, x, axis)
            return builder.add(Oracle(torch.softmax, (scores, axis), "softmax", nonnegative=True))
    return None


def _differences(node: Node) -> Iterator[tuple[Node, Node]]:
    """`a, b` of a node that is `a − b`."""
    if isinstance(node, Sum):
        for kept, shift in (node.inputs, node.inputs[::-1]):
            if literal_scale(shift) == -1:
                yield kept, shift.inputs[0]


def _log_sum(builder: Builder, node: Node) -> tuple[Node, int] | None:
    """What a node sums the exponentials of, and along which axis, if it is `log Σ exp x` or `m + log Σ exp(x − m)`."""
    node = _behind_views(node)
    if node in builder.log_sums:
        return builder.log_sums[node]
    if isinstance(node, Gate) and node.operator == "log":
        total = _behind_views(node.operand)
        powers = total.operand if isinstance(total, Mix) and total.operator == "sum" else None
        axes = total.args[1] if powers is not None and len(total.args) > 1 else None
        if isinstance(powers, Gate) and powers.operator == "exp" and isinstance(axes, (list, tuple)) and len(axes) == 1:
            return powers.operand, axes[0] % len(builder.traced[powers])
    if isinstance(node, Sum):
        for part, largest in (node.inputs, node.inputs[::-1]):
            summed, axis = _log_sum(builder, part) or (None, 0)
            for x, taken in () if summed is None else _differences(summed):
                if same(_behind_views(taken), _behind_views(largest)):
                    return x, axis
    return None


def _behind_views(node: Node) -> Node:
    """A node before it was given further axes: `unsqueeze` and `expand` repeat its values."""
    while isinstance(node, Wire) and node.operator in ("unsqueeze", "expand"):
        node = node.inputs[0]
    return node


def unshifted(builder: Builder, scores: Node, axis: int) -> Node:
    """Scores without what is taken off all of them along an axis, such as the largest: softmax does not see it."""
    if not isinstance(scores, Sum):
        return scores
    from_the_back = axis if axis < 0 else axis - len(builder.traced[scores])
    for kept, shift in (scores.inputs, scores.inputs[::-1]):
        narrow = builder.traced[unexpanded(shift.inputs[0] if literal_scale(shift) is not None else shift)]
        if len(narrow) < -from_the_back or narrow[from_the_back] == 1:
            return kept
    return scores
