"""Walks from some states down to the next of several chosen nodes, and what becomes of them below the last (S26c)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from backplay.kernels.kernel import Measure
from backplay.network import Node
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Input
from backplay.trajectory.passes import KernelPass, Losses, Passed, no_mass, run

if TYPE_CHECKING:
    from backplay.games.play import Play


class Descent(KernelPass):
    """Mass that stops at chosen nodes; it may start at one of them, `origin`."""

    def __init__(
        self, play: Play, passed: Passed, measure: Measure, stops: Collection[Node], origin: Node | None
    ) -> None:
        super().__init__(play.network, play.kernel, passed, measure, keep=False)
        self.stops, self.origin = stops, origin

    def leave(self, node: Node) -> None:
        if node not in self.stops or node is self.origin:
            super().leave(node)


def descend(
    play: Play, node: Node, mass: Mass, measure: Measure, stops: Collection[Node], origin: Node | None = None
) -> Passed:
    """Carry mass from a node to the chosen ones and to the inputs; of the walk's own measure, ends are counted."""
    counting = not (measure.signed or measure.discounted)
    losses = Losses.none(len(play.value), play.value.device) if counting else None
    passed = Passed({node: mass}, losses)
    run(Descent(play, passed, measure, stops, origin))
    return passed.arrive()


def constants_ahead(play: Play) -> dict[Node, Mass]:
    """From every state that the walk visits, the probability of ending in constant elements (S26)."""
    masses: dict[Node, Mass] = {}
    visited = play.visited()
    for node in (n for n in play.network.nodes if n in visited):
        masses[node] = no_mass(play, node)
        if isinstance(node, Input):
            continue
        step = play.kernel(node)
        values, common = aligned([masses[n] for n in step.carriers or node.carriers])
        ahead = Mass(step.push(values), common, node.layout)
        here = step.constant(torch.ones_like(ahead.value))
        if here is not None:
            ahead = ahead.plus(Mass(here, torch.zeros_like(common), node.layout))
        masses[node] = ahead.normalised()
    return masses
