"""The smallest distance over renamings of hidden channels (S33), sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.symmetry.permutation import candidates
from backplay.trajectory.hellinger import INVARIANT, Hellinger

if TYPE_CHECKING:
    from backplay.games.play import Play

NOTHING = 1e-7  # a smaller distance is rounding: √ of an error in the last digits of BC


class Nearest(Hellinger):
    """Several comparisons of the same samples, each sample with the one nearest to it: samples never interact."""

    def __init__(self, found: list[Hellinger]) -> None:
        self.found = found
        self.a, self.b, self.conditioning = found[0].a, found[0].b, found[0].conditioning
        self.chosen = torch.stack([h.distance for h in found]).argmin(0)
        curves = zip(*(h.by_layer for h in found), strict=True)
        self.by_layer = [(c[0][0], self._pick([bc for _, bc in c])) for c in curves]

    def _pick(self, values: list[Tensor]) -> Tensor:
        return torch.stack(values)[self.chosen, torch.arange(len(self.chosen), device=self.chosen.device)]

    def _ask(self, question: Callable[[Hellinger], Tensor]) -> Tensor:
        return self._pick([question(h) for h in self.found])

    @property
    def bc(self) -> Tensor:
        return self._ask(lambda h: h.bc)

    @property
    def cemetery_overlap(self) -> Tensor:
        return self._ask(lambda h: h.cemetery_overlap)

    @property
    def constant_overlap(self) -> Tensor:
        return self._ask(lambda h: h.constant_overlap)

    @property
    def cemetery_disagreement(self) -> Tensor:
        return self._ask(lambda h: h.cemetery_disagreement)

    @property
    def constant_disagreement(self) -> Tensor:
        return self._ask(lambda h: h.constant_disagreement)

    def _log_survival(self, side: int) -> Tensor:
        return self._ask(lambda h: h.log_survival_b if side else h.log_survival_a)

    @cached_property
    def _given_survival(self) -> tuple[Tensor, Tensor, Tensor]:
        parts = zip(*(h._given_survival for h in self.found), strict=True)
        alpha_a, alpha_b, beta = (self._pick(list(part)) for part in parts)
        return alpha_a, alpha_b, beta

    def _map(self, kind: str, conditioned: bool) -> Tensor:
        return self._ask(lambda h: h._map(kind, conditioned))

    def bc_forward(self) -> Tensor:
        return self._ask(lambda h: h.bc_forward())


def nearest(a: Play, b: Play, conditioning: str) -> Hellinger:
    """A against the candidate that is nearest to it, for each sample; those nearest to none are dropped on the way."""
    kept: list[Hellinger] = []
    for candidate in candidates(a, b):
        kept.append(Hellinger(a, candidate, conditioning))
        distances = torch.stack([h.distance for h in kept])
        best = set(distances.argmin(0).tolist())
        kept = [h for k, h in enumerate(kept) if k in best]
        if bool((distances.amin(0) < NOTHING).all()):
            break
    return kept[0] if len(kept) == 1 else Nearest(kept)


INVARIANT["permutation"] = nearest
