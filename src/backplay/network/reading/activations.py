"""Activations: one operator, or several that spell one function of a tensor (S3a)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.elementwise import ancestors, between, common_ancestor, is_copy, is_nonnegative, same
from backplay.network.forms import is_softplus
from backplay.network.nodes import Diagonal, Gate, Node, Oracle, Ref, Scope, Sum
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, reading
from backplay.network.reading.spelled_norms import literal_scale, unexpanded


@reading
def gate(builder: Builder, call: Call) -> Node | None:
    """An activation by its name; `exp` of a log-softmax is a softmax."""
    operand, facts = call.args[0], operators.meaning(call.operator)
    if not isinstance(operand, Node) or has_live_options(builder, call):
        return None
    if call.operator == "exp" and operand.operator in ("log_softmax", "_log_softmax"):
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


def read_multiplier(left: Node, right: Node, z: Node) -> tuple[Any, ...] | None:
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
    if not isinstance(difference, Sum):
        return None
    for x, shift in (difference.inputs, difference.inputs[::-1]):
        if literal_scale(shift) != -1 or unexpanded(shift.inputs[0]) not in builder.log_sums:
            continue
        log_sum = unexpanded(shift.inputs[0])
        summed, axis = builder.log_sums[log_sum]
        shape = [1 if d == axis else size for d, size in enumerate(builder.traced[x])]
        if same(summed, x) and list(builder.traced[log_sum]) == shape:
            return builder.add(Oracle(torch.softmax, (x, axis), "softmax", nonnegative=True))
    return None
