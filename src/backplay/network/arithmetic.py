"""Sums, products and constants: which operand carries, which is a bias, a scale or a statistic (S2, S3, S17)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.builder import Builder, Call, constant, lowers
from backplay.network.elementwise import (
    REDUCTIONS,
    common_ancestor,
    growth,
    holds_oracle,
    is_statistic,
    sums_up,
    unexpanded,
)
from backplay.network.nodes import Diagonal, Gate, Mix, Node, Norm, Oracle, Product, Scope, Sum, Wire


@lowers("add", "sub", "rsub")
def addition(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[0], call.args[1]
    alpha = call.get("alpha", 1)
    if call.operator == "rsub":
        left, right = right, left
    sign = 1 if call.operator == "add" else -1
    if isinstance(left, Node) and isinstance(right, Node):
        narrow = _statistic(builder, call, left, right)
        left, right = builder.expand(left, call.node), builder.expand(right, call.node)
        if narrow is not None:
            return _detached_offset(builder, call, (left, right), narrow, (1, sign * alpha))
        right = builder.scaled(right, sign * alpha)
        nonnegative = left.nonnegative and right.nonnegative
        return builder.add(Sum(torch.add, (left, right), operator=call.operator, nonnegative=nonnegative))
    if isinstance(left, Node):
        return _shifted(builder, call, left, right, sign * alpha, 1)
    return _shifted(builder, call, right, left, 1, sign * alpha)


def _statistic(builder: Builder, call: Call, left: Node, right: Node) -> int | None:
    """Position of an operand that is a statistic beside values (S3b).

    A mean or sum counts as one only where it is broadcast: pooled features beside features are a plain residual.
    """
    shape = list(call.node.meta["val"].shape)
    for k, (node, other) in enumerate(((left, right), (right, left))):
        broadcast = list(builder.traced[unexpanded(node)]) != shape and list(builder.traced[other]) == shape
        if is_statistic(node) and not is_statistic(other) and (broadcast or holds_oracle(node)):
            return k
    return None


def _detached_offset(
    builder: Builder, call: Call, operands: tuple[Node, Node], narrow: int, factors: tuple[float, float]
) -> Node:
    """`x ± statistic`: the statistic is detached, mass passes to `x`."""
    node = Norm(lambda a, b: torch.add(a, b, alpha=factors[1]), operands, operator=call.operator)
    node.operand = operands[1 - narrow]
    factor = factors[1 - narrow]
    node.scale = constant(factor)
    return builder.add(node)


def _shifted(builder: Builder, call: Call, live: Node, shift: Any, times: float, factor: float) -> Node:
    """`factor · live + times · shift`: adding a constant is a bias (S2)."""
    live = builder.scaled(builder.expand(live, call.node), factor)
    value = constant(shift)
    node = Diagonal(lambda x, s: torch.add(x, s, alpha=times), (live, shift), operator=call.operator)
    node.operand, node.offset = live, lambda scope: times * value(scope)
    node.nonnegative = live.nonnegative and isinstance(shift, (int, float)) and shift * times >= 0
    return builder.add(node)


@lowers("neg")
def negation(builder: Builder, call: Call) -> Node:
    return builder.scaled(call["self"], -1)


@lowers("mul", "div", "true_divide")
def multiplication(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[0], call.args[1]
    divides = call.operator != "mul"
    if divides and call.get("rounding_mode"):
        return None
    if isinstance(left, Node) and isinstance(right, Node):
        common = common_ancestor(left, right)
        if common is not None:
            return _composite(builder, call, common)
        narrow = _statistic(builder, call, left, right)
        factors = builder.expand(left, call.node), builder.expand(right, call.node)
        if narrow is not None and not (divides and narrow == 0):
            return _detached_factor(builder, call, factors, narrow, divides)
        node = Product(torch.div if divides else torch.mul, factors, operator=call.operator)
        node.factors, node.divides = factors, divides
        node.carrying = factors[:1] if divides else carrying_factors(*factors)
        node.nonnegative = all(f.nonnegative for f in factors)
        return builder.add(node)
    if divides and isinstance(right, Node):
        return None
    live, factor = (left, right) if isinstance(left, Node) else (right, left)
    if isinstance(live, Gate) and live.gate == "composite" and isinstance(factor, (int, float)):
        return _composite(builder, call, live.operand)
    live = builder.expand(live, call.node)
    value = constant(factor)
    scaled = Diagonal(torch.div if divides else torch.mul, (live, factor), operator=call.operator)
    scaled.operand = live
    scaled.scale = (lambda scope: 1 / value(scope)) if divides else value
    scaled.nonnegative = live.nonnegative and isinstance(factor, (int, float)) and factor >= 0
    return builder.add(scaled)


def _composite(builder: Builder, call: Call, operand: Node) -> Node:
    """An elementwise function of one tensor that is spelled out in several operators is one gate (S3a)."""
    node = Gate(call.function, call.args, operator=call.operator)
    node.operand, node.gate = operand, "composite"
    node.nonnegative = all(n.nonnegative for n in node.inputs)
    return builder.add(node)


def _detached_factor(builder: Builder, call: Call, factors: tuple[Node, Node], narrow: int, divides: bool) -> Node:
    """`x · statistic` or `x / statistic`: a norm."""
    statistic = factors[narrow]
    node = Norm(torch.div if divides else torch.mul, factors, operator=call.operator)
    node.operand = factors[1 - narrow]
    node.scale = (lambda scope: 1 / scope[statistic]) if divides else (lambda scope: scope[statistic])
    if growth(statistic) == (1 if divides else -1):
        _match_moments(builder, node, statistic)
    return builder.add(node)


def _match_moments(builder: Builder, node: Norm, statistic: Node) -> None:
    """A spelled-out norm: its scale is an inverse deviation, so its moments can be matched (S22)."""
    narrow = unexpanded(statistic)
    wide, shape = list(builder.traced[node.operand]), list(builder.traced[narrow])
    shape = [1] * (len(wide) - len(shape)) + shape
    dims = tuple(d for d, (w, s) in enumerate(zip(wide, shape, strict=True)) if w != s)
    if not dims:
        return
    operand, scale, summed = node.operand, node.scale, sums_up(narrow)
    node.average = lambda v: v.mean(dims, keepdim=True)

    def spread(scope: Scope) -> Tensor:
        found = scale(scope).to(scope[operand].dtype).square().reciprocal()
        return found / math.prod(scope[operand].shape[d] for d in dims) if summed else found

    node.spread = spread


def carrying_factors(left: Node, right: Node) -> tuple[Node, ...]:
    """The factor that does not come out of a gate or a reduction carries; with none or two such, both do (S17)."""
    detached = [f for f in (left, right) if comes_from_factor_gate(f)]
    return tuple(f for f in (left, right) if f not in detached) if len(detached) == 1 else (left, right)


def comes_from_factor_gate(node: Node) -> bool:
    """Whether, seen through wires and diagonals, a node comes out of a factor gate, a softmax or a reduction."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    if isinstance(node, Gate):
        return node.operator in operators.FACTOR_GATES or node.gate == "composite"
    if isinstance(node, Oracle):
        told = operators.COMPARISONS | REDUCTIONS
        return not node.unsupported or node.operator in told
    return isinstance(node, Mix) and node.operator in operators.REDUCTIONS


@lowers("pow")
def power(builder: Builder, call: Call) -> Node | None:
    if not isinstance(call.args[0], Node) or not isinstance(call.args[1], (int, float)):
        return None
    node = Gate(call.function, call.args, operator="pow")
    node.operand, node.gate, node.nonnegative = call.args[0], "other", call.args[1] % 2 == 0
    return builder.add(node)


@lowers("addcmul")
def addcmul(builder: Builder, call: Call) -> Node | None:
    """`self + value · tensor1 · tensor2`, as the two calls that it stands for."""
    first, second, value = call["tensor1"], call["tensor2"], call.get("value", 1)
    product = Call(call.node, "mul", torch.mul, (first, second), (), {"self": first, "other": second})
    inner = multiplication(builder, product) if isinstance(first, Node) or isinstance(second, Node) else None
    if inner is None:
        return None
    named = {"self": call["self"], "other": inner, "alpha": value}
    return addition(builder, Call(call.node, "add", torch.add, (call["self"], inner), (), named))
