"""Kernels of affine and mix nodes: terms `diag(in) · W · diag(out)` with non-negative `W`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backplay.kernels.kernel import Kernel, Measure
from backplay.kernels.streams import Contributions, Stream, StreamKernel, is_empty
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

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.total == 0) if bool((self.total == 0).any()) else None


class RoutingLinear(StreamKernel):
    """Sign oracle, then a predecessor by the Gibbs policy of the stream (def:routing-recursion, eq:lrp-eps-policy)."""

    def __init__(self, contributions: Contributions, plus: Stream, minus: Stream) -> None:
        super().__init__(plus, minus)
        self.contributions = contributions

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        u, v = (mass * stream.coefficient(measure) for stream in (self.plus, self.minus))
        return (self.contributions.pull(u, v),)


class Sharing(Kernel):
    """A mix of non-negative values: one stream, policy `∝ (w_i a_i)^{1/τ}`, no outside option (S18)."""

    def __init__(self, linear: LinearMap, weight: Tensor, value: Tensor) -> None:
        self.linear, self.weight, self.value = linear, weight, value
        total = linear.apply(value, weight)
        self.inverse = torch.where(is_empty(total), 0, 1 / total)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        back = self.linear.adjoint(mass * self.inverse, self.weight, self.value.shape)
        return (self.value * back,)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.inverse == 0) if bool((self.inverse == 0).any()) else None
