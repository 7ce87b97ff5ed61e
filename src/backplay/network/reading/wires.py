"""Wires: what moves elements and what it fills in (S3, S3d, S3e)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from backplay.entry import place
from backplay.errors import CaptureError
from backplay.network import operators
from backplay.network.nodes import Diagonal, Fill, Node, Ref, leaves, mapped
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, reading
from backplay.network.reading.reach import random_forward
from backplay.network.wires import Wire


@reading
def wire(builder: Builder, call: Call) -> Node | Ref:
    """An operator that moves elements; a row that is constant in every sample is a constant."""
    if call.operator == "select" and _is_constant_row(builder, call):
        return builder.oracle(call)
    if operators.meaning(call.operator).dropout and call.get("train", call.get("training", False)):
        raise CaptureError(random_forward(place(builder.spot(call.node))))
    return _moved(builder, call, call.function, _marked(call))


def _marked(call: Call) -> tuple[Any, ...]:
    """Arguments, with the numbers that the operator fills in marked as such."""
    names = operators.meaning(call.operator).fills
    return tuple(
        Fill(a) if name in names and isinstance(a, (int, float)) else a
        for name, a in zip(call.named, call.args, strict=False)
    )


def _moved(builder: Builder, call: Call, function: Callable[..., Tensor], args: tuple[Any, ...]) -> Node:
    """The wire that runs a function on these arguments."""
    args = with_detached(builder, args)
    given, facts = list(leaves(args)), operators.meaning(call.operator)
    floating = [a for a in given if isinstance(a, Ref) and builder.is_floating(a) and not builder.is_empty(a)]
    fills = [a.value for a in given if isinstance(a, Fill)]
    sources = [*(a for a in given if isinstance(a, Node)), *floating]
    # -inf is put before a maximum and is no element (S3e)
    least = min((0 if facts.pads and f == -torch.inf else f for f in fills), default=0)
    node = Wire(
        function,
        args,
        call.operator,
        constants=bool(floating) or bool(fills) or facts.sparse,
        pads=facts.pads and fills == [0],
        nonnegative=all(map(builder.is_nonnegative, sources)) and least >= 0,
    )
    return builder.add(node)


def with_detached(builder: Builder, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with masks, indices and detached values as constants: they choose or end mass (S3d, S3f).

    Where nothing else among the arguments carries mass they stay as they are.
    """

    def is_detached(a: Any) -> bool:
        return isinstance(a, Node) and (a in builder.not_floating or not a.carries)

    def constant(a: Any) -> Any:
        if not is_detached(a):
            return a
        return builder.detach(a, torch.empty(1, dtype=torch.bool if a in builder.not_floating else None))

    carried = any(isinstance(a, Node) and not is_detached(a) for a in leaves(args))
    return mapped(args, constant) if carried else args


def _is_constant_row(builder: Builder, call: Call) -> bool:
    """Whether a row is read that a concatenation took from a constant, such as the class token again (S2).

    Nothing lives in it, so it may be taken from any sample: TimesFormer reads the first rows of all frames.
    """
    node: Node = call["self"]
    dim, index = call["dim"], call["index"]
    dim = dim % len(builder.traced[node])
    while not (isinstance(node, Wire) and node.facts.reading == "concatenation"):
        other = isinstance(node, Wire) and node.operator == "slice" and len(node.args) > 1 and node.args[1] != dim
        if isinstance(node, Diagonal) or other or (isinstance(node, Wire) and node.facts.dropout):
            below = node.carriers[0]
        else:
            return False
        if len(builder.traced[below]) != len(builder.traced[node]):
            return False
        node = below
    parts: list[Any] = node.args[0]
    axis: int = node.args[1] if len(node.args) > 1 else 0
    if axis % len(builder.traced[node]) != dim or not isinstance(index, int) or index < 0:
        return False
    for part in parts:
        size = builder.traced_shape(part)[dim]
        if not isinstance(size, int):
            return False
        if index < size:
            return isinstance(part, Ref)
        index -= size
    return False


# ---------------------------------------------------------------- with what they fill in written out


@reading
def padding(builder: Builder, call: Call) -> Node:
    """Constant padding; reflections and the like move elements alone."""
    if call.get("mode", "constant") != "constant":
        return _moved(builder, call, call.function, call.args)
    return _moved(builder, call, pad, (call["self"], call["pad"], Fill(call.get("value", 0.0))))


def pad(x: Tensor, widths: list[int], value: float) -> Tensor:
    """Constants around the last axes, widths as torch orders them."""
    return torch.nn.functional.pad(x, widths, "constant", value)


def zero_padded(
    builder: Builder, x: Node, widths: list[int], shape: torch.Size, operator: str = "pad", helper: bool = False
) -> Node:
    """Zeros around the last axes of a tensor, in front of an operator that takes them as part of it."""
    node = Wire(
        pad, (x, widths, Fill(0.0)), operator, constants=True, pads=True, nonnegative=x.nonnegative, helper=helper
    )
    return builder.add(node, shape)


@reading
def triangle(builder: Builder, call: Call) -> Node:
    """`tril` and `triu`: a constant mask, zeros elsewhere."""
    function = torch.tril if call.operator == "tril" else torch.triu

    def masked(x: Tensor, diagonal: int, fill: float) -> Tensor:
        inside = function(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device), diagonal)
        return torch.where(inside, x, fill)

    return _moved(builder, call, masked, (call["self"], call.get("diagonal", 0), Fill(0.0)))


@reading
def columns(builder: Builder, call: Call) -> Node:
    """`im2col`, which pads with zeros first."""
    kernel, dilation, padding, stride = (list(call[k]) for k in ("kernel_size", "dilation", "padding", "stride"))
    if not any(padding):
        return _moved(builder, call, call.function, call.args)
    widths = [w for p in reversed(padding * (2 // len(padding))) for w in (p, p)]

    def unfolded(x: Tensor, fill: float) -> Tensor:
        return torch.ops.aten.im2col(pad(x, widths, fill), kernel, dilation, [0, 0], stride)

    return _moved(builder, call, unfolded, (call["self"], Fill(0.0)))


# ---------------------------------------------------------------- shapes, copies and parts


@reading
def concatenation(builder: Builder, call: Call) -> Node | Ref:
    """An empty part holds no element, and what leads to it nothing that counts."""
    parts = [a for a in call.args[0] if not builder.is_empty(a)]
    return wire(builder, replace(call, args=(parts or call.args[0], *call.args[1:])))


@reading
def squeeze(builder: Builder, call: Call) -> Node:
    """A batch of one sample keeps its axis: what was squeezed when the model was followed is squeezed."""
    return reshaped(builder, call, call["self"])


def reshaped(builder: Builder, call: Call, operand: Node) -> Node:
    """The operand in the shape that the call had when the model was followed."""
    args = operand, builder.shape_of(call.node)
    wire = Wire(Tensor.reshape, args, "reshape", nonnegative=operand.nonnegative)
    return builder.add(wire)


@reading
def shaped_like(builder: Builder, call: Call) -> Node | Ref:
    """The other operand gives its shape alone; what is shaped may well be constant."""
    operand = call.args[0]
    if not isinstance(operand, Node):
        return builder.run_later(call.node, blank=1)
    if call.operator == "expand_as":
        return builder.expand(operand, call.node)
    return reshaped(builder, call, operand)


@reading
def converted(builder: Builder, call: Call) -> Node | Ref:
    """The other operand gives its precision alone."""
    operand, others = call.args[0], [a for a in call.args[1:] if isinstance(a, Node)]
    if not isinstance(operand, Node):
        return builder.run_later(call.node, blank=1)
    if others:
        args = operand, builder.values_of(call.node.meta["val"].dtype)
        node = Wire(Tensor.to, args, call.operator, nonnegative=operand.nonnegative)
        return builder.add(node)
    return wire(builder, call)


@reading
def copied(builder: Builder, call: Call) -> Node | Ref:
    """What is copied over a tensor takes its place, in its shape."""
    if isinstance(call["src"], Node):
        return builder.expand(call["src"], call.node)
    return builder.in_place_of(call, Tensor.expand, call["src"], builder.shape_of(call.node))


@reading
def filled(builder: Builder, call: Call) -> Ref | None:
    """A tensor that is filled with a number is a constant of its shape."""
    value = call.get("value", 0.0)
    if isinstance(value, Node):
        return None

    def full(like: Tensor, shape: list[int], number: Any) -> Tensor:
        return like.new_zeros(shape) + number

    return builder.in_place_of(call, full, builder.empty_like(call.node), builder.shape_of(call.node), value)


@reading
def split(builder: Builder, call: Call) -> list[Callable[[], Node]]:
    """Several outputs: a wire for each one that is used."""

    def part(index: int) -> Node:
        node = Wire(
            lambda *args: call.function(*args)[index],
            call.args,
            call.operator,
            nonnegative=all(a.nonnegative for a in leaves(call.args) if isinstance(a, Node)),
        )
        return builder.add(node)

    return [partial(part, index) for index in range(len(call.node.meta["val"]))]
