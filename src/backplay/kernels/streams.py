"""Stream states of the Routing Game: a sign oracle, and the policy on each of its two streams (S13-S16)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backplay.kernels.contributions import Contributions, Streams, is_empty, none_empty
from backplay.kernels.divergence import Divergence, apart
from backplay.kernels.draws import CEMETERY, Draw, Standing
from backplay.kernels.geometric import mean
from backplay.kernels.kernel import BIASES, EMPTY, OUTSIDE, WALK, Kernel, Measure, Way
from backplay.network.indicator import below

_NEAR = 2.0**-20, 2.0**20  # factors that leave every sum in range


class StreamState(ABC):
    """What a kernel asks of a stream state; all tensors are broadcastable against the output."""

    @abstractmethod
    def coefficient(self, measure: Measure) -> Tensor:
        """What a unit of mass at the output sends into each unit of contribution."""

    def send(self, mass: Tensor, measure: Measure, overwrite: bool) -> Tensor:
        """Mass at the output, as it is sent into each unit of contribution; it may `overwrite` what the state holds."""
        return mass * self.coefficient(measure)

    @abstractmethod
    def outside(self) -> Tensor:
        """Probability of entering the stream and ending there in †."""

    def leak(self) -> Tensor | None:
        """The part of `outside` that the bias absorbs; None where no bias does."""
        return None


@dataclass(frozen=True, kw_only=True)
class Stream(StreamState):
    """One stream state of every output: what it pays out and where the rest goes (S13, S15, S16)."""

    total: Tensor  # Z^σ, the sum of its contributions
    aside: Tensor  # `ε^{1/τ}` of the outside option, and the absorbed bias: beside `total` in the denominator
    absorbed: Tensor | None  # the bias' part of `aside`
    entry: Tensor | float  # probability that the sign oracle enters it
    discount: Tensor | float  # trajectory discount (eq:routing-edge-discount)
    turn: Tensor | float  # +1 where the player is kept, −1 where the turn goes over

    def _factor(self, measure: Measure) -> Tensor | float:
        """The chance of entering, discounted and signed as the measure has it."""
        factor = self.entry
        if measure.discounted:
            factor = factor * self.discount
        return factor * self.turn if measure.signed else factor

    def coefficient(self, measure: Measure) -> Tensor:
        return self._factor(measure) / self._denominator()

    def send(self, mass: Tensor, measure: Measure, overwrite: bool) -> Tensor:
        factor = self._factor(measure)
        if isinstance(factor, Tensor) or not _NEAR[0] <= abs(factor) <= _NEAR[1] or not none_empty(self.aside):
            return mass * (factor / self._denominator())  # mass over a tiny denominator is ∞, and ∞ · 0 NaN
        # mass · factor / (total + aside), with the factor inside: one pass over memory less
        spare = self.total if overwrite else torch.empty_like(self.total)
        denominator = torch.add(self.aside / factor, self.total, alpha=1 / factor, out=spare)
        return torch.div(mass, denominator, out=denominator if denominator.shape == mass.shape else None)

    def outside(self) -> Tensor:
        """An empty stream is all outside."""
        return self.entry * self._ended(self.aside, 1.0)

    def leak(self) -> Tensor | None:
        if self.absorbed is None:
            return None
        return self.entry * self._ended(self.absorbed, 0.0)

    def _ended(self, aside: Tensor, empty: float) -> Tensor:
        """The share of what stands aside on each stream; `empty` where there is nothing else."""
        share = aside / self._denominator()
        if none_empty(self.total):
            return share
        none = below(self.total, torch.finfo(self.total.dtype).tiny)
        return share * (1 - none) + empty * none

    def causes(self, mass: Tensor) -> Iterator[tuple[str, Tensor]]:
        """What of the mass ends on this stream, by the reason."""
        lost, leak = self.outside(), self.leak()
        empty = torch.where(is_empty(self.total), lost, 0)
        yield EMPTY, mass * empty
        if leak is not None:
            yield BIASES, mass * leak
        yield OUTSIDE, mass * (lost - empty - (0 if leak is None else leak))

    def exchanged(self, plus: Tensor, minus: Tensor) -> Streams:
        """Masses of both players as they leave the stream: exchanged where the turn goes over."""
        kept = (torch.as_tensor(self.turn, device=plus.device) > 0).to(plus.dtype)
        return kept * plus + (1 - kept) * minus, kept * minus + (1 - kept) * plus

    def geometric(self, other: Stream) -> StreamOverlap:
        """Both plays' state at once; it is the same state only where the same player owns it (S16)."""
        factor = mean(self.coefficient(WALK), other.coefficient(WALK))
        ends = mean(self.outside(), other.outside())
        if not isinstance(self.turn, Tensor) and not isinstance(other.turn, Tensor):
            return StreamOverlap(factor, ends)
        dtype = self.total.dtype
        same = torch.as_tensor(self.turn, dtype=dtype) == torch.as_tensor(other.turn, dtype=dtype)
        return StreamOverlap(factor * same.to(dtype), ends * same.to(dtype))

    def divergence(self, other: Stream, scores: Divergence) -> Divergence:
        """Of entering the stream and what is chosen there, given the divergence of the contributions."""
        own, its = self.coefficient(WALK), other.coefficient(WALK)
        moved = torch.where(is_empty(self.total), 0, self.total * own)
        rows = scores.normalised(moved, own, torch.where(is_empty(other.total), 0, its))
        rows = rows.plus(apart(self.outside(), other.outside()))
        if not isinstance(self.turn, Tensor) and not isinstance(other.turn, Tensor):
            return rows
        dtype = self.total.dtype  # a stream that leads on to the other player is another state: no moves agree (S16)
        same = torch.as_tensor(self.turn, dtype=dtype) == torch.as_tensor(other.turn, dtype=dtype)
        return Divergence(rows.nats * same, torch.where(same, rows.parted, moved + self.outside()))

    def _denominator(self) -> Tensor:
        denominator = self.total + self.aside
        if none_empty(self.aside) or none_empty(denominator):
            return denominator
        # an empty stream without outside option: its contributions are 0, so any denominator serves
        return denominator.add_(below(denominator, torch.finfo(denominator.dtype).tiny))


@dataclass(frozen=True)
class StreamOverlap(StreamState):
    """A stream state of two plays at once."""

    factor: Tensor  # geometric mean of their coefficients
    ends: Tensor  # and of what ends there

    def coefficient(self, measure: Measure) -> Tensor:
        return self.factor

    def outside(self) -> Tensor:
        return self.ends


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamKernel(Kernel):
    """A sign oracle followed by two stream states; subclasses say what is chosen there.

    Both steps at once: that leaves out states and no walk (eq:rg-T-act, rem:rg-natural-equivalence).
    """

    plus: StreamState
    minus: StreamState
    overwrite: bool = False  # whether `pull` may write over the sums of the streams

    def once(self) -> Kernel:
        return replace(self, overwrite=True)

    def stream(self, side: int) -> Stream:
        """The stream state of one play on the + or − side."""
        state = self.plus if side > 0 else self.minus
        assert isinstance(state, Stream)
        return state

    @abstractmethod
    def spread(self, on_plus: Tensor, on_minus: Tensor, exact: bool = False) -> Tensor:
        """Carry masses on the two stream states, already divided by the denominators, to the carrier.

        If `exact`, without differences of contributions.
        """

    @abstractmethod
    def at_streams(self, function: Tensor) -> Streams:
        """Sum over each stream's predecessors of their contributions times a function of them."""

    @abstractmethod
    def choose(self, side: int, walks: Standing) -> tuple[Tensor, Tensor | int]:
        """(walks,) a predecessor on a stream, in proportion to its contribution, times the walks' future if any.

        Beside it the state that is crossed on the way there, as a flat index for `crossings`, −1 without one.
        """

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        """`α π₊` of a player's own mass and `β π₋` of the other's (eq:routing-per-state-recursion), signed or not."""
        on_plus, on_minus = (stream.send(mass, measure, self.overwrite) for stream in (self.plus, self.minus))
        return (self.spread(on_plus, on_minus),)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        plus, minus = self.at_streams(values[0])
        return plus * self.plus.coefficient(WALK) + minus * self.minus.coefficient(WALK)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.plus.outside() + self.minus.outside())

    def leaked(self, mass: Tensor) -> Tensor | None:
        plus, minus = self.plus.leak(), self.minus.leak()
        return None if plus is None or minus is None else mass * (plus + minus)

    def causes(self, mass: Tensor) -> Iterator[tuple[str, Tensor]]:
        for side in (1, -1):
            yield from self.stream(side).causes(mass)

    def pull_players(self, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
        u, v = self.plus.coefficient(WALK), self.minus.coefficient(WALK)
        up, down = self.stream(-1).exchanged(plus, minus)
        return [(self.spread(plus * u, up * v, exact=True), self.spread(minus * u, down * v, exact=True))]

    def pull_streams(self, tagged: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        mass = torch.stack(list(tagged)).sum(0)
        zero = torch.zeros_like(mass)
        up = self.spread(mass * self.plus.coefficient(WALK), zero, exact=True)
        down = self.spread(zero, mass * self.minus.coefficient(WALK), exact=True)
        return [(up, down, torch.zeros_like(up))]

    def ways(self, plus: Tensor, minus: Tensor) -> list[Way]:
        zero = torch.zeros_like(plus)
        u, v = self.plus.coefficient(WALK), self.minus.coefficient(WALK)
        on_plus = [Way([self.spread(m * u, zero, exact=True)], m * self.plus.outside()) for m in (plus, minus)]
        exchanged = self.stream(-1).exchanged(plus, minus)
        return on_plus + [Way([self.spread(zero, m * v, exact=True)], m * self.minus.outside()) for m in exchanged]

    @abstractmethod
    def scores_apart(self, other: Any) -> tuple[Divergence, Divergence]:
        """Of what is chosen on each stream in two plays, before it is divided by the denominators."""

    def divergence(self, other: StreamKernel) -> Divergence:
        plus, minus = (
            self.stream(side).divergence(other.stream(side), scores)
            for side, scores in zip((1, -1), self.scores_apart(other), strict=True)
        )
        return plus.plus(minus)

    def draw(self, walks: Standing) -> Draw:
        """The sign oracle, the outside option, then a predecessor on each stream."""
        sign = torch.where(walks.uniform() < self._plus_chance(walks), 1, -1)
        element, turn, between = torch.zeros_like(sign), torch.ones_like(sign), torch.full_like(sign, -1)
        out = torch.zeros_like(sign, dtype=torch.bool)
        for side in (1, -1):
            stream, on = self.stream(side), (sign == side).nonzero()[:, 0]
            if not len(on):
                continue
            entered = walks.among(on)
            if walks.future is None:
                out[on] = entered.uniform() * entered.at(stream.entry) < entered.at(stream.outside())
            turn[on] = entered.at(stream.turn).long()
            on = on[~out[on]]
            if len(on):
                element[on], between[on] = self.choose(side, walks.among(on))
        return Draw.to(element, torch.where(out, CEMETERY, 0), turn, sign, between)

    def _plus_chance(self, walks: Standing) -> Tensor:
        """(walks,) the probability of the + stream, given the walks' future if any."""
        if walks.future is None:
            return walks.at(self.stream(1).entry)
        streams = zip((self.plus, self.minus), self.at_streams(walks.future[0]), strict=True)
        plus, minus = (walks.at(stream.coefficient(WALK)) * walks.at(ahead) for stream, ahead in streams)
        return plus / (plus + minus)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoutingLinear(StreamKernel):
    """Sign oracle, then a predecessor by the Gibbs policy of the stream (def:routing-recursion, eq:gibbs-policy).

    At `τ = 1` that is eq:lrp-eps-policy, at any other the same on contributions to the power `1/τ`
    (eq:routing-spne-linear, eq:routing-gibbs-general-tau, eq:rg-T).
    """

    contributions: Contributions

    def spread(self, on_plus: Tensor, on_minus: Tensor, exact: bool = False) -> Tensor:
        contributions = self.contributions.exactly() if exact else self.contributions
        return contributions.pull(on_plus, on_minus)

    def at_streams(self, function: Tensor) -> Streams:
        return self.contributions.push(function)

    def choose(self, side: int, walks: Standing) -> tuple[Tensor, Tensor | int]:
        return self.contributions.choose(side, walks), -1

    def scores_apart(self, other: RoutingLinear) -> tuple[Divergence, Divergence]:
        return self.contributions.divergence(other.contributions)

    def geometric(self, other: RoutingLinear) -> Kernel:
        return RoutingLinear(
            contributions=self.contributions.geometric(other.contributions),
            plus=self.stream(1).geometric(other.stream(1)),
            minus=self.stream(-1).geometric(other.stream(-1)),
        )
