"""Two walks from one root (S27): the overlap of their first rows, then the backward pass of the overlap (S28)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.entry import at
from backplay.kernels.draws import CEMETERY, CONSTANT
from backplay.kernels.geometric import geometric, mean
from backplay.kernels.kernel import WALK, WALK_DIFFERENCE, Kernel
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.trajectory.passes import KernelPass, Losses, Passed

if TYPE_CHECKING:
    from backplay.games.play import Play

Kernels = Callable[[Node], tuple[Kernel, Kernel]]  # of both plays at a node of A's network
Players = tuple[Tensor, Tensor]  # mass of each


class Root:
    """The first state of two walks, followed from where they start until their overlap stands in `passed`.

    Plays of one target start at its logit. Otherwise the rows of both roots are compared as rows of one state, of
    weighted logits their mixture (S26b): the walk first follows wires and scales, whose single move is the logit under
    another name.
    """

    def __init__(self, a: Play, b: Play) -> None:
        start = a.start
        zeros = torch.zeros(len(a.value), dtype=torch.float64, device=a.value.device)
        self.passed = Passed(counted=Losses.none(len(a.value), a.value.device))
        self.at: Node | None = start  # the node that the root stands on, None once it has been left
        self.behind: list[Node] = []  # the nodes that it has left
        roots = [play.root(WALK_DIFFERENCE) for play in (a, b)]
        self._rows: list[Players] = [(root.clamp(min=0), (-root).clamp(min=0)) for root in roots]
        if torch.equal(*roots) and bool((start.layout.rows(roots[0]).ne(0).sum(1) == 1).all()):
            self.passed.masses[start] = Mass(roots[0].abs(), zeros, start.layout)
            self.at = None

    def leave(self, kernels: Kernels) -> None:
        """One step down from the node that the root stands on."""
        assert self.at is not None
        node, both = self.at, kernels(self.at)
        self.behind.append(node)
        renamed = all(k.renames(plus + minus) for k, (plus, minus) in zip(both, self._rows, strict=True))
        if renamed and not isinstance(node.carriers[0], Input):
            self._rows = [k.pull_players(*players)[0] for k, players in zip(both, self._rows, strict=True)]
            self.at = node.carriers[0]
        else:
            self._meet(node, both)
            self.at = None

    def _meet(self, node: Node, kernels: tuple[Kernel, Kernel]) -> None:
        """Overlap of two different rows, way by way."""
        masses, losses = self.passed.masses, self.passed.losses
        zeros = torch.zeros_like(losses.cemetery)
        for to, p, q in self.pairs(node, kernels):
            if isinstance(to, Node):
                common = Mass(mean(p, q), zeros, to.layout)
                masses[to] = masses[to].plus(common) if to in masses else common
            elif to == CONSTANT:
                losses.constant = losses.constant + mean(p, q)
            else:
                losses.cemetery = losses.cemetery + mean(p, q)

    def pairs(self, node: Node, kernels: tuple[Kernel, Kernel]) -> Iterator[tuple[Node | int, Tensor, Tensor]]:
        """Where both rows go, way by way: masses at a carrier, or (B,) what ends in † and in constants."""
        left, right = (k.ways(*players) for k, players in zip(kernels, self._rows, strict=True))
        for one, other in zip(left, right, strict=True):
            yield from zip(kernels[0].carriers or node.carriers, one.moved, other.moved, strict=True)
            yield CEMETERY, *self._ended(node, one.ends, other.ends)
        yield (
            CONSTANT,
            *self._ended(
                node, *(k.constant(plus + minus) for k, (plus, minus) in zip(kernels, self._rows, strict=True))
            ),
        )

    def _ended(self, node: Node, *ends: Tensor | None) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros_like(self.passed.losses.cemetery)
        p, q = (zeros if end is None else node.layout.sum(end) for end in ends)
        return p, q


def common_root(a: Play, b: Play, kernels: Kernels) -> tuple[Passed, list[Node]]:
    """What the overlap pass starts from, and the nodes that it has already left."""
    root = Root(a, b)
    while root.at is not None:
        root.leave(kernels)
    return root.passed, root.behind


class OverlapPass(KernelPass):
    """`β` on its way back (alg:hellinger-backward): the common root, then geometric kernels, none of them kept."""

    def __init__(self, a: Play, b: Play, kernels: Kernels) -> None:
        self.root, self.kernels = Root(a, b), kernels
        super().__init__(a.network, self._geometric, self.root.passed, WALK, keep=False)

    def leave(self, node: Node) -> None:
        if node is self.root.at:
            with at(node):
                self.root.leave(self.kernels)
        else:
            super().leave(node)

    def _geometric(self, node: Node) -> Kernel:
        return geometric(*self.kernels(node), node.name)
