"""Products of two tensors that sum over shared axes: with a constant, with softmax weights, or both live (S17, S23)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network.contraction import Contraction, Equation
from backplay.network.elementwise import agree, ancestors, grid
from backplay.network.linear import Dense, LinearMap
from backplay.network.nodes import Affine, Diagonal, Halves, Held, Node, Norm, Product, Ref, Scope, rerun
from backplay.network.reading.arithmetic import comes_from_factor_gate
from backplay.network.reading.attention import comes_from_softmax, read_mixing
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant
from backplay.network.wires import Wire

aten = torch.ops.aten

Operand = Node | Ref


def contract(
    builder: Builder,
    call: Call,
    equation: Equation,
    left: Operand,
    right: Operand,
    function: Callable[..., Tensor] | None = None,
) -> Node | None:
    """The node of a product of two tensors, one of which is live at least; None where samples would meet."""
    if set(equation.left) | set(equation.right) <= set(equation.out):
        return _elementwise(builder, equation, left, right)
    shapes = [builder.traced_shape(t) for t in (left, right)]
    sizes = equation.sizes(*shapes)
    shape = torch.Size([sizes[c] for c in equation.out])
    run = function or (lambda a, b: torch.einsum(equation.text, a, b))
    if not isinstance(left, Node):
        assert isinstance(right, Node)
        linear, weight = _linear(equation.swapped, left, shapes[::-1])
        node = Affine(lambda a, b: run(b, a), (right, left), call.operator, operand=right, map=linear, weight=weight)
        return builder.add(node, shape)
    if not isinstance(right, Node):
        linear, weight = _linear(equation, right, shapes)
        node = Affine(run, (left, right), call.operator, operand=left, map=linear, weight=weight)
        return builder.add(node, shape)
    if not _same_samples(equation, shapes):
        return None
    for weights, value, read, pair in ((left, right, equation.swapped, shapes[::-1]), (right, left, equation, shapes)):
        if comes_from_softmax(weights):
            linear, weight = _map(read, pair), _folded(read, weights, pair)
            return read_mixing(builder, call, (weights, value), linear, weight, run, (left, right), shape)
    return _live(builder, call, equation, (left, right), run, shape)


def _elementwise(builder: Builder, equation: Equation, left: Operand, right: Operand) -> Node:
    """A product that sums over nothing is a multiplication (S2, S17), its operands laid out alike."""
    laid: list[Any] = []
    for operand, letters in ((left, equation.left), (right, equation.right)):
        order = sorted(range(len(letters)), key=lambda k, letters=letters: equation.out.index(letters[k]))
        if order != sorted(order):
            operand = builder.spell(aten.permute.default, operand, order)
        for axis, letter in enumerate(equation.out):
            if letter not in letters:
                operand = builder.spell(aten.unsqueeze.default, operand, axis)
        laid.append(operand)
    return builder.spell(aten.mul.Tensor, *laid)


def _linear(equation: Equation, weight: Operand, shapes: list[Any]) -> tuple[LinearMap, Callable[[Scope], Tensor]]:
    """Map and weight of the operand on the left; a linear layer is one, whatever its spelling (S3, S4)."""
    lead, last = equation.left[:-1], equation.left[-1]
    rest = equation.right.replace(last, "")
    dense = len(equation.right) == 2 and len(rest) == 1 and equation.out == lead + rest and rest not in lead
    if dense and shapes[0][-1] == shapes[1][equation.right.index(last)]:
        read = constant(weight)
        return Dense(), read if equation.right[1] == last else (lambda scope: read(scope).T)
    return _map(equation, shapes), _folded(equation, weight, shapes)


def _map(equation: Equation, shapes: list[Any]) -> Contraction:
    """The map of the operand on the left; weights come without the axes that they sum over alone."""
    return Contraction(Equation(equation.left, _kept(equation, shapes), equation.out))


def _kept(equation: Equation, shapes: list[Any]) -> str:
    return "".join(c for c in equation.right if c not in _alone(equation, shapes))


def _alone(equation: Equation, shapes: list[Any]) -> set[str]:
    """Axes that the weight alone is summed over: its entries there add up before they meet a value."""
    lengths = dict(zip(equation.left, shapes[0], strict=True))
    single = {c for c, size in lengths.items() if isinstance(size, int) and size == 1}
    return {c for c in equation.right if c not in equation.out and (c not in lengths or c in single)}


def _folded(equation: Equation, weight: Operand, shapes: list[Any]) -> Callable[[Scope], Tensor]:
    alone = _alone(equation, shapes)
    read = (lambda scope: scope[weight]) if isinstance(weight, Node) else constant(weight)
    if not alone:
        return read
    axes = [k for k, c in enumerate(equation.right) if c in alone]
    return lambda scope: read(scope).sum(axes)


def _same_samples(equation: Equation, shapes: list[Any]) -> bool:
    """Whether the axis that holds the samples is one of both operands and of the output."""
    held = [
        {c for c, size in zip(letters, shape, strict=True) if not isinstance(size, int)}
        for letters, shape in zip((equation.left, equation.right), shapes, strict=True)
    ]
    return held[0] == held[1] and held[0] <= set(equation.out)


# ---------------------------------------------------------------- two live tensors (S17)


def _live(
    builder: Builder,
    call: Call,
    equation: Equation,
    factors: tuple[Node, Node],
    run: Callable[..., Tensor],
    shape: torch.Size,
) -> Node:
    """The factor that comes out of a gate or a reduction is the weight of the other; else both carry."""
    shapes = [builder.traced[f] for f in factors]
    positive = all(f.nonnegative for f in factors)
    detached = [not f.carries for f in factors]  # a constant (S3d)
    if detached[0] == detached[1]:
        detached = [comes_from_factor_gate(f, builder) for f in factors]
    readings: list[Held] = []
    for k, read in ((0, equation), (1, equation.swapped)):
        if detached[k] and not detached[1 - k]:
            continue
        pair = shapes if k == 0 else shapes[::-1]
        held = Held(
            run,
            factors,
            call.operator,
            operand=factors[k],
            held=factors[1 - k],
            map=_map(read, pair),
            weight=_folded(read, factors[1 - k], pair),
            nonnegative=positive,
            helper=detached[0] == detached[1],
            fleeting=True,
        )
        readings.append(builder.add(held, shape))
    if len(readings) == 1:
        return readings[0]
    both = Halves(_mean, tuple(readings), call.operator, nonnegative=positive)
    builder.add(both, shape)
    _follow_chain(builder, both, factors)
    return both


def _mean(first: Tensor, *others: Tensor) -> Tensor:
    """The readings of one product agree, unless players who know τ have bent them."""
    return first if not others else (first + others[0]) / 2


def _follow_chain(builder: Builder, product: Halves, factors: tuple[Node, Node]) -> None:
    """Where a product is contracted again, as in `q(kᵀv)` and `(qkᵀ)v`, a non-negative factor is a weight (S17)."""
    again = [n for n in (_seen(f) for f in factors) if isinstance(n, (Halves, Held))]
    if not again:
        return
    for node in (product, *again):
        if isinstance(node, Halves) and len(node.args) == 2:
            weights = [_is_positive(builder, reading.held) for reading in node.args]
            if weights[0] != weights[1]:
                node.keep(node.args[0 if weights[0] else 1])


def _seen(node: Node) -> Node:
    """What a value is, but for wires, scales, offsets and statistics."""
    while isinstance(node, (Wire, Diagonal, Norm, Product)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def _is_positive(builder: Builder, node: Node) -> bool:
    """Whether a factor is non-negative by S5, or ELU + 1, or made of such by products and wires."""
    if node.nonnegative:
        return True
    if isinstance(node, (Halves, Held)):
        held = node if isinstance(node, Held) else node.args[0]
        return all(_is_positive(builder, f) for f in held.inputs)
    if isinstance(node, Wire):
        return not node.constants and all(_is_positive(builder, n) for n in node.inputs)
    return builder.decide(lambda constants: _is_elu_plus_one(node, constants))


def _is_elu_plus_one(node: Node, constants: Scope) -> bool:
    """By its values, as a function of one of its elementwise ancestors: however it is written."""
    z = grid()
    wanted = torch.nn.functional.elu(z) + 1
    return any(agree(rerun(node, {below: z}, constants), wanted) for below in ancestors(node)[1:])
