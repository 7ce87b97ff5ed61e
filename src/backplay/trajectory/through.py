"""Walks through chosen states: those that stand there, and how the others are left out (S26c).

A condition is a mask on the states of one node, and a walk fulfils several of them one after the other. It comes to
nodes in the reversed order of the program, so the next condition is always the last one of those that are left. Walks
that come below its node without having stood there have missed it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.kernel import Conditioned, Kernel, Measure
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.trajectory.passes import KernelPass, Losses, Passed, no_mass, run
from backplay.trajectory.survival import ahead_of, survival

if TYPE_CHECKING:
    from backplay.games.play import Play

Masks = Mapping[Node, Tensor]  # for each node of a condition, what broadcasts against its value


class Itinerary:
    """A play's network with the conditions of a walk on it."""

    def __init__(self, play: Play, masks: Masks) -> None:
        self.play, self.masks = play, masks
        self.place = {node: k for k, node in enumerate(play.network.nodes)}
        self.order = sorted(masks, key=lambda node: -self.place[node])  # as the walk comes to them

    def next(self, node: Node) -> Node | None:
        """The condition that a walk at a node has to fulfil next, once it leaves the node."""
        return next((n for n in self.order if self.place[n] < self.place[node]), None)

    def on_the_way(self, node: Node) -> list[Node]:
        """The conditions that walks fulfil inside the kernel of a node, on their way to its carriers (S23)."""
        conditions: list[Node] = []
        due = None if isinstance(node, Input) else self.next(node)
        while due is not None and self.play.kernel(node).crosses(due):
            conditions.append(due)
            due = self.next(due)
        return conditions

    def kernel(self, node: Node) -> Kernel:
        """How walks leave a node: where they fulfil conditions on the way, by the chosen states."""
        kernel = self.play.kernel(node)
        for due in self.on_the_way(node):
            kernel = kernel.narrowed(self.masks[due], due)
        return kernel

    def masked(self, node: Node, mass: Mass) -> Mass:
        """What of a mass at a node stands in chosen states."""
        return Mass(mass.value * self.masks[node], mass.exponent, mass.layout) if node in self.masks else mass


class PassingPass(KernelPass):
    """Mass of the walks that have fulfilled every condition so far; ends are counted after the last one."""

    def __init__(
        self, itinerary: Itinerary, passed: Passed, measure: Measure, keep: bool = True, careful: bool = True
    ) -> None:
        super().__init__(itinerary.play.network, itinerary.kernel, passed, measure, keep, careful)
        self.itinerary, self.left = itinerary, list(reversed(itinerary.order))  # the next one at the end
        # what has come through conditions inside a kernel, at carriers, by the last condition that it has met so
        self.crossed: dict[Node, dict[Node, Mass]] = {}
        self.there: list[Mass] = []  # what has fulfilled the last condition

    def move(self, node: Node, here: Mass) -> Iterable[tuple[Node, Mass]]:
        moved, met = super().move(node, here), self.itinerary.on_the_way(node)
        if not met:
            return moved
        there = self.crossed.setdefault(met[-1], {})
        for operand, mass in moved:
            there[operand] = there[operand].plus(mass) if operand in there else mass
        return ()

    def leave(self, node: Node) -> None:
        if self.left and node is self.left[-1]:
            self.left.pop()
            self.arrive(node)
        super().leave(node)

    def arrive(self, node: Node) -> None:
        """Keep what stands in chosen states of a node; whatever has passed it by, or has ended, is left out."""
        place = self.itinerary.place
        for other in [n for n in self.standing if place[n] < place[node] or isinstance(n, Input)]:
            if other is not node:
                del self.standing[other]
        if node in self.standing:
            self.standing[node] = self.itinerary.masked(node, self.standing[node])
        crossed = self.crossed.pop(node, {})
        self.there = [*([self.standing[node]] if node in self.standing else []), *crossed.values()]
        self.standing.update(crossed)
        counted = self.passed.counted
        if counted is not None:
            self.passed.counted = Losses.none(len(counted.cemetery), counted.cemetery.device)


def pull_through(
    itinerary: Itinerary, root: Tensor | None, measure: Measure, keep: bool = True, careful: bool = False
) -> PassingPass:
    """Carry mass from the start through every condition to the inputs.

    Without a `root` the play's own of that measure; what its pass has found above the first condition is taken from
    there. A pass that was not `careful` enough, and has left the range, is run again.
    """
    play = itinerary.play
    counting = not (measure.signed or measure.discounted)
    if root is None and play.knows(measure):
        first = itinerary.place[itinerary.order[0]]
        above = {n: m for n, m in play.passed(measure).masses.items() if itinerary.place[n] >= first}
        passed = Passed(above, Losses.none(len(play.value), play.value.device) if counting else None)
        walk = _Resumed(itinerary, passed, measure, keep, careful)
    else:
        begin = play.root(measure) if root is None else root
        walk = PassingPass(itinerary, Passed.starting(play.start, begin, counting), measure, keep, careful)
    run(walk)
    walk.passed.arrive()
    if careful or walk.passed.finite:
        return walk
    return pull_through(itinerary, root, measure, keep, careful=True)


class _Resumed(PassingPass):
    """A pass that is known above its first condition: only kernels that lead through it are asked again there."""

    def leave(self, node: Node) -> None:
        first = self.itinerary.order[0]
        above = self.itinerary.place[node] > self.itinerary.place[first]
        if not above or (node in self.standing and self.itinerary.on_the_way(node)):
            super().leave(node)
        elif not self.keep:
            self.standing.pop(node, None)


# ---------------------------------------------------------------- what is still to come


class Ahead:
    """From every state the probability that the walk will fulfil the conditions it has not met yet.

    With `arriving`, that it also reaches an input.
    """

    def __init__(self, itinerary: Itinerary, arriving: bool = False) -> None:
        self.itinerary, self.arriving = itinerary, arriving
        self.play = itinerary.play
        self._h: dict[Node, Mass] = survival(self.play) if arriving else {}
        for node in self.play.network.nodes:
            if node in self.play.visited() and not isinstance(node, Input) and itinerary.next(node) is not None:
                self._h[node] = ahead_of(node, itinerary.kernel(node), self.below(node), ends=False)

    def leaving(self, node: Node) -> Mass | None:
        """At the states of a node, its own condition aside; None where it is 1 everywhere."""
        return self._h.get(node)

    def at(self, node: Node) -> Mass:
        """At the states of a node, its own condition included."""
        known = self.leaving(node)
        if known is None:
            value = self.play.solved[node]
            zeros = torch.zeros(len(self.play.value), dtype=torch.float64, device=value.device)
            known = Mass(torch.ones_like(value), zeros, node.layout)
        return self.itinerary.masked(node, known)

    def below(self, node: Node) -> list[Mass]:
        """At the carriers of a node, as walks see them that leave it."""
        itinerary, kernel = self.itinerary, self.play.kernel(node)
        due = itinerary.next([node, *itinerary.on_the_way(node)][-1])
        return [
            self.at(n) if due is None or n is due or self._before(n, due) else no_mass(self.play, n)
            for n in kernel.carriers or node.carriers
        ]

    def _before(self, node: Node, due: Node) -> bool:
        """Whether a walk at a node may still come to a condition; an input is the end."""
        return self.itinerary.place[node] > self.itinerary.place[due] and not isinstance(node, Input)

    def kernel(self, node: Node) -> Kernel:
        """The kernel of the walk that will fulfil all of this: the Doob transform (eq:conditioned-kernel)."""
        here = self.leaving(node)
        return (
            self.play.kernel(node)
            if here is None
            else Conditioned.on(self.itinerary.kernel(node), here, self.below(node))
        )


def joint(walk: PassingPass, ahead: Ahead, node: Node) -> Mass:
    """Mass of the walks that come to each state of a node and fulfil every condition, before or after it."""
    parts = list(_standing(walk, ahead, node)) + list(_crossing(walk, ahead, node))
    mass = no_mass(ahead.play, node)
    for part in parts:
        mass = mass.plus(part)
    return mass


def _standing(walk: PassingPass, ahead: Ahead, node: Node) -> Iterator[Mass]:
    if node in walk.standing:
        yield _times(walk.standing[node], ahead.leaving(node))


def _crossing(walk: PassingPass, ahead: Ahead, node: Node) -> Iterator[Mass]:
    """What comes through a node's states inside a composite (S23)."""
    for mixing, mass in walk.standing.items():
        if isinstance(mixing, Input) or not ahead.play.kernel(mixing).crosses(node):
            continue
        kernel, (below,) = ahead.itinerary.kernel(mixing), ahead.below(mixing)
        through = kernel.cross(mass.value, walk.measure, below.value, None if kernel.crossed is node else node)
        yield Mass(through, mass.exponent + below.exponent, node.layout)


def _times(mass: Mass, factor: Mass | None) -> Mass:
    if factor is None:
        return mass
    return Mass(mass.value * factor.value, mass.exponent + factor.exponent, mass.layout)


def log_total(masses: Iterable[Mass], like: Tensor) -> Tensor:
    """(B,) natural logarithm of the sum of some masses, float64, right below any float; −∞ where there are none."""
    total = torch.full((len(like),), -math.inf, dtype=torch.float64, device=like.device)
    for mass in masses:
        total = torch.logaddexp(total, mass.layout.sum(mass.value).log() + mass.log_scale)
    return total
