"""The relative entropy `KL(row_A ‖ row_B)` of a kernel's rows in two plays, in nats.

Rows are never written out: the logarithm of a product of factors is a sum, so that what a row adds up to splits into
linear maps. Where A may move and B never does the entropy is infinite; such moves are kept apart as a probability,
since `0 · ∞` at states that no walk comes to would be no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.kernels.kernel import WALK_DIFFERENCE, Kernel


@dataclass(frozen=True)
class Divergence:
    """Of every state, broadcastable against the node's output."""

    nats: Tensor  # Σ p (log p − log q) over the moves that both rows have
    parted: Tensor  # the probability of A's moves that B's row lacks; KL is infinite where it is not 0

    @staticmethod
    def where(differ: Tensor, dtype: torch.dtype) -> Divergence:
        """Of rows with a single move each, which is another one where they differ."""
        parted = differ.to(dtype)
        return Divergence(torch.zeros_like(parted), parted)

    def plus(self, other: Divergence) -> Divergence:
        """Both together: of two sets of moves of one state."""
        return Divergence(self.nats + other.nats, self.parted + other.parted)

    def normalised(self, moved: Tensor, own: Tensor, other: Tensor) -> Divergence:
        """From scores to probabilities: A's are A's scores times `own`, B's are B's scores times `other`.

        `moved` is what A's add up to.
        """
        both = (own > 0) & (other > 0)
        ratio = torch.where(both, own, 1).log() - torch.where(both, other, 1).log()
        lacking = moved * ((own > 0) & (other <= 0))
        return Divergence(self.nats * own + moved * ratio, self.parted * own + lacking)


def apart(p: Tensor, q: Tensor) -> Divergence:
    """`p (log p − log q)`, elementwise."""
    both = (p > 0) & (q > 0)
    ratio = torch.where(both, p, 1).log() - torch.where(both, q, 1).log()
    return Divergence(p * ratio, torch.where(q > 0, 0, p))


def elementwise(a: Kernel, b: Kernel, like: Tensor) -> Divergence:
    """Of kernels that stay at their element: each operand with the turn kept or switched, and †."""
    ones = torch.ones_like(like)
    divergence = ends_apart(a, b, like)
    for p, q in zip(*(k.pull(ones, WALK_DIFFERENCE) for k in (a, b)), strict=True):
        for sign in (1, -1):
            divergence = divergence.plus(apart((sign * p).clamp(min=0), (sign * q).clamp(min=0)))
    return divergence


def ends_apart(a: Kernel, b: Kernel, like: Tensor) -> Divergence:
    """Of the ways to †, for states shaped like `like`."""
    ends: Sequence[Tensor | None] = [k.lost(torch.ones_like(like)) for k in (a, b)]
    p, q = (torch.zeros_like(like) if end is None else end for end in ends)
    return apart(p, q)
