"""Stream states of the Routing Game: contributions split by sign, and the policy on each stream (S12-S16)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from backplay.kernels.kernel import Kernel, Measure
from backplay.network.linear import LinearMap

CANCELLATION = 2.0**-6  # a smaller share of a difference has lost too many digits (S37)


class Contributions(Protocol):
    """The contributions `c_ij = a_i W_ij` of an affine node, split by sign (S12)."""

    def sums(self, net: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`Z⁺, Z⁻`, each a sum of non-negative terms; `net = Z⁺ − Z⁻`, where it is known, saves a product."""
        ...

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        """`Σ_j [c_ij]⁺ u_j + [c_ij]⁻ v_j` for coefficients `u`, `v` on the two streams."""
        ...

    def push(self, function: Tensor) -> tuple[Tensor, Tensor]:
        """`Σ_i [c_ij]⁺ f_i` and `Σ_i [c_ij]⁻ f_i` for a function `f ≥ 0` of the predecessors."""
        ...


@dataclass
class ByWeight:
    """Contributions of non-negative values: the sign is that of the weight, whose parts are given."""

    linear: LinearMap
    positive: Tensor
    negative: Tensor
    value: Tensor

    def sums(self, net: Tensor | None = None) -> tuple[Tensor, Tensor]:
        plus = self.linear.apply(self.value, self.positive)
        if net is not None:
            minus = plus - net
            if bool((minus >= CANCELLATION * plus).all()):
                return plus, minus
        return plus, self.linear.apply(self.value, self.negative)

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        shape = self.value.shape
        up = self.linear.adjoint(on_plus, self.positive, shape)
        return self.value * (up + self.linear.adjoint(on_minus, self.negative, shape))

    def push(self, function: Tensor) -> tuple[Tensor, Tensor]:
        return replace(self, value=self.value * function).sums()


@dataclass
class ByProduct:
    """Contributions of signed values: the sign is that of the product.

    `Z± = (|W||a| ± Wa)/2` and `½(|a| |W|ᵀ(u+v) + a Wᵀ(u−v))` cost two products each instead of four; where one stream
    is so small that the difference cancels, the four products of parts are taken (S37).
    """

    linear: LinearMap
    weight: Tensor
    magnitude: Tensor  # |W|
    value: Tensor
    exact: bool = False  # take the parts

    def sums(self, net: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = self.linear.apply(self.value.abs(), self.magnitude)
        net = self.linear.apply(self.value, self.weight) if net is None else net
        # the smaller stream is (total − |net|)/2
        self.exact = not bool((net.abs() <= (1 - 2 * CANCELLATION) * total).all())
        return self._exact_sums() if self.exact else ((total + net).mul_(0.5), (total - net).mul_(0.5))

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        shape = self.value.shape
        if self.exact:
            return self._exact_pull(on_plus, on_minus)
        both = self.linear.adjoint(on_plus + on_minus, self.magnitude, shape)
        net = self.linear.adjoint(on_plus - on_minus, self.weight, shape)
        # into the fresh magnitude: the adjoint of a sum is one number, seen many times over, and cannot be written to
        return self.value.abs().mul_(both).addcmul_(self.value, net).mul_(0.5)

    def push(self, function: Tensor) -> tuple[Tensor, Tensor]:
        return replace(self, value=self.value * function).sums()

    def _parts(self) -> tuple[ByWeight, ByWeight]:
        """Non-negative and negated negative values, as two sets of contributions by weight."""
        positive, negative = self.weight.clamp(min=0), (-self.weight).clamp(min=0)
        up, down = self.value.clamp(min=0), (-self.value).clamp(min=0)
        return ByWeight(self.linear, positive, negative, up), ByWeight(self.linear, negative, positive, down)

    def _exact_sums(self) -> tuple[Tensor, Tensor]:
        (a, b), (c, d) = (part.sums() for part in self._parts())
        return a + c, b + d

    def _exact_pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        up, down = self._parts()
        return up.pull(on_plus, on_minus) + down.pull(on_plus, on_minus)


def part(given: Contributions, side: int) -> tuple[LinearMap, Tensor, Tensor, int]:
    """Map, weight, value and sign with `[c_ij]^σ = [sign · W_ij a_i]⁺` on one side of a play's contributions."""
    assert isinstance(given, (ByWeight, ByProduct))
    if isinstance(given, ByWeight):
        return given.linear, given.positive if side > 0 else given.negative, given.value, 1
    return given.linear, given.weight, given.value, side


def is_empty(total: Tensor) -> Tensor:
    """Sums of non-negative terms that are 0, or so small that their inverse overflows (S16)."""
    return total < torch.finfo(total.dtype).tiny


class StreamState(Protocol):
    """What a kernel asks of a stream state."""

    def coefficient(self, measure: Measure) -> Tensor:
        """What a unit of mass at the output sends into each unit of contribution."""
        ...

    def outside(self) -> Tensor:
        """Probability of entering the stream and ending there in †."""
        ...

    def leak(self) -> Tensor | None:
        """The part of `outside` that the bias absorbs; None where no bias does."""
        ...


@dataclass
class Stream:
    """One stream state of every output: what it pays out and where the rest goes (S13, S15, S16)."""

    total: Tensor  # Z^σ, the sum of its contributions
    aside: Tensor  # outside option and absorbed bias, which share the denominator
    absorbed: Tensor | None  # the bias' part of `aside`
    entry: Tensor | float  # probability that the sign oracle enters it
    discount: Tensor | float  # trajectory discount
    turn: Tensor | float  # +1 where the player is kept, −1 where the turn goes over

    def coefficient(self, measure: Measure) -> Tensor:
        """What a unit of mass at the output sends into each unit of contribution."""
        factor = self.entry
        if measure.discounted:
            factor = factor * self.discount
        if measure.signed:
            factor = factor * self.turn
        return factor / self._denominator()

    def outside(self) -> Tensor:
        """Probability of entering the stream and ending there; an empty stream is all outside."""
        return self.entry * torch.where(is_empty(self.total), 1.0, self.aside / self._denominator())

    def leak(self) -> Tensor | None:
        """Probability of entering the stream and leaving through the bias."""
        if self.absorbed is None:
            return None
        return self.entry * torch.where(is_empty(self.total), 0.0, self.absorbed / self._denominator())

    def _denominator(self) -> Tensor:
        denominator = self.total + self.aside
        if not bool(is_empty(self.aside).any()):
            return denominator
        # an empty stream without outside option: its contributions are 0, so any denominator serves
        return denominator.masked_fill_(is_empty(denominator), 1.0)


class StreamKernel(Kernel):
    """A sign oracle followed by two stream states; subclasses say what is chosen there."""

    def __init__(self, plus: StreamState, minus: StreamState) -> None:
        self.plus, self.minus = plus, minus

    def stream(self, side: int) -> Stream:
        """The stream state of one play on the + or − side."""
        found = self.plus if side > 0 else self.minus
        assert isinstance(found, Stream)
        return found

    @property
    @abstractmethod
    def chosen(self) -> Contributions:
        """The contributions among which the last choice is made."""

    @abstractmethod
    def spread(self, on_plus: Tensor, on_minus: Tensor, contributions: Contributions | None = None) -> Tensor:
        """Carry masses on the two stream states, already divided by the denominators, to the carrier.

        `contributions` may stand in for `chosen`.
        """

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        u, v = (mass * stream.coefficient(measure) for stream in (self.plus, self.minus))
        return (self.spread(u, v),)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.plus.outside() + self.minus.outside())

    def leaked(self, mass: Tensor) -> Tensor | None:
        plus, minus = self.plus.leak(), self.minus.leak()
        return None if plus is None or minus is None else mass * (plus + minus)
