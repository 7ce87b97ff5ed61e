"""The geometric-mean kernel `√(T_A T_B)` of two plays at one node (eq:geom-kernel, S28).

It is a kernel again: it pulls overlap `β` back and pushes it forward. Every formula is symmetric in A and B to the
last bit, and for A = B it gives back `T_A` bit by bit, so that a play has distance 0 from itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import InputError
from backplay.kernels.attention import ValueRouting
from backplay.kernels.kernel import (
    WALK,
    Duel,
    Kernel,
    Measure,
    PassThrough,
    Relabelling,
    Scaling,
    Split,
    Stopping,
    Winner,
)
from backplay.kernels.linear import RoutingLinear, Sharing, StoppingLinear
from backplay.kernels.streams import ByProduct, ByWeight, Contributions, Stream, StreamState
from backplay.network.linear import LinearMap
from backplay.values.powers import in_blocks, root


def mean(a: Tensor, b: Tensor) -> Tensor:
    """`√(a b)` of finite, non-negative tensors, in range wherever both are; exactly `a` where both are equal."""
    return a if a is b else in_blocks(_mean, a, b)[0]


def agreeing(a: Tensor, b: Tensor) -> Tensor:
    """`±√(a b)` where both have the same sign, which it keeps; 0 elsewhere."""
    return a if a is b else in_blocks(_agreeing, a, b)[0]


def opposing(a: Tensor, b: Tensor) -> Tensor:
    """`√|a b|` where the signs differ, with the sign of `a`; 0 elsewhere."""
    return in_blocks(_opposing, a, b)[0]


def _mean(a: Tensor, b: Tensor) -> Tensor:
    product = root(a) * root(b)
    # equal ones differ from their mean by rounding, which the sum takes back to the last bit
    return product.addcmul_(_equal(a, b, product), a - product)


def _agreeing(a: Tensor, b: Tensor) -> Tensor:
    size = _mean(a.abs(), b.abs())
    return size.copysign_(a).mul_(_equal(a.sign(), b.sign(), size))


def _opposing(a: Tensor, b: Tensor) -> Tensor:
    size = _mean(a.abs(), b.abs())
    return size.copysign_(a).mul_(_equal(a.sign(), -b.sign(), size))


def _equal(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """1 where both are equal, else 0, as numbers: a choice by truth values takes ten times as long."""
    return torch.eq(a, b, out=torch.empty_like(like))


class Overlap(Kernel):
    """Moves of a kernel whose rows are geometric means, and the overlap of the two cemetery entries."""

    def __init__(self, moves: Kernel, ends: Tensor | None) -> None:
        self.moves, self.ends = moves, ends
        self.carriers = moves.carriers

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return self.moves.pull(mass, measure)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.moves.push(values)

    def lost(self, mass: Tensor) -> Tensor | None:
        return None if self.ends is None else mass * self.ends

    def constant(self, mass: Tensor) -> Tensor | None:
        return self.moves.constant(mass)


class Masked(Kernel):
    """A kernel on the states where both plays do the same."""

    def __init__(self, moves: Kernel, mask: Tensor) -> None:
        self.moves, self.mask = moves, mask

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return self.moves.pull(mass * self.mask, measure)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.moves.push(values) * self.mask

    def constant(self, mass: Tensor) -> Tensor | None:
        return self.moves.constant(mass * self.mask)


@dataclass
class Products:
    """Contributions of signed values and weights, taken apart by sign so that nothing cancels."""

    linear: LinearMap
    weight: Tensor
    value: Tensor

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        up, down = self.parts()
        return up.pull(on_plus, on_minus) + down.pull(on_plus, on_minus)

    def push(self, function: Tensor) -> tuple[Tensor, Tensor]:
        (a, b), (c, d) = (part.push(function) for part in self.parts())
        return a + c, b + d

    def sums(self, net: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (a, b), (c, d) = (part.sums() for part in self.parts())
        return a + c, b + d

    def parts(self) -> tuple[ByWeight, ByWeight]:
        positive, negative = self.weight.clamp(min=0), (-self.weight).clamp(min=0)
        up, down = self.value.clamp(min=0), (-self.value).clamp(min=0)
        return ByWeight(self.linear, positive, negative, up), ByWeight(self.linear, negative, positive, down)


@dataclass
class Together:
    """The sum of several sets of contributions."""

    terms: Sequence[Contributions]

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        first, *rest = (term.pull(on_plus, on_minus) for term in self.terms)
        return sum(rest, first)

    def push(self, function: Tensor) -> tuple[Tensor, Tensor]:
        return _added([term.push(function) for term in self.terms])

    def sums(self, net: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return _added([term.sums() for term in self.terms])


def _added(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    (plus, minus), *rest = pairs
    for p, m in rest:
        plus, minus = plus + p, minus + m
    return plus, minus


@dataclass
class StreamOverlap:
    """A stream state of both plays at once."""

    factor: Tensor
    ends: Tensor

    def coefficient(self, measure: Measure) -> Tensor:
        return self.factor

    def outside(self) -> Tensor:
        return self.ends

    def leak(self) -> Tensor | None:
        return None


def geometric(a: Kernel, b: Kernel, name: str) -> Kernel:
    """`√(T_A T_B)` with the cemetery overlap of S28; `name` is the node's, for the error message."""
    match a, b:
        case PassThrough(), PassThrough():
            return a
        case Relabelling(), Relabelling():
            # told indices may differ from play to play
            return Masked(a, a.sources() == b.sources()) if a.node.detached_inputs else a
        case Winner(), Winner():
            return Masked(a, a.index == b.index)
        case Duel(), Duel():
            both = [x & y for x, y in zip(a.chosen, b.chosen, strict=True)]
            return Duel((both[0], both[1]), a.carries)
        case Stopping(), Stopping():
            return Overlap(Stopping(agreeing(a.slope.clamp(-1, 1), b.slope.clamp(-1, 1))), _ends(a, b, a.slope))
        case Scaling(), Scaling():
            return Overlap(Scaling(agreeing(a.scale.sign(), b.scale.sign())), _ends(a, b, a.scale))
        case Split(), Split():
            return _split(a, b)
        case StoppingLinear(), StoppingLinear():
            total = mean(a.total, b.total)
            moves = StoppingLinear(a.linear, agreeing(a.weight, b.weight), total, a.shape, a.real)
            return Overlap(moves, _ends(a, b, a.total))
        case Sharing(), Sharing():
            inverse = mean(a.inverse, b.inverse)
            moves = Sharing(a.linear, mean(a.weight, b.weight), mean(a.value, b.value), inverse)
            return Overlap(moves, _ends(a, b, inverse))
        case RoutingLinear(), RoutingLinear():
            return RoutingLinear(contributions(a.contributions, b.contributions), *_streams(a, b))
        case ValueRouting(), ValueRouting():
            return _attention(a, b)
        case _:
            raise InputError(
                f"node {name!r} is played by {type(a).__name__} in one play and by {type(b).__name__} in the other: "
                "their states differ; compare plays of one game on one graph."
            )


def _ends(a: Kernel, b: Kernel, like: Tensor) -> Tensor | None:
    """`√(T_A(s → †) T_B(s → †))`."""
    ones = torch.ones_like(like)
    left, right = a.lost(ones), b.lost(ones)
    return None if left is None or right is None else mean(left, right)


def _split(a: Split, b: Split) -> Kernel:
    """Shares to their geometric mean; a switched and a kept player do not meet."""
    shares = [_shared(left, right) for left, right in zip(a.shares, b.shares, strict=True)]
    signs: list[float | Tensor] = []
    for left, right in zip(a.discounts or [], b.discounts or [], strict=True):
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            signs.append(agreeing(left.sign(), right.sign()))
        else:
            signs.append(1.0)
    like = next((s for s in signs if isinstance(s, Tensor)), None)
    return Overlap(Split(shares, signs or None), None if like is None else _ends(a, b, like))


def _shared(a: float | Tensor, b: float | Tensor) -> float | Tensor:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return math.sqrt(a * b)
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    left, right = (s if isinstance(s, Tensor) else torch.full_like(like, s) for s in (a, b))
    return mean(left, right)


def _streams(a: RoutingLinear | ValueRouting, b: RoutingLinear | ValueRouting) -> list[StreamOverlap]:
    """The two stream states; they are the same state only where the same player owns them (S16)."""
    found: list[StreamOverlap] = []
    for left, right in ((a.plus, b.plus), (a.minus, b.minus)):
        factor = mean(left.coefficient(WALK), right.coefficient(WALK))
        ends = mean(left.outside(), right.outside())
        same = _same_turn(left, right)
        found.append(StreamOverlap(factor, ends) if same is None else StreamOverlap(factor * same, ends * same))
    return found


def _same_turn(a: StreamState, b: StreamState) -> Tensor | None:
    assert isinstance(a, Stream)
    assert isinstance(b, Stream)
    if not isinstance(a.turn, Tensor) and not isinstance(b.turn, Tensor):
        return None
    dtype = a.total.dtype
    return (torch.as_tensor(a.turn, dtype=dtype) == torch.as_tensor(b.turn, dtype=dtype)).to(dtype)


def _attention(a: ValueRouting, b: ValueRouting) -> Kernel:
    """Key choice and input choice each to their geometric mean: the input tells which key was chosen."""
    values = [mean(x, y) for x, y in zip(a.values, b.values, strict=True)]
    totals = [mean(x, y) for x, y in zip(a.totals, b.totals, strict=True)]
    return ValueRouting(
        a.node,
        a.scope,
        mean(a.weight, b.weight),
        (values[0], values[1]),
        contributions(a.projection, b.projection),
        (totals[0], totals[1]),
        _streams(a, b),
    )


def contributions(a: Contributions, b: Contributions) -> Contributions:
    """`√([c_A]^σ [c_B]^σ)` on both streams.

    The contribution `a_i W_ij` of both plays has sign `σ` where values and weights agree in sign, or where both differ.
    """
    if isinstance(a, ByWeight) and isinstance(b, ByWeight):
        positive, negative = mean(a.positive, b.positive), mean(a.negative, b.negative)
        return ByWeight(a.linear, positive, negative, mean(a.value, b.value))
    (linear, weight, value), (_, other_weight, other_value) = _signed(a), _signed(b)
    same_value = value is other_value or torch.equal(value, other_value)
    same_weight = weight is other_weight or (same_value and torch.equal(weight, other_weight))
    if same_value and same_weight:
        return a
    terms = [Products(linear, agreeing(weight, other_weight), agreeing(value, other_value))]
    if not same_value and not same_weight:
        apart = opposing(value, other_value)
        if bool(apart.any()):
            terms.append(Products(linear, opposing(weight, other_weight), apart))
    return Together(terms)


def _signed(given: Contributions) -> tuple[LinearMap, Tensor, Tensor]:
    if isinstance(given, ByWeight):
        return given.linear, given.positive - given.negative, given.value
    assert isinstance(given, ByProduct)
    return given.linear, given.weight, given.value
