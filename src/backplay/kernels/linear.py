"""Kernels of affine and mix nodes: terms `diag(in) · W · diag(out)` with non-negative `W`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backplay.kernels.kernel import WALK, Kernel, Measure
from backplay.kernels.streams import Contributions, StreamKernel, StreamState, is_empty
from backplay.network.linear import LinearMap


class StoppingLinear(Kernel):
    """Predecessor `i` with probability `|W_ij|/γ_j`, player switched where `W_ij < 0`, discount `γ_j` (S6)."""

    def __init__(
        self, linear: LinearMap, weight: Tensor, total: Tensor, shape: torch.Size, real: Tensor | None = None
    ) -> None:
        self.linear, self.weight, self.shape = linear, weight, shape
        self.real = real  # 0 on zero padding, which is no predecessor
        self.total = total  # γ, broadcastable against the output

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        if not measure.discounted:
            mass = torch.where(self.total > 0, mass / self.total, 0)
        weight = self.weight if measure.signed else self.weight.abs()
        back = self.linear.adjoint(mass, weight, self.shape)
        return (back if self.real is None else back * self.real,)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        value = values[0] if self.real is None else values[0] * self.real
        return torch.where(self.total > 0, self.linear.apply(value, self.weight.abs()) / self.total, 0)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.total == 0) if bool((self.total == 0).any()) else None


class RoutingLinear(StreamKernel):
    """Sign oracle, then a predecessor by the Gibbs policy of the stream (def:routing-recursion, eq:lrp-eps-policy)."""

    def __init__(self, contributions: Contributions, plus: StreamState, minus: StreamState) -> None:
        super().__init__(plus, minus)
        self.contributions = contributions

    @property
    def chosen(self) -> Contributions:
        return self.contributions

    def spread(self, on_plus: Tensor, on_minus: Tensor, contributions: Contributions | None = None) -> Tensor:
        return (contributions or self.contributions).pull(on_plus, on_minus)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        plus, minus = self.contributions.push(values[0])
        return plus * self.plus.coefficient(WALK) + minus * self.minus.coefficient(WALK)


class Sharing(Kernel):
    """A mix of non-negative values: one stream, policy `∝ (w_i a_i)^{1/τ}`, no outside option (S18)."""

    def __init__(self, linear: LinearMap, weight: Tensor, value: Tensor, inverse: Tensor | None = None) -> None:
        self.linear, self.weight, self.value = linear, weight, value
        if inverse is None:
            total = linear.apply(value, weight)
            inverse = torch.where(is_empty(total), 0, 1 / total)
        self.inverse = inverse

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        back = self.linear.adjoint(mass * self.inverse, self.weight, self.value.shape)
        return (self.value * back,)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.linear.apply(self.value * values[0], self.weight) * self.inverse

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.inverse == 0) if bool((self.inverse == 0).any()) else None
