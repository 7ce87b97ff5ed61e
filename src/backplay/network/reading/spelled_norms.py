"""Norms that are spelled out: values times, or divided by, a statistic of their own sample (S3b, S22)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from backplay.network.nodes import Diagonal, Gate, Mix, Node, Norm, Product, Scope, Sum, mapped
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant
from backplay.network.wires import Wire

# ---------------------------------------------------------------- what a statistic is


def is_statistic(node: Node) -> bool:
    """Whether a node depends on live values only through reductions, by elementwise steps (S3b)."""
    if isinstance(node, Mix):
        return node.facts.reduces
    steps = isinstance(node, (Gate, Diagonal, Product, Sum, Norm, Wire)) or node.facts.pointwise
    return steps and bool(node.inputs) and all(is_statistic(n) for n in node.inputs)


def unexpanded(node: Node) -> Node:
    """A tensor before it is broadcast."""
    while isinstance(node, Wire) and node.operator == "expand":
        node = node.inputs[0]
    return node


def source(node: Node) -> Node:
    """A tensor before wires and constant scales moved and scaled it."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def literal_scale(node: Node) -> float | None:
    """The number that a diagonal multiplies its operand by; None where it is none, or adds something."""
    if not isinstance(node, Diagonal) or node.offset is not None:
        return None
    number = next((a for a in node.args if isinstance(a, (int, float))), None)
    return None if number is None else 1 / number if node.facts.divides else float(number)


def unscaled(node: Node) -> tuple[Node, float, list[Any]]:
    """A tensor before it was reshaped, scaled and shifted, the number it was scaled by, and the other constants."""
    times, gains = 1.0, list[Any]()
    while True:
        if isinstance(node, Wire) and node.facts.reshapes and len(node.inputs) == 1:
            node = node.inputs[0]
        elif isinstance(node, Diagonal) and node.scale is None:
            node = node.operand
        elif (number := literal_scale(node)) is not None:
            times, node = times * number, node.inputs[0]
        elif isinstance(node, Diagonal) and node.offset is None:
            gains += [a for a in node.args if a is not node.operand]
            node = node.operand
        else:
            return node, times, gains


def mean_of(node: Node, x: Node) -> float | None:
    """Where a value is the mean of a tensor times a number, that number.

    Of a sum that is divided by a constant tensor, such as the number of elements that count, only the sign is known.
    """
    mean, times, gains = unscaled(node)
    if not isinstance(mean, Mix) or not mean.facts.reduces or mean.count is None:
        return None
    operand, its, own = unscaled(mean.operand)
    other, mine, gain = unscaled(x)
    if operand is not other or mine == 0:
        return None
    share = times * its / mine * (mean.count if mean.operator == "sum" else 1)
    return share if not gains and own == gain else math.copysign(1, share)


def centred(node: Node) -> tuple[Node, Node] | None:
    """`x` and its mean, where a node is `x − mean`: a sum one of whose terms is minus the mean of the other (S3b)."""
    if not isinstance(node, Sum):
        return None
    for x, mean in (node.inputs, node.inputs[::-1]):
        share = mean_of(mean, x)
        if share is not None and math.isclose(share, -1):
            return x, mean
    return None


def summarises(statistic: Node, x: Node) -> bool:
    """Whether a statistic summarises a tensor: through its reductions it depends on `x` or on `x − mean` alone."""
    if isinstance(statistic, Mix):
        return source(x) in _summarised(statistic.operand)
    return bool(statistic.inputs) and all(summarises(node, x) for node in statistic.inputs)


def _summarised(node: Node) -> list[Node]:
    """What a reduction may be said to be taken of: its operand, and what that is a power or deviation of."""
    seen = [source(node)]
    while True:
        node = seen[-1]
        pair = centred(node)
        if pair is not None:
            node = pair[0]
        elif isinstance(node, Gate) or (isinstance(node, Norm) and node.statistic is None and not node.centres):
            node = node.operand
        else:
            return seen
        seen.append(source(node))


def growth(node: Node) -> float | None:
    """With which power of a sample's size a statistic grows: −1 for the inverse deviation; None where it is unclear."""
    if isinstance(node, (Wire, Diagonal)):  # broadcast; `+ eps`; a constant factor
        return growth(node.inputs[0])
    if node.operator == "mul" and len(set(node.inputs)) == 1:
        factor: float | None = 2.0
    elif node.operator == "pow" and isinstance(node.args[1], (int, float)):
        factor = float(node.args[1])
    else:
        factor = node.facts.power
    if factor is None:
        return None if is_statistic(node) else 1.0  # the sample itself
    below = growth(node.inputs[0])
    return None if below is None else factor * below


def sums_up(node: Node) -> bool:
    """Whether a statistic rests on a sum over the sample, not on a mean."""
    return node.operator == "sum" or (is_statistic(node) and any(sums_up(n) for n in node.inputs))


# ---------------------------------------------------------------- reading norms


def statistic_among(builder: Builder, call: Call, left: Node, right: Node) -> int | None:
    """Position of a factor or divisor that is a statistic and is broadcast against the values (S3b).

    Of two such, which only samples of one element have, it is the inverse of a statistic.
    """
    shape = list(call.shape)
    operands = left, right
    statistics = [
        k
        for k in ((0, 1) if call.operator == "mul" else (1,))
        if list(builder.traced[operands[1 - k]]) == shape
        and is_statistic(operands[k])
        and _is_broadcast(builder, operands[k], shape)
    ]
    return max(statistics, key=lambda k: _is_inverse(operands[k]), default=None)


def _is_broadcast(builder: Builder, statistic: Node, shape: list[Any]) -> bool:
    """Whether a statistic is smaller than what it stands beside, somewhere on its way from the reduction.

    One of a single element counts too: it would be broadcast if there were more.
    """
    if list(builder.traced[statistic]) != shape:
        return True
    if isinstance(statistic, Mix):
        return list(builder.traced[statistic.operand]) == shape
    return any(_is_broadcast(builder, n, shape) for n in statistic.inputs)


def detached_factor(builder: Builder, call: Call, factors: tuple[Node, Node], position: int, divides: bool) -> Node:
    """`x · statistic` or `x / statistic`, the statistic at a position of the factors: a norm."""
    statistic, operand = factors[position], factors[1 - position]
    if divides or _is_inverse(statistic):
        operand = _with_detached_mean(builder, operand, statistic)
    node = Norm(
        torch.div if divides else torch.mul,
        (statistic, operand) if position == 0 else (operand, statistic),
        call.operator,
        operand=operand,
        statistic=statistic,
        scale=(lambda scope: 1 / scope[statistic]) if divides else (lambda scope: scope[statistic]),
        nonnegative=operand.nonnegative and _is_positive(builder, statistic),
    )
    if growth(statistic) == (1 if divides else -1):
        node = _with_moments(builder, node, statistic, divides)
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
    origin = source(statistic)
    if isinstance(origin, Product) and not origin.divides:
        return any(_is_inverse(f) for f in origin.factors)
    negative = origin.operator == "pow" and isinstance(origin.args[1], (int, float)) and origin.args[1] < 0
    return negative or origin.operator in ("rsqrt", "reciprocal")


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
    norm = Norm(node.function, node.args, node.operator, operand=pair[0], scale=constant(1.0), helper=True)
    return builder.add(norm, builder.traced[node])


def _on(builder: Builder, node: Wire | Diagonal, below: Node, moved: Node) -> Node:
    """A wire or diagonal on another operand."""
    args = mapped(node.args, lambda leaf: moved if leaf is below else leaf)
    other = {"operand": moved} if isinstance(node, Diagonal) else {}
    return builder.add(replace(node, args=args, helper=True, **other), builder.traced[node])


def _keeps_deviation(node: Wire | Diagonal) -> bool:
    """Whether a step on the way from the deviation to the factor broadcasts it, or applies the norm's gain to it."""
    return node.operator == "expand" if isinstance(node, Wire) else node.offset is None and len(node.inputs) == 1


def _with_moments(builder: Builder, node: Norm, statistic: Node, divides: bool) -> Norm:
    """A spelled-out norm whose scale is an inverse deviation, with what its moments are matched by (S22)."""
    narrow = statistic
    while isinstance(narrow, (Wire, Diagonal)) and _keeps_deviation(narrow):
        narrow = narrow.carriers[0]
    wide, shape = list(builder.traced[node.operand]), list(builder.traced[narrow])
    shape = [1] * (len(wide) - len(shape)) + shape
    dims = tuple(d for d, (w, s) in enumerate(zip(wide, shape, strict=True)) if w != s)
    if not dims:
        return node
    operand, summed = node.operand, sums_up(narrow)

    def spread(scope: Scope) -> Tensor:
        squared = scope[narrow].to(scope[operand].dtype).square()
        squared = squared if divides else squared.reciprocal()
        return squared / math.prod(scope[operand].shape[d] for d in dims) if summed else squared

    return replace(node, average=lambda v: v.mean(dims, keepdim=True), spread=spread)


def is_detached_mean(node: Node, other: Node) -> bool:
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


def is_share(node: Node) -> bool:
    """Whether a value is divided by its own sum, as the weights of a router are."""
    if not isinstance(node, Norm) or node.statistic is None or node.operator == "mul":
        return False
    total = source(node.statistic)
    return isinstance(total, Mix) and source(total.operand) is source(node.operand)
