"""Relative entropy of two trajectory laws by the chain rule: each state's rows, weighted by how often A comes there.

`KL(Π_A ‖ Π_B) = Σ_s α_A(s) KL(T_A(s, ·) ‖ T_B(s, ·))`, infinite where A walks and B never does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.divergence import apart
from backplay.kernels.kernel import Kernel
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.trajectory.overlap import TwoPlays
from backplay.trajectory.roots import Root

if TYPE_CHECKING:
    from backplay.games.play import Play


class FirstRows(Root):
    """The first state of two walks, whose rows differ by `nats`; `parted` is what A does there and B never (B,)."""

    def __init__(self, a: Play, b: Play) -> None:
        super().__init__(a, b)
        self.nats = self.parted = torch.zeros_like(self.passed.losses.cemetery)

    def _meet(self, node: Node, kernels: tuple[Kernel, Kernel]) -> None:
        for to, p, q in self.pairs(node, kernels):
            differ = apart(p, q)
            nats, parted = (to.layout.sum(t) if isinstance(to, Node) else t for t in (differ.nats, differ.parted))
            self.nats, self.parted = self.nats + nats, self.parted + parted


def relative_entropy(plays: TwoPlays) -> Tensor:
    """(B,) `KL(Π_A ‖ Π_B)` in nats; ∞ where a walk of A cannot be one of B."""
    if plays.a is plays.b:
        return torch.zeros_like(plays.a.cemetery)
    first = FirstRows(plays.a, plays.b)
    while first.at is not None:
        first.leave(plays.kernels)
    nats, parted = first.nats, first.parted
    for node, mass in plays.a.visited().items():
        if node in first.behind or isinstance(node, Input):
            continue
        own, other = plays.kernels(node)
        rows = own.divergence(other)
        more = Mass(mass.value * rows.nats.to(mass.value), mass.exponent, mass.layout).total()
        lacking = mass.layout.sum((mass.value * rows.parted.to(mass.value) > 0).double())  # however little mass it is
        nats, parted = nats + more, parted + lacking
    return torch.where(parted > 0, math.inf, nats.clamp(min=0))
