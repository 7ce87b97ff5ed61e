"""From the calls of an exported program to nodes: gates and wires here, each other family in a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.entry import place
from backplay.errors import CaptureError
from backplay.network import affine, arithmetic, attention, choice, norms, operators, pooling, products, statistics
from backplay.network.builder import LOWERINGS, Builder, Call, flat, lowers
from backplay.network.graph import random_forward
from backplay.network.nodes import Gate, Node, Oracle, Ref, Wire

FAMILIES = (
    affine,
    arithmetic,
    attention,
    norms,
    pooling,
    products,
    statistics,
)  # each registers its operators when it is imported


def lower(builder: Builder, call: Call) -> Any:
    """The node of a live call; an operator without a kind becomes an oracle that must not carry mass."""
    found = LOWERINGS.get(call.operator)
    result = found(builder, call) if found else None
    if result is None:
        unsupported = call.operator not in operators.STEPS
        return builder.add(Oracle(call.function, call.args, operator=call.operator, unsupported=unsupported))
    return result


@lowers(*operators.GATES)
def gate(builder: Builder, call: Call) -> Node | None:
    operand = call.args[0]
    if not isinstance(operand, Node):
        return None
    if any(isinstance(a, Node) for a in call.args[1:]):
        return choice.clamp(builder, call) if operators.GATES[call.operator] == "clamp" else None
    if call.operator == "exp" and operand.operator in ("log_softmax", "_log_softmax"):
        return builder.add(Oracle(torch.softmax, operand.args[:2], operator="softmax", nonnegative=True))
    node = Gate(call.function, call.args, operator=call.operator)
    node.operand, node.gate = operand, operators.GATES[call.operator]
    node.options = {k: v for k, v in call.named.items() if v is not operand}
    if call.operator == "relu6":
        node.options = {"min_val": 0.0, "max_val": 6.0}
    floor = node.options.get("min_val", node.options.get("min"))
    node.nonnegative = call.operator in operators.NONNEGATIVE_OPERATORS or builder.is_nonnegative(floor)
    return builder.add(node)


def _is_whole(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(v, Tensor) and not v.is_floating_point() for v in values)


@lowers(*operators.WIRES)
def wire(builder: Builder, call: Call) -> Node:
    read = [n.meta["val"] for n in call.node.all_input_nodes if isinstance(builder.values.get(n), Node)]
    if call.operator == "detach" or any(_is_whole(values) for values in ([call.node.meta["val"]], read)):
        # out of the gradient, a whole number, or chosen by one: the walk is told it and does not come here (S3d)
        return builder.add(Oracle(call.function, call.args, operator=call.operator))
    if call.operator in operators.DROPOUTS and call.get("train", call.get("training", False)):
        raise CaptureError(random_forward(place(builder.spot(call.node))))
    tensors = [a for a in flat(call.args) if isinstance(a, (Node, Ref))]
    live = [a for a in tensors if isinstance(a, Node)]
    # an empty constant, such as a fresh cache in front of keys and values, adds no element
    floating = [a for a in tensors if isinstance(a, Ref) and builder.is_floating(a) and not builder.is_empty(a)]
    node = Wire(call.function, call.args, operator=call.operator)
    node.pads = call.operator in operators.PADS and call.get("mode", "constant") == "constant"
    node.constants = node.pads or bool(floating) or call.operator in {"masked_fill", "where", "tril", "triu"}
    # a constant row may be negative, so only wires of live non-negative operands and zeros are non-negative
    filled = bool(floating) or bool(call.get("value", 0)) or call.operator in {"masked_fill", "where"}
    node.nonnegative = all(a.nonnegative for a in live) and not filled
    return builder.add(node)


@lowers("where", "masked_fill")
def chosen(builder: Builder, call: Call) -> Node:
    """By a constant mask a wire, by a live one a choice."""
    found = choice.choose(builder, call)
    return wire(builder, call) if found is None else found


@lowers("expand_as", "view_as", "reshape_as")
def shaped_like(builder: Builder, call: Call) -> Node | Ref:
    """The other operand gives its shape alone; what is shaped may well be constant."""
    operand = call.args[0]
    if not isinstance(operand, Node):
        return builder.run_later(call.node, blank=1)
    expands = call.operator == "expand_as"
    move, name = (Tensor.expand, "expand") if expands else (Tensor.reshape, "reshape")
    node = Wire(move, (operand, builder.shape_of(call.node)), operator=name, nonnegative=operand.nonnegative)
    return builder.add(node)


@lowers("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(builder: Builder, call: Call) -> list[Callable[[], Node]]:
    """Several outputs: a wire for each one that is used."""

    def part(index: int) -> Callable[[], Node]:
        def make() -> Node:
            node = Wire(lambda *args: call.function(*args)[index], call.args, operator=call.operator)
            node.nonnegative = all(a.nonnegative for a in node.inputs)
            return builder.add(node)

        return make

    return [part(k) for k in range(len(call.node.meta["val"]))]


@lowers("softmax", "_softmax")
def softmax(builder: Builder, call: Call) -> Node:
    return builder.add(Oracle(call.function, call.args, operator="softmax", nonnegative=True))
