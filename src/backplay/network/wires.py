"""Wires: what moves elements and what it fills in (S3, S3d, S3e)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from backplay.entry import place
from backplay.errors import CaptureError
from backplay.network import operators
from backplay.network.builder import Builder, Call, flat, lowers
from backplay.network.nodes import Diagonal, Fill, Node, Ref, Wire
from backplay.network.refusals import random_forward


@lowers(*operators.WIRES)
def wire(builder: Builder, call: Call) -> Node | Ref:
    if call.operator == "select" and _is_constant_row(builder, call):
        return builder.oracle(call)
    if call.operator in operators.DROPOUTS and call.get("train", call.get("training", False)):
        raise CaptureError(random_forward(place(builder.spot(call.node))))
    function, args = _SPELLED[call.operator](call) if call.operator in _SPELLED else (call.function, _marked(call))
    args = settled(builder, args)
    leaves = flat(args)
    live = [a for a in leaves if isinstance(a, Node)]
    # an empty constant, such as a fresh cache in front of keys and values, adds no element
    floating = [a for a in leaves if isinstance(a, Ref) and builder.is_floating(a) and not builder.is_empty(a)]
    fills = [a.value for a in leaves if isinstance(a, Fill)]
    node = Wire(function, args, operator=call.operator)
    padding = call.operator in operators.PADS
    node.pads = padding and fills == [0]
    node.constants = bool(floating) or bool(fills) or call.operator in operators.SPARSE
    # -inf is put before a maximum and is no element (S3e)
    least = min((0 if padding and f == -torch.inf else f for f in fills), default=0)
    node.nonnegative = all(map(builder.is_nonnegative, [*live, *floating])) and least >= 0
    return builder.add(node)


def _is_constant_row(builder: Builder, call: Call) -> bool:
    """Whether a row is read that a concatenation took from a constant, such as the class token again (S2).

    Nothing lives in it, so it may be taken from any sample: TimesFormer reads the first rows of all frames.
    """
    node: Node = call["self"]
    dim, index = call["dim"], call["index"]
    dim = dim % len(builder.traced[node])
    while not (isinstance(node, Wire) and node.operator in ("cat", "concat", "concatenate")):
        other = isinstance(node, Wire) and node.operator == "slice" and len(node.args) > 1 and node.args[1] != dim
        if isinstance(node, Diagonal) or other or (isinstance(node, Wire) and node.operator in operators.DROPOUTS):
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
        size = (builder.traced[part] if isinstance(part, Node) else builder.meta[part.name].shape)[dim]
        if not isinstance(size, int):
            return False
        if index < size:
            return isinstance(part, Ref)
        index -= size
    return False


def _marked(call: Call) -> tuple[Any, ...]:
    """Arguments, with the numbers that the operator fills in marked as such."""
    names = operators.FILLS.get(call.operator, ())
    return tuple(
        Fill(a) if name in names and isinstance(a, (int, float)) else a
        for name, a in zip(call.named, call.args, strict=False)
    )


def settled(builder: Builder, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Masks and indices that depend on the input are told: they choose, and carry nothing (S3f).

    So are detached values: mass that comes to them has come to a constant (S3d).
    """

    def told(a: Any) -> bool:
        return isinstance(a, Node) and (a in builder.whole or not a.carries)

    def settle(tree: Any) -> Any:
        if isinstance(tree, (list, tuple)):
            return [settle(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]
        if told(tree):
            return builder.tell(tree, torch.empty(1, dtype=torch.bool if tree in builder.whole else None))
        return tree

    carried = any(isinstance(a, Node) and not told(a) for a in flat(args))
    return tuple(settle(a) for a in args) if carried else args


def _padded(call: Call) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """Constant padding with its value written out; reflections and the like move elements alone."""
    if call.get("mode", "constant") != "constant":
        return call.function, call.args
    fill = Fill(call.get("value", 0.0))
    return pad, (call["self"], call["pad"], fill)


def pad(x: Tensor, widths: list[int], value: float) -> Tensor:
    """Constants around the last axes, widths as torch orders them."""
    return torch.nn.functional.pad(x, widths, "constant", value)


def _triangle(call: Call) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """A triangle is a constant mask."""
    function = torch.tril if call.operator == "tril" else torch.triu

    def masked(x: Tensor, diagonal: int, fill: float) -> Tensor:
        inside = function(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device), diagonal)
        return torch.where(inside, x, fill)

    return masked, (call["self"], call.get("diagonal", 0), Fill(0.0))


def _columns(call: Call) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """`im2col` pads with zeros first."""
    kernel, dilation, padding, stride = (list(call[k]) for k in ("kernel_size", "dilation", "padding", "stride"))
    if not any(padding):
        return call.function, call.args
    widths = [w for p in reversed(padding * (2 // len(padding))) for w in (p, p)]

    def unfolded(x: Tensor, fill: float) -> Tensor:
        padded = torch.nn.functional.pad(x, widths, "constant", fill)
        return torch.ops.aten.im2col(padded, kernel, dilation, [0, 0], stride)

    return unfolded, (call["self"], Fill(0.0))


_SPELLED = {
    "pad": _padded,
    "constant_pad_nd": _padded,
    "tril": _triangle,
    "triu": _triangle,
    "im2col": _columns,
}


@lowers("cat", "concat", "concatenate")
def concatenation(builder: Builder, call: Call) -> Node:
    """An empty part holds no element, and what leads to it nothing that counts."""
    parts = [a for a in call.args[0] if not _empty(builder, a)]
    return wire(builder, replace(call, args=(parts or call.args[0], *call.args[1:])))


def _empty(builder: Builder, part: Node | Ref) -> bool:
    shape = builder.traced[part] if isinstance(part, Node) else builder.meta[part.name].shape
    return any(isinstance(s, int) and s == 0 for s in shape)


@lowers("squeeze", "squeeze_copy")
def squeeze(builder: Builder, call: Call) -> Node:
    """A batch of one sample keeps its axis: what was squeezed when the model was followed is squeezed."""
    return reshaped(builder, call, call["self"])


def reshaped(builder: Builder, call: Call, operand: Node) -> Node:
    """The operand in the shape that the call had when the model was followed."""
    shape = builder.shape_of(call.node)
    return builder.add(Wire(Tensor.reshape, (operand, shape), operator="reshape", nonnegative=operand.nonnegative))


@lowers("expand_as", "view_as", "reshape_as")
def shaped_like(builder: Builder, call: Call) -> Node | Ref:
    """The other operand gives its shape alone; what is shaped may well be constant."""
    operand = call.args[0]
    if not isinstance(operand, Node):
        return builder.run_later(call.node, blank=1)
    if call.operator == "expand_as":
        return builder.expand(operand, call.node)
    return reshaped(builder, call, operand)


@lowers("to", "type_as")
def converted(builder: Builder, call: Call) -> Node | Ref:
    """The other operand gives its precision alone."""
    operand, others = call.args[0], [a for a in call.args[1:] if isinstance(a, Node)]
    if not isinstance(operand, Node):
        return builder.run_later(call.node, blank=1)
    if others:
        args = (operand, builder.lower(call.node.meta["val"].dtype))
        return builder.add(Wire(Tensor.to, args, operator=call.operator, nonnegative=operand.nonnegative))
    return wire(builder, call)


@lowers("copy")
def copied(builder: Builder, call: Call) -> Node | Ref | None:
    """What is copied over a tensor takes its place, in its shape."""
    if isinstance(call["src"], Node):
        return builder.expand(call["src"], call.node)
    return builder.compute(call, Tensor.expand, call["src"], builder.shape_of(call.node))


@lowers("fill", "zero")
def filled(builder: Builder, call: Call) -> Ref | None:
    """A tensor that is filled with a number is a constant of its shape."""
    value = call.get("value", 0.0)
    if isinstance(value, Node):
        return None
    return builder.compute(call, _full, builder.like(call), builder.shape_of(call.node), value)


def _full(like: Tensor, shape: list[int], value: Any) -> Tensor:
    return like.new_zeros(shape) + value


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
