"""Relative entropy of two trajectory laws by the chain rule: each state's rows, weighted by how often A comes there.

`KL(Π_A ‖ Π_B) = Σ_s α_A(s) KL(T_A(s, ·) ‖ T_B(s, ·))`, infinite where A walks and B never does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.divergence import apart
from backplay.kernels.kernel import WALK
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.trajectory.overlap import TwoPlays
from backplay.trajectory.passes import KernelPass, run
from backplay.trajectory.roots import Root

if TYPE_CHECKING:
    from backplay.games.play import Play


class FirstRows(Root):
    """The first state of two walks, whose rows differ by `nats`; `parted` is what A does there and B never (B,)."""

    def __init__(self, a: Play, b: Play) -> None:
        super().__init__(a, b)
        self.nats = self.parted = torch.zeros_like(self.passed.losses.cemetery)

    def count(self, to: Node | int, p: Tensor, q: Tensor) -> None:
        differ = apart(p, q)
        nats, parted = (to.layout.sum(t) if isinstance(to, Node) else t for t in (differ.nats, differ.parted))
        self.nats, self.parted = self.nats + nats, self.parted + parted
        if isinstance(to, Node):  # A's own mass, which its walk goes on with
            own, masses = Mass(p, torch.zeros_like(self.nats), to.layout), self.passed.masses
            masses[to] = masses[to].plus(own) if to in masses else own


def relative_entropy(plays: TwoPlays) -> Tensor:
    """(B,) `KL(Π_A ‖ Π_B)` in nats; ∞ where a walk of A cannot be one of B."""
    if plays.a is plays.b:
        return torch.zeros_like(plays.a.cemetery)
    first = FirstRows(plays.a, plays.b).finish(plays.kernels)
    nats, parted = first.nats, first.parted
    run(KernelPass(plays.a.network, plays.a.kernel, first.passed, WALK))
    for node, mass in first.passed.masses.items():
        if isinstance(node, Input):
            continue
        own, other = plays.kernels(node)
        rows = own.divergence(other)
        more = Mass(mass.value * rows.nats.to(mass.value), mass.exponent, mass.layout).total()
        # states that lack a move of A's are counted, not weighed: the smallest mass there makes KL infinite
        lacking = mass.layout.sum((mass.value * rows.parted.to(mass.value) > 0).double())
        nats, parted = nats + more, parted + lacking
    return torch.where(parted > 0, math.inf, nats.clamp(min=0))
