"""From the calls of an exported program to nodes: gates here, each other family in a module of its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from backplay.network import (
    affine,
    arithmetic,
    attention,
    choice,
    mixing,
    norms,
    operators,
    pooling,
    products,
    spelled,
    statistics,
    wires,
)
from backplay.network.builder import LOWERINGS, Builder, Call, lowers
from backplay.network.elementwise import ancestors
from backplay.network.forms import is_softplus
from backplay.network.nodes import Gate, Node, Oracle, Ref

# each registers its operators when it is imported
FAMILIES = (wires, affine, arithmetic, attention, mixing, norms, pooling, products, spelled, statistics)


def lower(builder: Builder, call: Call) -> Any:
    """The node of a live call; an operator without a kind becomes an oracle that must not carry mass."""
    value = call.node.meta.get("val")
    if isinstance(value, Tensor) and operators.counts(value.dtype):
        return builder.oracle(call)
    found = LOWERINGS.get(call.operator)
    result = found(builder, call) if found else None
    if result is None:
        unsupported = call.operator not in operators.STEPS
        return builder.add(Oracle(call.function, call.args, operator=call.operator, unsupported=unsupported))
    return result


@lowers("detach")
def detached(builder: Builder, call: Call) -> Ref:
    return builder.oracle(call)


@lowers(*operators.GATES)
def gate(builder: Builder, call: Call) -> Node | None:
    operand = call.args[0]
    if not isinstance(operand, Node):
        return None
    if any(isinstance(a, Node) or a in builder.told for a in call.args[1:]):
        return pooling.clamp(builder, call) if operators.GATES[call.operator] == "clamp" else None
    if call.operator == "exp" and operand.operator in ("log_softmax", "_log_softmax"):
        return builder.add(Oracle(torch.softmax, operand.args[:2], operator="softmax", nonnegative=True))
    node = Gate(call.function, call.args, operator=call.operator)
    node.operand, node.gate = operand, operators.GATES[call.operator]
    node.options = {k: v for k, v in call.named.items() if v is not operand}
    if call.operator == "relu6":
        node.options = {"min_val": 0.0, "max_val": 6.0}
    floor = node.options.get("min_val", node.options.get("min"))
    node.nonnegative = call.operator in operators.NONNEGATIVE_OPERATORS or builder.is_nonnegative(floor)
    builder.add(node)
    return _softplus(builder, node) if call.operator in ("log", "log1p") else node


def _softplus(builder: Builder, node: Gate) -> Gate:
    """A logarithm that ends the spelling `log(1 + exp z)` makes it that gate (S3a)."""
    for z in ancestors(node)[2:]:
        if builder.decide(lambda constants, z=z: is_softplus(node, z, constants)):
            node.operand, node.gate, node.nonnegative = z, "softplus", True
            node.options, node.ancestry = {"beta": 1.0, "threshold": math.inf}, None
            return node
    return node


@lowers("where", "masked_fill")
def chosen(builder: Builder, call: Call) -> Node:
    """By a constant mask a wire, by a live one a choice."""
    found = choice.choose(builder, call)
    return wires.wire(builder, call) if found is None else found


@lowers("softmax", "_softmax")
def softmax(builder: Builder, call: Call) -> Node:
    return builder.add(Oracle(call.function, call.args, operator="softmax", nonnegative=True))
