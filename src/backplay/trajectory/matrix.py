"""`bp.hellinger_matrix`: every play of one list against every play of another, in one sweep over the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import InputError
from backplay.kernels.geometric import geometric
from backplay.kernels.kernel import WALK, Kernel
from backplay.network import Node
from backplay.network.nodes import Input
from backplay.trajectory.comparable import check_comparable, check_play
from backplay.trajectory.comparison import Comparison, Ends
from backplay.trajectory.passes import Passed, arrived, leave, started
from backplay.trajectory.roots import Root

if TYPE_CHECKING:
    from backplay.games.play import Play

Kernels = Callable[["Play"], Kernel]  # of one node


@dataclass(frozen=True)
class HellingerMatrix:
    """All pairs: tensors of shape (rows, columns), with the batch as last dimension if plays hold several samples."""

    distance: Tensor
    bc: Tensor
    surviving: Tensor
    cemetery_overlap: Tensor


@entry
def hellinger_matrix(plays_a: Sequence[Play], plays_b: Sequence[Play]) -> HellingerMatrix:
    """Compare every play of one list with every play of another.

    >>> bp.hellinger_matrix([game.play(x) for x in images], [game.play(y) for y in others]).distance

    Node by node: a play's kernel is made where it is missing, serves all pairs, and is forgotten, so that kernels
    of one node are held at a time. Plays keep those that they have; `play.release()` drops them beforehand.
    """
    if not plays_a or not plays_b:
        raise InputError("hellinger_matrix needs at least one play on each side.")
    for play in (*plays_a, *plays_b):
        check_play(play, "hellinger_matrix takes two lists of plays")
    for play in (*plays_a, *plays_b):
        check_comparable(plays_a[0], play)
    with torch.inference_mode(False), torch.no_grad():
        found = _sweep(plays_a, plays_b)
    shape = (len(plays_a), len(plays_b), -1)
    tensors = {
        name: torch.stack([getattr(c, name) for c in found]).view(shape)
        for name in ("distance", "bc", "surviving", "cemetery_overlap")
    }
    return HellingerMatrix(**{k: t[..., 0] if t.shape[-1] == 1 else t for k, t in tensors.items()})


def _sweep(plays_a: Sequence[Play], plays_b: Sequence[Play]) -> list[Comparison]:
    walks = {id(p): _Walk(p) for p in (*plays_a, *plays_b)}
    pairs = [_Pair(a, b) for a in plays_a for b in plays_b]
    for position in reversed(range(len(plays_a[0].network.nodes))):
        held: dict[int, Kernel] = {}  # of this node alone

        def kernel(play: Play, position: int = position, held: dict[int, Kernel] = held) -> Kernel:
            if id(play) not in held:
                held[id(play)] = play.kernel(play.network.nodes[position], keep=False)
            return held[id(play)]

        for one in (*walks.values(), *pairs):
            one.leave(position, kernel)
    ends = {play: walk.ends() for play, walk in walks.items()}
    return [Comparison(ends[id(p.a)], ends[id(p.b)], ends[id(p.a)] if p.a is p.b else p.ends()) for p in pairs]


class _Walk:
    """One play's own walk; where the play has walked it already, its result."""

    def __init__(self, play: Play) -> None:
        play.ready()
        self.play, self.known = play, play.knows(WALK)
        self.found = play.passed(WALK) if self.known else started(play.network, play.root())

    def leave(self, position: int, kernel: Kernels) -> None:
        node = self.play.network.nodes[position]
        if not self.known and node in self.found.masses:
            _step(self.found, node, lambda: kernel(self.play))

    def ends(self) -> Ends:
        found = _ends(self.found, self.play)
        return Ends(found.alive, found.cemetery.clamp(max=1), found.constant)


class _Pair:
    """The overlap of two plays on its way back, from their common root on."""

    def __init__(self, a: Play, b: Play) -> None:
        self.a, self.b, self.root = a, b, Root(a, b)

    def leave(self, position: int, kernel: Kernels) -> None:
        node, found = self.a.network.nodes[position], self.root.found
        if node is self.root.at:
            self.root.leave(kernel(self.a), kernel(self.b))
        elif node in found.masses:
            _step(found, node, lambda: geometric(kernel(self.a), kernel(self.b), node.name))

    def ends(self) -> Ends:
        return _ends(self.root.found, self.a)


def _step(found: Passed, node: Node, kernel: Callable[[], Kernel]) -> None:
    if isinstance(node, Input):
        found.masses[node] = found.masses[node].normalised()
    else:
        leave(found, node, kernel(), WALK, keep=False)


def _ends(found: Passed, play: Play) -> Ends:
    assert found.cemetery is not None
    assert found.constant is not None
    return Ends(arrived(found, play), found.cemetery, found.constant)
