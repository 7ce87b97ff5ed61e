"""Two walks from one root (S27): the overlap of their first rows, then the backward pass of the overlap (S28)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

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
Rows = tuple[Players, Players]  # of both plays


class Root:
    """Where the overlap of two walks begins; `finish` follows both until all of it stands in `passed`.

    If both plays start at the same single logit, it begins at that logit. Otherwise both walks get one common root, and
    what each play starts from, of weighted logits its distribution over them (S26b), is its *row* there. Wires, scales,
    gates, sums and maxima only lead on to a neuron under another name (`Kernel.one_each`): they carry both rows on,
    unmerged, to each operand on a *route* of its own. At the first kernel with a choice among neurons the two rows of a
    route *meet*: they are compared way by way (`_meeting`). From there geometric kernels carry the overlap.
    """

    def __init__(self, a: Play, b: Play) -> None:
        start = a.start
        zeros = torch.zeros(len(a.value), dtype=torch.float64, device=a.value.device)
        self.passed = Passed(counted=Losses.none(len(a.value), a.value.device))
        self.routes: dict[Node, list[Rows]] = {}  # rows that have not met yet, by the node that they stand at
        self.behind: list[Node] = []  # the nodes that were left before any rows met: no other mass comes there
        self._places = {node: k for k, node in enumerate(a.network.nodes)}
        roots = [play.root(WALK_DIFFERENCE) for play in (a, b)]
        if torch.equal(*roots) and bool((start.layout.rows(roots[0]).ne(0).sum(1) == 1).all()):
            self.passed.masses[start] = Mass(roots[0].abs(), zeros, start.layout)
        else:
            one, other = ((root.clamp(min=0), (-root).clamp(min=0)) for root in roots)
            self.routes[start] = [(one, other)]

    def finish(self, kernels: Kernels) -> Self:
        """Follow every route to its end."""
        while self.routes:
            self.leave(max(self.routes, key=self._places.__getitem__), kernels)
        return self

    def leave(self, node: Node, kernels: Kernels) -> None:
        """One step down for all routes that stand on a node."""
        both = kernels(node)
        if not self.passed.masses:
            self.behind.append(node)
        for rows in self.routes.pop(node):
            if all(kernel.one_each for kernel in both):
                self._follow(node, both, rows)
            else:
                for to, p, q in self._meeting(node, both, rows):
                    self.count(to, p, q)

    def _follow(self, node: Node, kernels: tuple[Kernel, Kernel], rows: Rows) -> None:
        """Both rows carried on to each operand, on a route of its own; what ends or arrives is compared at once."""
        moved = [k.pull_players(*players) for k, players in zip(kernels, rows, strict=True)]
        for to, one, other in zip(kernels[0].carriers or node.carriers, *moved, strict=True):
            if isinstance(to, Input):
                for p, q in zip(one, other, strict=True):
                    self.count(to, p, q)
            else:
                self.routes.setdefault(to, []).append((one, other))
        whole = [plus + minus for plus, minus in rows]
        self.count(CEMETERY, *self._ended(node, *(k.lost(m) for k, m in zip(kernels, whole, strict=True))))
        self.count(CONSTANT, *self._ended(node, *(k.constant(m) for k, m in zip(kernels, whole, strict=True))))

    def count(self, to: Node | int, p: Tensor, q: Tensor) -> None:
        """The overlap of what both walks do on one way: masses at a node, or (B,) what ends in † and in constants."""
        masses, losses = self.passed.masses, self.passed.losses
        if isinstance(to, Node):
            common = Mass(mean(p, q), torch.zeros_like(losses.cemetery), to.layout)
            masses[to] = masses[to].plus(common) if to in masses else common
        elif to == CONSTANT:
            losses.constant = losses.constant + mean(p, q)
        else:
            losses.cemetery = losses.cemetery + mean(p, q)

    def waiting(self) -> Tensor:
        """(B,) the overlap of all rows that have not met yet, each player on each route as one state."""
        total = torch.zeros_like(self.passed.losses.cemetery)
        for node, routes in self.routes.items():
            for pairs in routes:
                for p, q in zip(*pairs, strict=True):
                    total = total + mean(node.layout.sum(p), node.layout.sum(q))
        return total

    def _meeting(
        self, node: Node, kernels: tuple[Kernel, Kernel], rows: Rows
    ) -> Iterator[tuple[Node | int, Tensor, Tensor]]:
        """Where both rows go, way by way: masses at a carrier, or (B,) what ends in † and in constants."""
        left, right = (k.ways(*players) for k, players in zip(kernels, rows, strict=True))
        for one, other in zip(left, right, strict=True):
            yield from zip(kernels[0].carriers or node.carriers, one.moved, other.moved, strict=True)
            yield CEMETERY, *self._ended(node, one.ends, other.ends)
        constant = (k.constant(plus + minus) for k, (plus, minus) in zip(kernels, rows, strict=True))
        yield CONSTANT, *self._ended(node, *constant)

    def _ended(self, node: Node, *ends: Tensor | None) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros_like(self.passed.losses.cemetery)
        p, q = (zeros if end is None else node.layout.sum(end) for end in ends)
        return p, q


def common_root(a: Play, b: Play, kernels: Kernels) -> tuple[Passed, list[Node]]:
    """What the overlap pass starts from, and the nodes that it has already left for good."""
    root = Root(a, b).finish(kernels)
    return root.passed, root.behind


class OverlapPass(KernelPass):
    """`β` on its way back (alg:hellinger-backward): the common root, then geometric kernels, none of them kept."""

    def __init__(self, a: Play, b: Play, kernels: Kernels) -> None:
        self.root, self.kernels = Root(a, b), kernels
        super().__init__(a.network, self._geometric, self.root.passed, WALK, keep=False)

    def leave(self, node: Node) -> None:
        if node in self.root.routes:
            with at(node):
                self.root.leave(node, self.kernels)
        super().leave(node)  # other walks may come to the same node, as behind a skip connection

    def _geometric(self, node: Node) -> Kernel:
        return geometric(*self.kernels(node), node.name)
