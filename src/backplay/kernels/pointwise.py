"""Kernels that stay at their element: scales, gates (ReLU, GELU and their kin), sums and skip connections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from backplay.kernels.divergence import Divergence, elementwise
from backplay.kernels.draws import CEMETERY, Draw, Standing
from backplay.kernels.geometric import Overlap, agreeing, common_ends, mean
from backplay.kernels.kernel import GATES, WALK, Kernel, Measure, switch_players
from backplay.network.indicator import all_nonzero
from backplay.network.memory import is_dense


@dataclass(frozen=True, eq=False)
class PassThrough(Kernel):
    """One predecessor, player kept, discount 1: diagonals and norms in the Routing Game (S17)."""

    one_each: ClassVar[bool] = True

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return (mass,)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0]

    def geometric(self, other: PassThrough) -> Kernel:
        return self

    def divergence(self, other: PassThrough) -> Divergence:
        return Divergence(torch.zeros(()), torch.zeros(()))

    def draw(self, walks: Standing) -> Draw:
        return Draw.to(walks.states)


@dataclass(frozen=True, eq=False)
class Scaling(Kernel):
    """One predecessor, discount `|scale|`, player switched where the scale is negative, scale 0 → † (S7)."""

    one_each: ClassVar[bool] = True

    scale: Tensor  # broadcastable against the output

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return (mass * _coefficient(self.scale, measure),)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0] * _coefficient(self.scale, WALK)

    def lost(self, mass: Tensor) -> Tensor | None:
        return None if all_nonzero(self.scale) else mass * (self.scale == 0)

    def pull_players(self, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
        return switch_players(self, plus, minus)

    def geometric(self, other: Scaling) -> Kernel:
        moves = Scaling(agreeing(self.scale.sign(), other.scale.sign()))
        return Overlap(moves, common_ends(self, other, self.scale))

    def divergence(self, other: Scaling) -> Divergence:
        return elementwise(self, other, self.scale)

    def draw(self, walks: Standing) -> Draw:
        sign = _sign_at(self.scale, walks)
        return Draw.to(walks.states, torch.where(sign == 0, CEMETERY, 0), torch.where(sign < 0, -1, 1))


def _coefficient(scale: Tensor, measure: Measure) -> Tensor:
    if measure.discounted:
        return scale if measure.signed else scale.abs()
    return scale.sign() if measure.signed else (scale != 0).to(scale.dtype)


def _sign_at(scale: Tensor, walks: Standing) -> Tensor:
    return walks.at(scale).sign().long()


@dataclass(frozen=True, eq=False)
class Gating(Kernel):
    """A gate of either game: continue with probability `min(|slope|, 1)` and discount `max(|slope|, 1)`, else † (S8).

    To stop leads to † (eq:adf-kernel-stop).

    `scale` is a constant behind the gate, a diagonal of its own (S3a): it discounts and changes no probability.
    """

    one_each: ClassVar[bool] = True
    ending: ClassVar[str] = GATES

    slope: Tensor  # shaped like the output; in the Routing Game the probability `c(z)` itself
    scale: float = 1.0  # not negative: `of` moves a sign to the slope
    overwrite: bool = False  # whether `pull` may write its result over the slope

    @classmethod
    def of(cls, slope: Tensor, scale: float) -> Gating:
        """A gate with a constant of any sign behind it."""
        return cls(slope if scale >= 0 else -slope, abs(scale))

    def once(self) -> Kernel:
        return replace(self, overwrite=True)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        factor = self._factor(measure)
        fits = self.overwrite and factor.shape == mass.shape and factor.dtype == mass.dtype and is_dense(factor)
        return (torch.mul(mass, factor, out=factor if fits else None),)

    def _factor(self, measure: Measure) -> Tensor:
        """What a unit of mass becomes."""
        if measure.discounted:
            slope = self.slope if self.scale == 1 else self.slope * self.scale
            return slope if measure.signed else slope.abs()
        probability = self.slope.clamp(-1, 1)
        return probability if measure.signed else probability.abs()

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0] * self.slope.abs().clamp(max=1)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (1 - self.slope.abs().clamp(max=1))

    def pull_players(self, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
        return switch_players(self, plus, minus)

    def geometric(self, other: Gating) -> Kernel:
        """What is open in one play and shut in the other has no overlap (lem:alive-mismatch)."""
        moves = Gating(agreeing(self.slope.clamp(-1, 1), other.slope.clamp(-1, 1)))
        return Overlap(moves, common_ends(self, other, self.slope))

    def divergence(self, other: Gating) -> Divergence:
        return elementwise(self, other, self.slope)

    def draw(self, walks: Standing) -> Draw:
        slope = walks.at(self.slope)
        turn = torch.where(slope < 0, -1, 1)
        if walks.future is not None:
            return Draw.to(walks.states, 0, turn)
        goes = walks.uniform() < slope.abs()
        return Draw.to(walks.states, torch.where(goes, 0, CEMETERY), turn)


def evenly(carriers: int, copies: bool = False) -> Kernel:
    """One of two carriers half of the time each; one alone gets all."""
    return PassThrough() if carriers == 1 else Split((0.5, 0.5), copies=copies)


@dataclass(frozen=True, eq=False)
class Split(Kernel):
    """One of two operands at random: a sum, so a skip connection, or a product of two factors that both carry.

    The addition oracle of both games (def:addition-subgame, def:routing-addition).
    """

    one_each: ClassVar[bool] = True

    shares: Sequence[float | Tensor]  # probability of each operand; they sum to 1
    discounts: Sequence[Tensor] | None = None  # of each operand, 1 if None; a negative one switches players
    copies: bool = False  # the discount is one over the share: each operand gets all of the discounted mass (S7)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        sent: dict[float, Tensor] = {1.0: mass}  # what equal shares send is one tensor
        for factor in (factors := self.factors(measure)):
            if not isinstance(factor, Tensor) and factor not in sent:
                sent[factor] = mass * factor
        return [mass * f if isinstance(f, Tensor) else sent[f] for f in factors]

    def push(self, values: Sequence[Tensor]) -> Tensor:
        parts = [value * factor for value, factor in zip(values, self.factors(WALK), strict=True)]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    def factors(self, measure: Measure) -> list[float | Tensor]:
        """What a unit of mass sends to each operand."""
        if self.copies and measure.discounted:
            return [1.0] * len(self.shares)
        if self.discounts is None:
            return list(self.shares)
        return [share * _coefficient(d, measure) for share, d in zip(self.shares, self.discounts, strict=True)]

    def lost(self, mass: Tensor) -> Tensor | None:
        if self.discounts is None:
            return None
        ends = [share * (d == 0) for share, d in zip(self.shares, self.discounts, strict=True)]
        return mass * torch.stack(torch.broadcast_tensors(*ends)).sum(0)

    def pull_players(self, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
        return switch_players(self, plus, minus)

    def geometric(self, other: Split) -> Kernel:
        """Shares to their geometric mean; a switched and a kept player do not meet."""
        shares = [_share_mean(left, right) for left, right in zip(self.shares, other.shares, strict=True)]
        pairs = zip(self.discounts or [], other.discounts or [], strict=True)
        signs = [agreeing(left.sign(), right.sign()) for left, right in pairs]
        return Overlap(Split(shares, signs or None), common_ends(self, other, signs[0]) if signs else None)

    def divergence(self, other: Split) -> Divergence:
        held = [f for k in (self, other) for f in (*k.shares, *(k.discounts or ())) if isinstance(f, Tensor)]
        return elementwise(self, other, held[0] if held else torch.ones((), dtype=torch.float64))

    def draw(self, walks: Standing) -> Draw:
        share = walks.at(self.shares[0])
        if walks.future is not None:
            pairs = zip(self.factors(WALK), walks.future, strict=True)
            first, second = (walks.at(factor) * walks.at(h) for factor, h in pairs)
            share = first / (first + second)
        carrier = (walks.uniform() >= share).long()
        turn = torch.ones_like(carrier)
        for k, d in enumerate(self.discounts or ()):
            sign = _sign_at(d, walks)
            turn = torch.where(carrier == k, torch.where(sign < 0, -1, 1), turn)
            carrier = torch.where((carrier == k) & (sign == 0), CEMETERY, carrier)
        return Draw.to(walks.states, carrier, turn)


def _share_mean(a: float | Tensor, b: float | Tensor) -> float | Tensor:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return math.sqrt(a * b)
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    left, right = (s if isinstance(s, Tensor) else torch.full_like(like, s) for s in (a, b))
    return mean(left, right)
