"""Mass on the states of a node, with a power of two for each sample (S11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.network.layout import PLAIN, Layout
from backplay.network.memory import by_sample

_LIMIT = 2.0**40
_SAMPLED = 64  # entries of a sample


@dataclass
class Mass:
    """True mass = `value · 2^exponent`; the exponent is one integer for each sample, so scaling is exact."""

    value: Tensor
    exponent: Tensor  # (B,) float64, integral
    layout: Layout

    def normalised(self, careful: bool = True) -> Mass:
        """Bring the largest entry of each sample near 1 where it has drifted far away.

        The careless look at a few entries first: see `_surely_not_small`.
        """
        if not careful and self._surely_not_small():
            return self
        largest = self.layout.amax(self.value.abs())
        drift = (largest > 0) & ((largest > _LIMIT) | (largest < 1 / _LIMIT)) & torch.isfinite(largest)
        if not bool(drift.any()):
            return self
        shift = torch.where(drift, torch.frexp(largest)[1].to(torch.float64), 0.0)
        return Mass(self.times(-shift), self.exponent + shift, self.layout)

    def _surely_not_small(self) -> bool:
        """Whether some entries are in range: then the largest of each sample is no smaller than they are.

        It may be larger. What then leaves the range is infinite, stays so up to the input, and is seen there: mass is
        only multiplied and added.
        """
        if self.layout != PLAIN:
            return False
        some = by_sample(self.value)
        some = some[:, :: max(1, some.shape[1] // _SAMPLED)]
        largest: list[float] = some.abs().amax(1).tolist() if some.numel() else [0.0]
        return all(1 / _LIMIT <= size <= _LIMIT for size in largest)

    def times(self, shift: Tensor) -> Tensor:
        """`value · 2^shift`, in two steps so that the factor itself cannot overflow."""
        half = torch.floor(shift / 2)
        value = self.value
        for part in (half, shift - half):
            value = value * self.layout.spread(torch.exp2(part).to(value.dtype), value)
        return value

    def plus(self, other: Mass) -> Mass:
        """Sum on a common scale."""
        if torch.equal(self.exponent, other.exponent):
            return Mass(self.value + other.value, self.exponent, self.layout)
        (left, right), common = aligned((self, other))
        return Mass(left + right, common, self.layout)

    def double(self) -> Mass:
        """The same mass in float64."""
        return Mass(self.value.double(), self.exponent, self.layout)

    @property
    def log_scale(self) -> Tensor:
        """(B,) natural logarithm of the scale."""
        return self.exponent * math.log(2)

    def plain(self) -> Tensor:
        """The mass itself; Inf where it leaves the range of its dtype."""
        return self.times(self.exponent)

    def log(self) -> Tensor:
        """The natural logarithm of the mass, right where the mass itself leaves the range of its dtype."""
        return self.value.log() + self.layout.spread(self.log_scale, self.value).to(self.value.dtype)

    def total(self) -> Tensor:
        """(B,) float64 sum over each sample."""
        return self.layout.sum(self.value) * torch.exp2(self.exponent)


def aligned(masses: Sequence[Mass]) -> tuple[list[Tensor], Tensor]:
    """Values on one scale for each sample, and its exponent: the largest among those that hold any mass.

    A sample without mass is left out: if its exponent is large, small masses on that scale would be rounded to 0.
    """
    held = [m.exponent.masked_fill(m.layout.amax(m.value.abs()) == 0, -math.inf) for m in masses]
    common = torch.stack(held).amax(0)
    common = torch.where(torch.isinf(common), masses[0].exponent, common)
    # what lies on a larger scale is all zeros, and stays so
    return [m.times((m.exponent - common).clamp(-1000, 0)) for m in masses], common
