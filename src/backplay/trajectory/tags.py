"""Walk mass at the inputs, tag by tag: what marginal maps compare (eq:marginal-h2, S29).

A pixel is a terminal state for each tag. In the Stopping Game the tag is the player who arrives (eq:adf-T); in the
Routing Game it is the stream of the last stream state that the walk crossed (eq:rg-T-pixel), and walks that crossed
none have a tag of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.kernel import WALK, WALK_DIFFERENCE, Kernel
from backplay.network import Node
from backplay.network.mass import Mass, aligned
from backplay.trajectory.passes import BackwardPass, no_mass, run, side_by_side

if TYPE_CHECKING:
    from backplay.games.play import Play

Tagged = tuple[Mass, ...]  # a mass for each tag


class TagPass(BackwardPass[Tagged]):
    """Walk masses with their tags, on one scale."""

    def __init__(self, play: Play) -> None:
        zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
        first = tuple(Mass(part, zeros, play.start.layout) for part in _first(play))
        super().__init__(play.network, {play.start: first}, keep=False)
        self.play = play

    def move(self, node: Node, here: Tagged) -> Iterable[tuple[Node, Tagged]]:
        values, common = aligned([m.normalised() for m in here])
        kernel = self.play.kernel(node)
        for operand, moved in zip(kernel.carriers or node.carriers, self._moved(kernel, values), strict=True):
            yield operand, tuple(Mass(m, common, operand.layout) for m in moved)

    def _moved(self, kernel: Kernel, masses: Sequence[Tensor]) -> Sequence[tuple[Tensor, ...]]:
        return kernel.pull_streams(masses) if self.play.game.streams else kernel.pull_players(*masses)

    def add(self, one: Tagged, other: Tagged) -> Tagged:
        return tuple(a.plus(b) for a, b in zip(one, other, strict=True))


def _first(play: Play) -> tuple[Tensor, ...]:
    """The root by its tags: both players, or both streams and none."""
    if play.game.streams:
        mass = play.root(WALK)
        return torch.zeros_like(mass), torch.zeros_like(mass), mass
    root = play.root(WALK_DIFFERENCE)
    return root.clamp(min=0), (-root).clamp(min=0)


def tagged_marginals(play: Play) -> list[Mass]:
    """For each tag the walk mass at the inputs, all inputs side by side."""
    walk = TagPass(play)
    run(walk)
    tags = len(_first(play))
    sources = [walk.standing.get(n, (no_mass(play, n),) * tags) for n in play.network.inputs]
    return [side_by_side(masses) for masses in zip(*sources, strict=True)]
