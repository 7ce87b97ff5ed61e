"""Two walks and their overlap at their ends: the numbers of S28 and S30, without a look at the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from backplay.entry import entries
from backplay.network.mass import Mass


@dataclass(frozen=True)
class Ends:
    """Where a walk, or the overlap of two, has come to: the input (with its scale), † and constants (B,)."""

    alive: Mass
    cemetery: Tensor
    constant: Tensor

    def total(self) -> Tensor:
        """(B,) all of it."""
        return self.alive.total() + self.constant + self.cemetery

    @staticmethod
    def joined(parts: Sequence[Ends]) -> Ends:
        """The ends of several batches, one behind the other."""
        ends = [torch.cat(tensors) for tensors in zip(*((p.cemetery, p.constant) for p in parts), strict=True)]
        return Ends(joined([p.alive for p in parts]), ends[0], ends[1])


def joined(parts: Sequence[Mass]) -> Mass:
    """Mass at the inputs of several batches, (B, elements), one behind the other."""
    return Mass(torch.cat([m.value for m in parts]), torch.cat([m.exponent for m in parts]), parts[0].layout)


@entries
class Comparison:
    """The trajectory laws of two plays compared; one number for each pair of samples, always float64.

    A play compared with itself overlaps in its own walk: give `both` as that walk, and the distance is 0 because it is
    the same play, however a processor rounds (`√(t·t)` is `t` in IEEE arithmetic).
    """

    def __init__(self, a: Ends, b: Ends, both: Ends) -> None:
        self._a, self._b, self._both = a, b, both
        # passes round: dividing by the masses that both walks really carried takes their roundings back out
        self._size = (a.total() * b.total()).sqrt()

    @property
    def cemetery_overlap(self) -> Tensor:
        """(B,) `β(†)`."""
        return self._both.cemetery

    @property
    def constant_overlap(self) -> Tensor:
        """(B,) `β` of the constant elements (S26)."""
        return self._both.constant

    @property
    def bc(self) -> Tensor:
        """(B,) Bhattacharyya coefficient of the trajectory laws (eq:bc-def)."""
        return (self._both.total() / self._size).clamp(max=1)

    @property
    def distance(self) -> Tensor:
        """(B,) `H = √(1 − BC)` (eq:hellinger-def)."""
        return (1 - self.bc).sqrt()

    @property
    def survival_a(self) -> Tensor:
        """(B,) `Z_A`, the probability of reaching an input element."""
        return self.log_survival_a.exp()

    @property
    def survival_b(self) -> Tensor:
        """(B,) `Z_B`."""
        return self.log_survival_b.exp()

    @property
    def log_survival_a(self) -> Tensor:
        """(B,) natural logarithm of `Z_A`, right even where `Z_A` is below any float."""
        return self._log_survival(0)

    @property
    def log_survival_b(self) -> Tensor:
        """(B,) natural logarithm of `Z_B`."""
        return self._log_survival(1)

    def _log_survival(self, side: int) -> Tensor:
        mass = (self._a, self._b)[side].alive
        return mass.layout.sum(mass.value).log() + mass.log_scale

    @property
    def bc_surviving(self) -> Tensor:
        """(B,) BC of the laws given survival (eq:conditioned-bc-posthoc); NaN where a play never survives."""
        a, b, both = (part.flatten(1).sum(1) for part in self._given_survival)
        return (both / (a * b).sqrt()).clamp(max=1)

    @property
    def surviving(self) -> Tensor:
        """(B,) `H_surv` (eq:conditioned-h2)."""
        return (1 - self.bc_surviving).sqrt()

    @cached_property
    def _given_survival(self) -> tuple[Tensor, Tensor, Tensor]:
        """`α_A`, `α_B`, `β` at the input given survival, float64."""
        return self._normalised()

    def _normalised(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same by one normalisation of what arrived (eq:conditioned-bc-posthoc)."""
        a, b, both = self._a.alive, self._b.alive, self._both.alive
        z_a, z_b = (m.layout.sum(m.value) for m in (a, b))
        # powers of two cancel before anything is rounded to 0
        shift = both.exponent - (a.exponent + b.exponent) / 2
        beta = Mass(both.value.double(), shift, both.layout).plain()
        spread = a.layout.spread
        return (
            a.value.double() / spread(z_a, a.value),
            b.value.double() / spread(z_b, b.value),
            beta / spread((z_a * z_b).sqrt(), beta),
        )
