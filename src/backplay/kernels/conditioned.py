"""Conditioning on a function of the states by the Doob transform (eq:conditioned-kernel, S30)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backplay.kernels.kernel import Kernel, Measure
from backplay.network.mass import Mass
from backplay.values.powers import root


class Conditioned(Kernel):
    """`T(s → s') h(s') / h(s)`: the walk given that it survives, which never ends on the way."""

    def __init__(self, kernel: Kernel, here: Mass, below: Sequence[Mass]) -> None:
        self.kernel, self.carriers = kernel, kernel.carriers
        small = torch.finfo(here.value.dtype).tiny  # no surviving walk passes below it
        self.inverse = torch.where(here.value > small, 1 / here.value, 0)
        # scales cancel but for one step's worth of survival, which float32 holds; nothing stays nothing on any scale
        self.below = [b.times(b.exponent - here.exponent).masked_fill(b.value == 0, 0) for b in below]

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        moved = self.kernel.pull(mass * self.inverse, measure)
        return [m * b for m, b in zip(moved, self.below, strict=True)]


def between(a: Mass, b: Mass) -> Mass:
    """`√(h_A h_B)` with its scale."""
    half = torch.floor((a.exponent + b.exponent) / 2)
    rest = torch.exp2((a.exponent + b.exponent) / 2 - half)
    value = root(a.value) * root(b.value)
    return Mass(value * a.layout.spread(rest.to(value.dtype), value), half, a.layout)
