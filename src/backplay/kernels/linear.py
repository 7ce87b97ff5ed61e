"""Kernels of affine and mix nodes without streams: terms `diag(in) · W · diag(out)` with non-negative `W`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from backplay.kernels.contributions import ByParts, inverse_of, is_empty, none_empty
from backplay.kernels.divergence import Divergence, ends_apart
from backplay.kernels.draws import CEMETERY, Draw, Standing
from backplay.kernels.geometric import Overlap, agreeing, common_ends, mean
from backplay.kernels.kernel import Kernel, Measure
from backplay.network.indicator import all_nonzero
from backplay.network.nodes import Affine


@dataclass(frozen=True, eq=False, kw_only=True)
class StoppingLinear(Kernel):
    """Predecessor `i` with probability `|W_ij|/γ_j`, player switched where `W_ij < 0`, discount `γ_j`.

    eq:adf-kernel, and with every discount at 1 eq:adf-T (S6).
    """

    node: Affine
    weight: Tensor  # W
    totals: Callable[[], Tensor]  # gives γ, broadcastable against the output; a map alone does not need it
    shape: torch.Size  # of the operand
    real: Tensor | None = None  # like the operand, 0 on zero padding, which is no predecessor; None: all are real

    @cached_property
    def total(self) -> Tensor:
        """`γ`, broadcastable against the output."""
        return self.totals()

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        if not measure.discounted:
            mass = mass * inverse_of(self.total)
        weight = self.weight if measure.signed else self.weight.abs()
        back = self.node.map.adjoint(mass, weight, self.shape)
        return (back if self.real is None else back * self.real,)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        value = values[0] if self.real is None else values[0] * self.real
        return self.node.map.apply(value, self.weight.abs()) * inverse_of(self.total)

    def lost(self, mass: Tensor) -> Tensor | None:
        return None if none_empty(self.total) else mass * is_empty(self.total)

    def pull_players(self, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
        inverse = inverse_of(self.total)
        up, down = plus * inverse, minus * inverse
        parts = self.weight.clamp(min=0), (-self.weight).clamp(min=0)
        kept, switched = (
            [self.node.map.adjoint(mass, part, self.shape) for mass in masses]
            for part, masses in zip(parts, ((up, down), (down, up)), strict=True)
        )
        real = 1.0 if self.real is None else self.real
        return [((kept[0] + switched[0]) * real, (kept[1] + switched[1]) * real)]

    def geometric(self, other: StoppingLinear) -> Kernel:
        moves = StoppingLinear(
            node=self.node,
            weight=agreeing(self.weight, other.weight),
            totals=lambda: mean(self.total, other.total),
            shape=self.shape,
            real=self.real,
        )
        return Overlap(moves, common_ends(self, other, self.total))

    def divergence(self, other: StoppingLinear) -> Divergence:
        kept, switched = self._weights().divergence(other._weights())
        inverse = [inverse_of(k.total) for k in (self, other)]
        rows = kept.plus(switched).normalised((inverse[0] > 0).to(inverse[0].dtype), *inverse)
        return rows.plus(ends_apart(self, other, self.total))

    def _weights(self) -> ByParts:
        """The rows by the sign of their weights, as contributions of real predecessors, each of value 1."""
        ones = torch.ones((), dtype=self.weight.dtype, device=self.weight.device).expand(self.shape)
        return ByParts(self.node, self.weight, ones if self.real is None else self.real.expand(self.shape))

    def draw(self, walks: Standing) -> Draw:
        factors = [f.expand(self.shape).flatten() for f in (self.real, *(walks.future or ())) if f is not None]

        def score(row: Tensor, index: Tensor) -> Tensor:
            size = row.abs()
            for factor in factors:
                size = size * factor[index]
            return size

        element, towards = walks.choose(self.node, self.weight, self.shape, score)
        empty = is_empty(walks.at(self.total))
        return Draw.to(element, torch.where(empty, CEMETERY, 0), torch.where(towards < 0, -1, 1))


@dataclass(frozen=True, eq=False, kw_only=True)
class Sharing(Kernel):
    """A mix of non-negative values: one stream, policy `∝ (w_i a_i)^{1/τ}`, no outside option (S18)."""

    node: Affine
    weight: Tensor  # w^{1/τ}
    value: Tensor  # a^{1/τ}, shaped like the operand
    inverse: Tensor  # 1 / Σ_i (w_i a_i)^{1/τ}, 0 where that sum is; shaped like the output

    @classmethod
    def of(cls, node: Affine, weight: Tensor, value: Tensor) -> Sharing:
        """With the sums worked out."""
        total = node.map.apply(value, weight)
        return cls(node=node, weight=weight, value=value, inverse=inverse_of(total))

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        back = self.node.map.adjoint(mass * self.inverse, self.weight, self.value.shape)
        return (self.value * back,)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.node.map.apply(self.value * values[0], self.weight) * self.inverse

    def lost(self, mass: Tensor) -> Tensor | None:
        return None if all_nonzero(self.inverse) else mass * (self.inverse == 0)

    def geometric(self, other: Sharing) -> Kernel:
        moves = Sharing(
            node=self.node,
            weight=mean(self.weight, other.weight),
            value=mean(self.value, other.value),
            inverse=mean(self.inverse, other.inverse),
        )
        return Overlap(moves, common_ends(self, other, moves.inverse))

    def divergence(self, other: Sharing) -> Divergence:
        own, its = (ByParts(k.node, k.weight, k.value) for k in (self, other))
        rows, _ = own.divergence(its)
        rows = rows.normalised((self.inverse > 0).to(self.inverse.dtype), self.inverse, other.inverse)
        return rows.plus(ends_apart(self, other, self.inverse))

    def draw(self, walks: Standing) -> Draw:
        value = (self.value if walks.future is None else self.value * walks.future[0]).flatten()
        element, _ = walks.choose(self.node, self.weight, self.value.shape, lambda w, i: w * value[i])
        empty = walks.at(self.inverse) == 0
        return Draw.to(element, torch.where(empty, CEMETERY, 0))
