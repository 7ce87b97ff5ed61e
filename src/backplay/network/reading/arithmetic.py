"""Sums, products and constants: which operand carries, which is a bias or a scale (S2, S3, S17)."""

from __future__ import annotations

from typing import Any

import torch

from backplay.network import operators
from backplay.network.choices import Max
from backplay.network.elementwise import common_ancestor, is_bounded, same
from backplay.network.forms import known_form
from backplay.network.nodes import Diagonal, Gate, Mix, Node, Oracle, Product, Sum
from backplay.network.reading.activations import composite, factors_beside, unshifted
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant, is_live, reading
from backplay.network.reading.spelled_norms import (
    detached_factor,
    is_detached_mean,
    is_share,
    literal_scale,
    statistic_among,
    unexpanded,
)
from backplay.network.wires import Wire

# ---------------------------------------------------------------- sums


@reading
def addition(builder: Builder, call: Call) -> Node | None:
    """A sum of two live operands; a constant or detached one is a bias (S2, S3d)."""
    left, right = call.args[0], call.args[1]
    alpha = call.get("alpha", 1)
    if call.operator == "rsub":
        left, right = right, left
    times = (1 if call.operator == "add" else -1) * alpha
    if isinstance(left, Node) and isinstance(right, Node) and left.carries == right.carries:
        return _sum(builder, call, left, builder.scaled(builder.expand(right, call.node), times))
    if is_live(left) or not isinstance(right, Node):
        return _shifted(builder, call, (left, right), (1, times))
    return _shifted(builder, call, (right, left), (times, 1))


def _sum(builder: Builder, call: Call, left: Node, right: Node) -> Node:
    left = builder.expand(left, call.node)
    for live, other in ((left, right), (right, left)):
        if is_detached_mean(live, other):
            return _shifted(builder, call, (live, other), (1, 1))
    nonnegative = left.nonnegative and right.nonnegative
    return builder.add(Sum(torch.add, (left, right), call.operator, nonnegative=nonnegative))


def _shifted(builder: Builder, call: Call, terms: tuple[Node, Any], factors: tuple[float, float]) -> Node:
    """`factors[0] · live + factors[1] · shift`, the shift a constant or detached."""
    live, shift = builder.scaled(builder.expand(terms[0], call.node), factors[0]), terms[1]
    times, value = factors[1], constant(shift)
    literal = isinstance(shift, (int, float))
    node = Diagonal(
        lambda x, s: torch.add(x, s, alpha=times),
        (live, shift),
        call.operator,
        operand=live,
        offset=lambda scope: times * value(scope),
        nonnegative=live.nonnegative
        and (shift * times >= 0 if literal else builder.is_nonnegative(shift, negated=times < 0)),
    )
    return builder.add(node)


@reading
def negation(builder: Builder, call: Call) -> Node:
    return builder.scaled(call["self"], -1)


# ---------------------------------------------------------------- products and quotients


@reading
def multiplication(builder: Builder, call: Call) -> Node | None:
    """Products and quotients: softmax by hand, a gate, a norm, a product of two live factors, or a constant scale."""
    left, right = call.args[0], call.args[1]
    divides = call.operator != "mul"
    if divides and call.get("rounding_mode"):  # steps have no slope
        return builder.add(Oracle(*call.itself))
    for numerator, denominator in _quotients(left, right, divides):
        by_hand = _softmax(builder, numerator, denominator)
        if by_hand is not None:
            return by_hand
    if isinstance(left, Node) and isinstance(right, Node):
        common = common_ancestor(left, right)
        if common is not None:
            return composite(builder, call, common, None if divides else factors_beside(left, right, common))
        if left.carries == right.carries:
            return _product(builder, call, left, right, divides)
    if divides and isinstance(right, Node) and not is_live(left):
        return _inverse(builder, call, left, right)
    live, factor = (left, right) if is_live(left) or not isinstance(right, Node) else (right, left)
    return _scaled(builder, call, live, factor, divides)


def _product(builder: Builder, call: Call, left: Node, right: Node, divides: bool) -> Node:
    """Two live factors: a norm if one of them is a statistic of a sample, else the product rule (S3b, S3c, S17)."""
    position = statistic_among(builder, call, left, right)
    factors = builder.expand(left, call.node), builder.expand(right, call.node)
    if position is not None:
        return detached_factor(builder, call, factors, position, divides)
    node = Product(
        torch.div if divides else torch.mul,
        factors,
        call.operator,
        factors=factors,
        divides=divides,
        carrying=factors[:1] if divides else carrying_factors(*factors, builder),
        nonnegative=all(f.nonnegative for f in factors),
    )
    return builder.add(node)


def _scaled(builder: Builder, call: Call, live: Node, factor: Any, divides: bool) -> Node:
    """A constant or detached factor: a diagonal. Behind a composite `z · h(z)` a number may belong to `h` (S3a)."""
    value = constant(factor)
    scale = (lambda scope: 1 / value(scope)) if divides else value
    if isinstance(live, Gate) and live.factors is not None and isinstance(factor, (int, float)) and factor > 0:
        return composite(builder, call, live.operand, live.factors, (*live.behind, scale))
    live = builder.expand(live, call.node)
    scaled = Diagonal(
        torch.div if divides else torch.mul,
        (live, factor),
        call.operator,
        operand=live,
        scale=scale,
        nonnegative=live.nonnegative and builder.is_nonnegative(factor),
    )
    return builder.add(scaled)


def _inverse(builder: Builder, call: Call, numerator: Any, divisor: Node) -> Node:
    """A constant divided by a live tensor: an activation of the divisor, and a diagonal."""
    gate = Gate(torch.reciprocal, (divisor,), "reciprocal", operand=divisor, gate="other", helper=True)
    inverse = builder.add(gate, builder.traced[divisor])
    return inverse if numerator == 1 else _scaled(builder, call, inverse, numerator, divides=False)


def _quotients(left: Any, right: Any, divides: bool) -> list[tuple[Node, Node]]:
    """What is divided by what: a product with an inverse divides too."""
    if not (isinstance(left, Node) and isinstance(right, Node)):
        return []
    if divides:
        return [(left, right)]
    quotients: list[tuple[Node, Node]] = []
    for other, node in ((left, unexpanded(right)), (right, unexpanded(left))):
        inverse = node.inputs[0] if literal_scale(node) == 1 else node  # `1 / y` is exported as an inverse times 1
        if isinstance(inverse, Gate) and inverse.operator == "reciprocal":
            quotients.append((other, inverse.operand))
    return quotients


def _softmax(builder: Builder, numerator: Node, denominator: Node) -> Node | None:
    """`exp(x − c) / Σ exp(x − c)` is softmax (S3b)."""
    total = denominator
    while isinstance(total, Wire) and total.operator in ("unsqueeze", "expand"):
        total = total.inputs[0]
    if not isinstance(numerator, Gate) or numerator.operator != "exp" or not isinstance(total, Mix):
        return None
    axes = total.args[1] if total.operator == "sum" and len(total.args) > 1 else None
    if not same(total.operand, numerator) or not isinstance(axes, (list, tuple)) or len(axes) != 1:
        return None
    axis: int = axes[0]
    shape = list(builder.traced[numerator])
    shape[axis] = 1
    if list(builder.traced[unexpanded(denominator)]) != shape:  # summed along one axis, put beside another
        return None
    scores = unshifted(builder, numerator.operand, axis)
    return builder.add(Oracle(torch.softmax, (scores, axis), "softmax", nonnegative=True))


# ---------------------------------------------------------------- which factor carries


def carrying_factors(left: Node, right: Node, builder: Builder) -> tuple[Node, ...]:
    """The factor that does not come out of a gate or a reduction carries; with none or two such, both do (S17)."""
    detached = [f for f in (left, right) if comes_from_factor_gate(f, builder)]
    return tuple(f for f in (left, right) if f not in detached) if len(detached) == 1 else (left, right)


def comes_from_factor_gate(node: Node, builder: Builder) -> bool:
    """Whether, seen through wires, scales and choices, a node comes out of a factor gate, a softmax or a reduction."""
    while True:
        if builder.decide(lambda constants, factor=node: is_bounded(factor, constants)):
            return True
        if not (isinstance(node, (Wire, Diagonal, Max)) or is_share(node)) or len(node.carriers) != 1:
            break
        node = node.carriers[0]
    if isinstance(node, Gate):
        gate = node
        return node.facts.weighs or builder.decide(
            lambda constants: operators.meaning(known_form(gate, constants) or "").weighs
        )
    if isinstance(node, Oracle):
        return not node.unsupported
    return isinstance(node, Mix) and node.facts.reduces
