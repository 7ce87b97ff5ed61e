"""Sums, products and constants: which operand carries, which is a bias, a scale or a statistic (S2, S3, S17)."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.builder import Builder, Call, constant, is_live, lowers
from backplay.network.elementwise import (
    between,
    centred,
    common_ancestor,
    growth,
    is_bounded,
    is_copy,
    is_nonnegative,
    is_statistic,
    literal_scale,
    mean_of,
    same,
    source,
    summarises,
    sums_up,
    unexpanded,
    unscaled,
)
from backplay.network.forms import known_form
from backplay.network.nodes import Diagonal, Gate, Max, Mix, Node, Norm, Oracle, Product, Scope, Sum, Wire

# ---------------------------------------------------------------- sums


@lowers("add", "sub", "rsub")
def addition(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[0], call.args[1]
    alpha = call.get("alpha", 1)
    if call.operator == "rsub":
        left, right = right, left
    times = (1 if call.operator == "add" else -1) * alpha
    if isinstance(left, Node) and isinstance(right, Node) and left.carries == right.carries:
        return _sum(builder, call, left, builder.scaled(builder.expand(right, call.node), times))
    # adding a constant or a detached value is a bias (S2, S3d)
    if is_live(left) or not isinstance(right, Node):
        return _shifted(builder, call, (left, right), (1, times))
    return _shifted(builder, call, (right, left), (times, 1))


def _sum(builder: Builder, call: Call, left: Node, right: Node) -> Node:
    left = builder.expand(left, call.node)
    for live, other in ((left, right), (right, left)):
        if _is_detached_mean(live, other):
            return _shifted(builder, call, (live, other), (1, 1))
    nonnegative = left.nonnegative and right.nonnegative
    return builder.add(Sum(torch.add, (left, right), operator=call.operator, nonnegative=nonnegative))


def _is_detached_mean(node: Node, other: Node) -> bool:
    """Whether two terms are the expansion `x·r − m·r` of a norm, `m` the mean of `x` and `r` its statistic (S3b)."""
    (norm, times, gains), (product, its, others) = (unscaled(term) for term in (node, other))
    if not isinstance(norm, Norm) or norm.statistic is None or not isinstance(product, (Product, Norm)):
        return False
    if gains != others or len(product.inputs) != 2:
        return False
    for mean, factor in (product.inputs, product.inputs[::-1]):
        share = mean_of(mean, norm.operand)
        if share is not None and unexpanded(factor) is unexpanded(norm.statistic):
            return math.isclose(its * share, -times)
    return False


def _shifted(builder: Builder, call: Call, terms: tuple[Node, Any], factors: tuple[float, float]) -> Node:
    """`factor · live + times · shift`, the shift a constant or detached."""
    live, shift = builder.scaled(builder.expand(terms[0], call.node), factors[0]), terms[1]
    times, value = factors[1], constant(shift)
    node = Diagonal(lambda x, s: torch.add(x, s, alpha=times), (live, shift), operator=call.operator)
    node.operand, node.offset = live, lambda scope: times * value(scope)
    literal = isinstance(shift, (int, float))
    node.nonnegative = live.nonnegative and (
        shift * times >= 0 if literal else builder.is_nonnegative(shift, negated=times < 0)
    )
    return builder.add(node)


@lowers("neg")
def negation(builder: Builder, call: Call) -> Node:
    return builder.scaled(call["self"], -1)


# ---------------------------------------------------------------- products and quotients


@lowers("mul", "div", "true_divide")
def multiplication(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[0], call.args[1]
    divides = call.operator != "mul"
    if divides and call.get("rounding_mode"):  # steps have no slope: the quotient is told
        return builder.add(Oracle(call.function, call.args, operator=call.operator))
    if divides and isinstance(left, Node) and isinstance(right, Node):
        found = _softmax(builder, left, right)
        if found is not None:
            return found
    if isinstance(left, Node) and isinstance(right, Node):
        common = common_ancestor(left, right)
        if common is not None:
            return composite(builder, call, common, None if divides else _multiplier(left, right, common))
        if left.carries == right.carries:
            return _product(builder, call, left, right, divides)
    if divides and isinstance(right, Node) and not is_live(left):
        return _inverse(builder, call, left, right)
    live, factor = (left, right) if is_live(left) or not isinstance(right, Node) else (right, left)
    return _scaled(builder, call, live, factor, divides)


def _product(builder: Builder, call: Call, left: Node, right: Node, divides: bool) -> Node:
    """Two live factors: a norm if one of them is a statistic of a sample, else the product rule (S3b, S3c, S17)."""
    narrow = _statistic(builder, call, left, right)
    factors = builder.expand(left, call.node), builder.expand(right, call.node)
    if narrow is not None:
        return _detached_factor(builder, call, factors, narrow, divides)
    node = Product(torch.div if divides else torch.mul, factors, operator=call.operator)
    node.factors, node.divides = factors, divides
    node.carrying = factors[:1] if divides else carrying_factors(*factors, builder)
    node.nonnegative = all(f.nonnegative for f in factors)
    return builder.add(node)


def _scaled(builder: Builder, call: Call, live: Node, factor: Any, divides: bool) -> Node:
    """A constant or detached factor: a diagonal. Behind a composite `z · h(z)` a number may belong to `h` (S3a)."""
    value = constant(factor)
    scale = (lambda scope: 1 / value(scope)) if divides else value
    if isinstance(live, Gate) and live.factors is not None and isinstance(factor, (int, float)) and factor > 0:
        node = composite(builder, call, live.operand, live.factors)
        node.behind = (*live.behind, scale)
        return node
    live = builder.expand(live, call.node)
    scaled = Diagonal(torch.div if divides else torch.mul, (live, factor), operator=call.operator)
    scaled.operand, scaled.scale = live, scale
    scaled.nonnegative = live.nonnegative and builder.is_nonnegative(factor)
    return builder.add(scaled)


def _inverse(builder: Builder, call: Call, numerator: Any, divisor: Node) -> Node:
    """A constant divided by a live tensor: an activation of the divisor, and a diagonal."""
    inverse = Gate(torch.reciprocal, (divisor,), operator="reciprocal")
    inverse.operand, inverse.gate, inverse.helper = divisor, "other", True
    builder.add(inverse, builder.traced[divisor])
    return inverse if numerator == 1 else _scaled(builder, call, inverse, numerator, divides=False)


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
    scores = _unshifted(builder, numerator.operand, axis)
    return builder.add(Oracle(torch.softmax, (scores, axis), operator="softmax", nonnegative=True))


def _unshifted(builder: Builder, scores: Node, axis: int) -> Node:
    """Scores without what is taken off all of them along an axis, such as the largest: softmax does not see it."""
    if not isinstance(scores, Sum):
        return scores
    from_the_back = axis if axis < 0 else axis - len(builder.traced[scores])
    for kept, shift in (scores.inputs, scores.inputs[::-1]):
        narrow = builder.traced[unexpanded(shift.inputs[0] if literal_scale(shift) is not None else shift)]
        if len(narrow) < -from_the_back or narrow[from_the_back] == 1:
            return kept
    return scores


# ---------------------------------------------------------------- composites


def composite(builder: Builder, call: Call, operand: Node, factors: tuple[Any, ...] | None) -> Gate:
    """An elementwise function of one tensor that is spelled out in several operators is one gate (S3a)."""
    node = Gate(call.function, call.args, operator=call.operator)
    node.operand, node.gate, node.factors = operand, "composite", factors
    builder.add(node)
    node.fleeting = any(inner.fleeting for inner in between(node, operand))
    node.nonnegative = builder.decide(lambda constants: is_nonnegative(node, constants))
    return node


def _multiplier(left: Node, right: Node, z: Node) -> tuple[Any, ...] | None:
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


# ---------------------------------------------------------------- norms


def _statistic(builder: Builder, call: Call, left: Node, right: Node) -> int | None:
    """Position of a factor or divisor that is a statistic and is broadcast against the values (S3b).

    Of two such, which only samples of one element have, it is the inverse of a statistic.
    """
    shape = list(call.node.meta["val"].shape)
    operands = left, right
    found = [
        k
        for k in ((0, 1) if call.operator == "mul" else (1,))
        if list(builder.traced[operands[1 - k]]) == shape
        and is_statistic(operands[k])
        and _is_broadcast(builder, operands[k], shape)
    ]
    return max(found, key=lambda k: _is_inverse(operands[k]), default=None)


def _is_broadcast(builder: Builder, statistic: Node, shape: list[Any]) -> bool:
    """Whether a statistic is smaller than what it stands beside, somewhere on its way from the reduction.

    One of a single element counts too: it would be broadcast if there were more.
    """
    if list(builder.traced[statistic]) != shape:
        return True
    if isinstance(statistic, Mix):
        return list(builder.traced[statistic.operand]) == shape
    return any(_is_broadcast(builder, n, shape) for n in statistic.inputs)


def _detached_factor(builder: Builder, call: Call, factors: tuple[Node, Node], narrow: int, divides: bool) -> Node:
    """`x · statistic` or `x / statistic`: a norm."""
    statistic, operand = factors[narrow], factors[1 - narrow]
    if divides or _is_inverse(statistic):
        operand = _with_detached_mean(builder, operand, statistic)
    pair = (statistic, operand) if narrow == 0 else (operand, statistic)
    node = Norm(torch.div if divides else torch.mul, pair, operator=call.operator)
    node.operand, node.statistic = operand, statistic
    node.scale = (lambda scope: 1 / scope[statistic]) if divides else (lambda scope: scope[statistic])
    node.nonnegative = operand.nonnegative and _is_positive(builder, statistic)
    if growth(statistic) == (1 if divides else -1):
        _match_moments(builder, node, statistic, divides)
    return builder.add(node)


def _is_positive(builder: Builder, statistic: Node) -> bool:
    """Whether a statistic is nowhere negative: a norm that does not centre keeps signs (S5)."""
    if statistic.nonnegative:
        return True
    match statistic:
        case Gate(operator="sqrt" | "rsqrt" | "reciprocal" | "pow") | Wire():
            return all(_is_positive(builder, n) for n in statistic.inputs)
        case Diagonal(operand=operand):
            others = [a for a in statistic.args if a is not operand]
            return _is_positive(builder, operand) and all(map(builder.is_nonnegative, others))
        case _:
            return False


def _is_inverse(statistic: Node) -> bool:
    """Whether a statistic is the inverse of one: a root, a power or a quotient that falls as the sample grows."""
    found = source(statistic)
    if isinstance(found, Product) and not found.divides:
        return any(_is_inverse(f) for f in found.factors)
    negative = found.operator == "pow" and isinstance(found.args[1], (int, float)) and found.args[1] < 0
    return negative or found.operator in ("rsqrt", "reciprocal")


def _with_detached_mean(builder: Builder, node: Node, statistic: Node) -> Node:
    """The operand of a norm as that norm sees it: a mean of `x` that was taken off is part of the norm (S3b).

    Others that read `x − mean` keep the sum: there the mean is linear.
    """
    if isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        below = node.carriers[0]
        moved = _with_detached_mean(builder, below, statistic)
        return node if moved is below else _on(builder, node, below, moved)
    pair = centred(node)
    if pair is None or not summarises(statistic, pair[0]):
        return node
    found = Norm(node.function, node.args, operator=node.operator, helper=True)
    found.operand, found.scale = pair[0], constant(1.0)
    return builder.add(found, builder.traced[node])


def _on(builder: Builder, node: Node, below: Node, moved: Node) -> Node:
    """A wire or diagonal on another operand."""
    twin = copy.copy(node)
    twin.args, twin.ancestry, twin.helper = _replaced(node.args, below, moved), None, True
    if isinstance(twin, Diagonal):
        twin.operand = moved
    return builder.add(twin, builder.traced[node])


def _replaced(tree: Any, old: Node, new: Node) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(_replaced(item, old, new) for item in tree)  # pyright: ignore[reportUnknownVariableType]
    return new if tree is old else tree


def _keeps_deviation(node: Wire | Diagonal) -> bool:
    """Whether a step on the way from the deviation to the factor broadcasts it, or applies the norm's gain to it."""
    return node.operator == "expand" if isinstance(node, Wire) else node.offset is None and len(node.inputs) == 1


def _match_moments(builder: Builder, node: Norm, statistic: Node, divides: bool) -> None:
    """A spelled-out norm: its scale is an inverse deviation, so its moments can be matched (S22)."""
    narrow = statistic
    while isinstance(narrow, (Wire, Diagonal)) and _keeps_deviation(narrow):
        narrow = narrow.carriers[0]
    wide, shape = list(builder.traced[node.operand]), list(builder.traced[narrow])
    shape = [1] * (len(wide) - len(shape)) + shape
    dims = tuple(d for d, (w, s) in enumerate(zip(wide, shape, strict=True)) if w != s)
    if not dims:
        return
    operand, summed = node.operand, sums_up(narrow)
    node.average = lambda v: v.mean(dims, keepdim=True)

    def spread(scope: Scope) -> Tensor:
        found = scope[narrow].to(scope[operand].dtype).square()
        found = found if divides else found.reciprocal()
        return found / math.prod(scope[operand].shape[d] for d in dims) if summed else found

    node.spread = spread


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
        if not (isinstance(node, (Wire, Diagonal, Max)) or _is_share(node)) or len(node.carriers) != 1:
            break
        node = node.carriers[0]
    if isinstance(node, Gate):
        gate = node
        return node.operator in operators.FACTOR_GATES or builder.decide(
            lambda constants: known_form(gate, constants) in operators.FACTOR_GATES
        )
    if isinstance(node, Oracle):
        return not node.unsupported
    return isinstance(node, Mix) and node.operator in operators.REDUCTIONS


def _is_share(node: Node) -> bool:
    """Whether a value is divided by its own sum, as the weights of a router are."""
    if not isinstance(node, Norm) or node.statistic is None or node.operator == "mul":
        return False
    total = source(node.statistic)
    return isinstance(total, Mix) and source(total.operand) is source(node.operand)


@lowers("pow")
def power(builder: Builder, call: Call) -> Node | None:
    base, exponent = call.args[0], call.args[1]
    if isinstance(base, Node) and isinstance(exponent, Node):
        common = common_ancestor(base, exponent)
        return None if common is None else composite(builder, call, common, None)
    node = Gate(call.function, call.args, operator="pow")
    node.operand, node.gate = (base if isinstance(base, Node) else exponent), "other"
    even = isinstance(exponent, (int, float)) and exponent % 2 == 0
    node.nonnegative = even or (isinstance(base, (int, float)) and base >= 0)
    return builder.add(node)
