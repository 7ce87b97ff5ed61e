"""The contributions `c_ij = a_i W_ij` of an affine node, split by sign: what the Routing Game chooses among (S12).

Their logarithms are what an action is worth (eq:routing-linear-action, eq:q-value).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.kernels.divergence import Divergence
from backplay.kernels.draws import Standing, gather
from backplay.kernels.geometric import agreeing, by_agreement, mean
from backplay.network.indicator import all_at_least, all_exceed, inverse
from backplay.network.memory import is_dense
from backplay.network.nodes import Affine

CANCELLATION = 2.0**-6  # a smaller share of a difference has lost too many digits (S37)

Streams = tuple[Tensor, Tensor]  # something for the positive stream and for the negative one


def is_empty(total: Tensor) -> Tensor:
    """Sums of non-negative terms that are 0, or so small that their inverse overflows (S16)."""
    return total < torch.finfo(total.dtype).tiny


def none_empty(total: Tensor) -> bool:
    """Whether no sum is empty."""
    return all_at_least(total, torch.finfo(total.dtype).tiny)


def inverse_of(total: Tensor) -> Tensor:
    """One over each sum, 0 where it is empty."""
    return inverse(total, torch.finfo(total.dtype).tiny)


def split_contributions(
    node: Affine, first: Tensor, second: Tensor, value: Tensor, net: Tensor | None = None
) -> tuple[Contributions, Streams]:
    """The contributions of values `a` at an affine node, and their sums `Z⁺, Z⁻`.

    `first` and `second` are `W⁺` and `W⁻` where the operand is never negative, else `W` and `|W|`. `net = Z⁺ − Z⁻`,
    where it is known, saves a product, and is written over.
    """
    if node.operand.nonnegative:
        by_weight = ByWeight(node, first, second, value)
        return by_weight, by_weight.sums(net)
    by_product = ByProduct(node, first, second, value)
    sums = by_product.differences(net)
    if sums is not None:
        return by_product, sums
    exact = by_product.exactly()
    return exact, exact.sums()


class Contributions(ABC):
    """A matrix of contributions to each stream, given by its factors and never written out."""

    node: Affine  # whose map carries them

    @abstractmethod
    def sums(self) -> Streams:
        """`Z⁺, Z⁻` (eq:routing-sigma-def without ε), each a sum of non-negative terms, shaped like the output."""

    @abstractmethod
    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        """`Σ_j [c_ij]⁺ u_j + [c_ij]⁻ v_j` for coefficients `u`, `v` on the two streams, which may be written over."""

    @abstractmethod
    def push(self, function: Tensor) -> Streams:
        """`Σ_i [c_ij]⁺ f_i` and `Σ_i [c_ij]⁻ f_i` for a function `f ≥ 0` of the predecessors."""

    @abstractmethod
    def factors(self, side: int) -> tuple[Tensor, Tensor]:
        """Weight `w` and value `a` with `[c_ij]^σ = [w_ij a_i]⁺` for the stream `σ = side`."""

    def exactly(self) -> Contributions:
        """The same contributions, summed without differences."""
        return self

    def geometric(self, other: Contributions) -> Contributions:
        """`√([c_A]^σ [c_B]^σ)` on both streams.

        The contribution `a_i W_ij` of both plays has sign `σ` where values and weights agree in sign, or where both
        differ.
        """
        (weight, value), (other_weight, other_value) = self._signed(), other._signed()
        same_value = value is other_value or torch.equal(value, other_value)
        same_weight = weight is other_weight or (same_value and torch.equal(weight, other_weight))
        if same_value and same_weight:
            return self
        if same_value or same_weight:
            return Common.of(self.node, agreeing(weight, other_weight), agreeing(value, other_value))
        weights, values = by_agreement(weight, other_weight), by_agreement(value, other_value)
        return Together([Common.of(self.node, *pair) for pair in zip(weights, values, strict=True)])

    def divergence(self, other: Contributions) -> tuple[Divergence, Divergence]:
        """`Σ_i c_A (log c_A − log c_B)` on both streams, and the sum of those `c_A` that B's stream lacks.

        It lacks them where `c_B` is 0 or of the other sign. With `c = a W` the logarithm splits into one of the values
        and one of the weights.
        """
        (weight, value), (other_weight, other_value) = self._signed(), other._signed()
        own = ByParts(self.node, weight, value)
        nats = _added([own.push(_log_ratio(value, other_value)), own.weighted(_log_ratio(weight, other_weight))])
        agree, oppose = weight.sign() == other_weight.sign(), weight.sign() == -other_weight.sign()
        lacking = (
            (value.sign() == other_value.sign(), ~agree),
            (value.sign() == -other_value.sign(), ~oppose),
            (other_value == 0, torch.ones_like(agree)),
        )
        parted: Streams = torch.zeros_like(nats[0]), torch.zeros_like(nats[1])
        for values, weights in lacking:
            some = ByParts(self.node, weight * weights, value * values)
            if bool(some.weight.any()) and bool(some.value.any()):
                parted = _added([parted, some.sums()])
        return Divergence(nats[0], parted[0]), Divergence(nats[1], parted[1])

    def _signed(self) -> tuple[Tensor, Tensor]:
        """`W` and `a`."""
        return self.factors(1)

    def scores(self, side: int, states: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Predecessors of single outputs and their contributions to a stream, both (states, predecessors).

        `states` are flat indices into the output of the given shape.
        """
        weight, value = self.factors(side)
        index, row = gather(self.node, weight, states, (value.shape, shape))
        return index, (row * value.flatten()[index]).clamp(min=0)

    def choose(self, side: int, walks: Standing) -> Tensor:
        """(walks,) a predecessor, in proportion to its contribution to a stream, times the walks' future if any."""
        weight, value = self.factors(side)
        flat = (value if walks.future is None else value * walks.future[0]).flatten()
        return walks.choose(self.node, weight, value.shape, lambda w, i: (w * flat[i]).clamp(min=0))[0]


@dataclass(frozen=True)
class ByWeight(Contributions):
    """Contributions of non-negative values: the sign is that of the weight, whose parts are given."""

    node: Affine
    positive: Tensor  # W⁺
    negative: Tensor  # W⁻
    value: Tensor  # a ≥ 0, shaped like the operand

    def sums(self, net: Tensor | None = None) -> Streams:
        plus = self.node.map.apply(self.value, self.positive)
        if net is not None:
            minus = torch.sub(plus, net, out=net)
            if all_exceed(minus, plus, CANCELLATION):
                return plus, minus
        return plus, self.node.map.apply(self.value, self.negative)

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        shape = self.value.shape
        up = self.node.map.adjoint(on_plus, self.positive, shape)
        down = self.node.map.adjoint(on_minus, self.negative, shape)
        # the adjoint of a sum is one number, seen many times over, and cannot be written to
        return (up.add_(down) if is_dense(up) else up + down).mul_(self.value)

    def push(self, function: Tensor) -> Streams:
        return replace(self, value=self.value * function).sums()

    def factors(self, side: int) -> tuple[Tensor, Tensor]:
        return self.positive if side > 0 else self.negative, self.value

    def geometric(self, other: Contributions) -> Contributions:
        if not isinstance(other, ByWeight):  # the operand of the other play's network may be signed
            return super().geometric(other)
        positive, negative = mean(self.positive, other.positive), mean(self.negative, other.negative)
        return ByWeight(self.node, positive, negative, mean(self.value, other.value))

    def _signed(self) -> tuple[Tensor, Tensor]:
        return self.positive - self.negative, self.value


@dataclass(frozen=True)
class ByProduct(Contributions):
    """Contributions of signed values, by differences: the sign is that of the product.

    `Z± = (|W||a| ± Wa)/2` and `½(|a| |W|ᵀ(u+v) + a Wᵀ(u−v))` cost two products each instead of four. Where one stream
    is so small that a difference cancels, `ByParts` takes the four products instead (S37).
    """

    node: Affine
    weight: Tensor  # W
    magnitude: Tensor  # |W|
    value: Tensor  # a, shaped like the operand

    def differences(self, net: Tensor | None = None) -> Streams | None:
        """`Z⁺, Z⁻` as a sum and a difference; None where a difference cancels."""
        total = self.node.map.apply(self.value.abs(), self.magnitude)
        net = self.node.map.apply(self.value, self.weight) if net is None else net
        plus, minus = (total + net).mul_(0.5), torch.sub(total, net, out=net).mul_(0.5)
        whole = all_exceed(plus, total, CANCELLATION) and all_exceed(minus, total, CANCELLATION)
        return (plus, minus) if whole else None

    def sums(self) -> Streams:
        return self.differences() or self.exactly().sums()

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        shape = self.value.shape
        found = self.value.abs().mul_(self.node.map.adjoint(on_plus + on_minus, self.magnitude, shape))
        net = self.node.map.adjoint(on_plus.sub_(on_minus), self.weight, shape)
        return found.addcmul_(self.value, net).mul_(0.5)

    def push(self, function: Tensor) -> Streams:
        return replace(self, value=self.value * function).sums()

    def factors(self, side: int) -> tuple[Tensor, Tensor]:
        return self.weight, self.value if side > 0 else -self.value

    def exactly(self) -> ByParts:
        return ByParts(self.node, self.weight, self.value)


@dataclass(frozen=True)
class ByParts(Contributions):
    """Contributions of signed values and weights, each taken apart by sign so that nothing cancels."""

    node: Affine
    weight: Tensor  # W
    value: Tensor  # a, shaped like the operand

    def sums(self) -> Streams:
        wide = self._as_channels()
        return _added([part.sums() for part in self._parts()]) if wide is None else wide.sums()

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        wide = self._as_channels()
        if wide is None:
            up, down = self._parts()
            return up.pull(on_plus, on_minus) + down.pull(on_plus, on_minus)
        up, down = wide.pull(on_plus, on_minus).chunk(2, 1 - self.weight.ndim)
        return up + down

    def push(self, function: Tensor) -> Streams:
        wide = self._as_channels()
        if wide is None:
            return _added([part.push(function) for part in self._parts()])
        return wide.push(torch.cat([function, function], 1 - self.weight.ndim))

    def _as_channels(self) -> ByWeight | None:
        """Both parts as channels of one operand: two products in place of four; None where the map cannot do that."""
        if not self.node.map.widens or self.weight.ndim < 2:
            return None
        up, down = self._parts()
        positive, negative = (torch.cat([a, b], 1) for a, b in ((up.positive, up.negative), (up.negative, up.positive)))
        return ByWeight(self.node, positive, negative, torch.cat([up.value, down.value], 1 - self.weight.ndim))

    def weighted(self, factor: Tensor) -> Streams:
        """`Σ_i [c_ij]^σ f_ij` for a factor of any sign, shaped like the weight."""
        parts = self._parts()
        return _added([replace(p, positive=p.positive * factor, negative=p.negative * factor).sums() for p in parts])

    def factors(self, side: int) -> tuple[Tensor, Tensor]:
        return self.weight, self.value if side > 0 else -self.value

    def _parts(self) -> tuple[ByWeight, ByWeight]:
        """Non-negative and negated negative values, as two sets of contributions by weight."""
        positive, negative = self.weight.clamp(min=0), (-self.weight).clamp(min=0)
        up, down = self.value.clamp(min=0), (-self.value).clamp(min=0)
        return ByWeight(self.node, positive, negative, up), ByWeight(self.node, negative, positive, down)


@dataclass(frozen=True)
class Common(ByProduct):
    """Contributions that two plays have in common: by differences, and by parts where these cancel."""

    @classmethod
    def of(cls, node: Affine, weight: Tensor, value: Tensor) -> Common:
        return cls(node, weight, weight.abs(), value)

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        shape = self.value.shape
        total = self.value.abs().mul_(self.node.map.adjoint(on_plus + on_minus, self.magnitude, shape))
        net = self.node.map.adjoint(on_plus - on_minus, self.weight, shape)
        pulled = torch.addcmul(total, self.value, net).mul_(0.5)
        return pulled if all_exceed(pulled, total, CANCELLATION) else self.exactly().pull(on_plus, on_minus)


@dataclass(frozen=True)
class Together(Contributions):
    """The sum of several sets of contributions: the overlap of two plays, which nobody draws from."""

    terms: Sequence[Contributions]

    def sums(self) -> Streams:
        return _added([term.sums() for term in self.terms])

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        first, *rest = (term.pull(on_plus, on_minus) for term in self.terms)
        return sum(rest, first)

    def push(self, function: Tensor) -> Streams:
        return _added([term.push(function) for term in self.terms])

    def factors(self, side: int) -> tuple[Tensor, Tensor]:
        raise UnsupportedError("the overlap of two plays has no factors of its own to draw from; sample either play.")


def _log_ratio(a: Tensor, b: Tensor) -> Tensor:
    """`log |a| − log |b|`, 0 where either is."""
    both = (a != 0) & (b != 0)
    return torch.where(both, a.abs(), 1).log() - torch.where(both, b.abs(), 1).log()


def _added(pairs: Sequence[Streams]) -> Streams:
    (plus, minus), *rest = pairs
    for p, m in rest:
        plus, minus = plus + p, minus + m
    return plus, minus
