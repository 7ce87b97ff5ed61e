"""Kernels of affine and mix nodes: terms `diag(in) · W · diag(out)` with non-negative `W`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.kernels.kernel import Kernel, Measure
from backplay.network.linear import LinearMap


class StoppingLinear(Kernel):
    """Predecessor `i` with probability `|W_ij|/γ_j`, player switched where `W_ij < 0`, discount `γ_j` (S6)."""

    def __init__(self, linear: LinearMap, weight: Tensor, total: Tensor, shape: torch.Size) -> None:
        self.linear, self.weight, self.shape = linear, weight, shape
        self.total = total  # γ, broadcastable against the output

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        if not measure.discounted:
            mass = torch.where(self.total > 0, mass / self.total, 0)
        weight = self.weight if measure.signed else self.weight.abs()
        return (self.linear.adjoint(mass, weight, self.shape),)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.total == 0) if bool((self.total == 0).any()) else None


@dataclass
class Streams:
    """The contributions `c_ij = a_i W_ij` of an affine node, split by sign (S12).

    `positive` and `negative` are the parts of the weight; `value` what players observe below. At another temperature
    all three are raised to the power `1/τ` before.
    """

    linear: LinearMap
    positive: Tensor
    negative: Tensor
    value: Tensor
    nonnegative: bool  # value ≥ 0 throughout

    def sums(self) -> tuple[Tensor, Tensor]:
        """`Z⁺, Z⁻`, each a sum of non-negative terms."""
        up = self.value if self.nonnegative else self.value.clamp(min=0)
        plus, minus = self.linear.apply(up, self.positive), self.linear.apply(up, self.negative)
        if self.nonnegative:
            return plus, minus
        down = (-self.value).clamp(min=0)
        return plus + self.linear.apply(down, self.negative), minus + self.linear.apply(down, self.positive)

    def pull(self, on_plus: Tensor, on_minus: Tensor) -> Tensor:
        """`Σ_j [c_ij]⁺ u_j + [c_ij]⁻ v_j` for coefficients `u`, `v` on the two streams."""
        shape = self.value.shape

        def back(u: Tensor, v: Tensor) -> Tensor:
            return self.linear.adjoint(u, self.positive, shape) + self.linear.adjoint(v, self.negative, shape)

        if self.nonnegative:
            return self.value * back(on_plus, on_minus)
        return self.value.clamp(min=0) * back(on_plus, on_minus) + (-self.value).clamp(min=0) * back(on_minus, on_plus)


@dataclass
class Stream:
    """One stream state of every output: what it pays out and where the rest goes (S13, S15, S16)."""

    route: Tensor  # probability of entering the stream over the denominator of its policy
    discount: Tensor | float  # trajectory discount of the stream
    switch: Tensor | float  # +1 where the player is kept, −1 where the turn goes over
    lost: Tensor  # probability of entering the stream and leaving by the outside option or through the bias
    leaked: Tensor | None = None  # the bias' part of `lost`

    def coefficient(self, measure: Measure) -> Tensor:
        c = self.route
        if measure.discounted:
            c = c * self.discount
        return c * self.switch if measure.signed else c


class RoutingLinear(Kernel):
    """Sign oracle, then a predecessor by the Gibbs policy of the stream (def:routing-recursion, eq:lrp-eps-policy)."""

    def __init__(self, streams: Streams, plus: Stream, minus: Stream) -> None:
        self.streams, self.plus, self.minus = streams, plus, minus

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        u, v = mass * self.plus.coefficient(measure), mass * self.minus.coefficient(measure)
        return (self.streams.pull(u, v),)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.plus.lost + self.minus.lost)

    def leaked(self, mass: Tensor) -> Tensor | None:
        if self.plus.leaked is None or self.minus.leaked is None:
            return None
        return mass * (self.plus.leaked + self.minus.leaked)


class Sharing(Kernel):
    """A mix of non-negative values: one stream, policy `∝ (w_i a_i)^{1/τ}`, no outside option (S18)."""

    def __init__(self, linear: LinearMap, weight: Tensor, value: Tensor) -> None:
        self.linear, self.weight, self.value = linear, weight, value
        total = linear.apply(value, weight)
        self.inverse = torch.where(total > 0, 1 / total, 0)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        back = self.linear.adjoint(mass * self.inverse, self.weight, self.value.shape)
        return (self.value * back,)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.inverse == 0) if bool((self.inverse == 0).any()) else None
