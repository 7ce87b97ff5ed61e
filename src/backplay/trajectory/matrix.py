"""`bp.hellinger_matrix`: every play of one list against every play of another, in one sweep over the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.entry import entries, entry
from backplay.errors import InputError, InputTypeError
from backplay.kernels.kernel import WALK, Kernel
from backplay.network import Node
from backplay.pictured import Pictured
from backplay.trajectory import clusters
from backplay.trajectory.clusters import Medoids, Points
from backplay.trajectory.comparable import check_comparable, check_play
from backplay.trajectory.hellinger import Comparison, Ends
from backplay.trajectory.passes import KernelPass, Passed, run
from backplay.trajectory.roots import OverlapPass

if TYPE_CHECKING:
    from backplay.games.play import Play


@entries
@dataclass(frozen=True, repr=False)
class HellingerMatrix(Pictured):
    """All pairs: tensors of shape (rows, columns), with the batch as last dimension if plays hold several samples."""

    distance: Tensor
    bc: Tensor
    surviving: Tensor
    cemetery_overlap: Tensor

    def __repr__(self) -> str:
        rows, columns = self.distance.shape[:2]
        least, most = float(self.distance.amin()), float(self.distance.amax())
        return f"HellingerMatrix({rows} × {columns}, distance {least:.3f} to {most:.3f})"

    # what follows takes the distances of all walks or, if `surviving`, of those that arrive

    def neighbours(self, item: int, k: int | None = None, *, surviving: bool = False) -> tuple[Tensor, Tensor]:
        """(k,) the items whose calculation is nearest to that of one of them, and (k,) their distances.

        Without `k` the nearest five, or all others where there are fewer.
        """
        return clusters.neighbours(self._between(surviving), item, k)

    def medoids(self, k: int, *, surviving: bool = False) -> Medoids:
        """`k` groups of items, each around the one in its middle."""
        return clusters.medoids(self._between(surviving), k)

    def embedding(self, dimensions: int = 2, *, surviving: bool = False) -> Points:
        """Items as points in a plane, as far apart as their walks as nearly as it allows."""
        return clusters.embedding(self._between(surviving), dimensions)

    def dendrogram(self, *, surviving: bool = False) -> Tensor:
        """(n − 1, 4) the tree of average linkage, as scipy writes it."""
        return clusters.dendrogram(self._between(surviving))

    def _between(self, surviving: bool) -> Tensor:
        return self.surviving if surviving else self.distance


@entry
def hellinger_matrix(plays_a: Iterable[Play], plays_b: Iterable[Play] | None = None) -> HellingerMatrix:
    """Compare every play of one list with every play of another, or of one list with each other.

    >>> bp.hellinger_matrix([game.play(x) for x in images], [game.play(y) for y in others]).distance
    >>> bp.hellinger_matrix([game.play(x) for x in images]).medoids(2).labels

    Node by node: a play's kernel is made where it is missing, serves all pairs, and is forgotten, so that kernels
    of one node are held at a time. Plays keep those that they have; `play.release()` drops them beforehand. Of one
    list each pair is walked once.
    """
    rows = _listed(plays_a)
    columns = rows if plays_b is None else _listed(plays_b)
    for play in (*rows, *columns):
        check_comparable(rows[0], play)
    shape = len(rows), len(columns)
    cells = [(i, j) for i in range(shape[0]) for j in range(shape[1]) if plays_b is not None or i <= j]
    cell = dict(zip(cells, _sweep([(rows[i], columns[j]) for i, j in cells]), strict=True))
    every = [cell[i, j] if (i, j) in cell else cell[j, i] for i in range(shape[0]) for j in range(shape[1])]
    tensors = {
        name: torch.stack([getattr(c, name) for c in every]).view(*shape, -1)
        for name in ("distance", "bc", "surviving", "cemetery_overlap")
    }
    return HellingerMatrix(**{k: t[..., 0] if t.shape[-1] == 1 else t for k, t in tensors.items()})


def _listed(plays: Iterable[Play]) -> list[Play]:
    """One side of the matrix, checked."""
    if isinstance(plays, (Tensor, str)) or not isinstance(plays, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputTypeError(
            f"hellinger_matrix takes lists of plays, got {type(plays).__name__}; give [game.play(x) for x in images]."
        )
    checked = list(plays)
    if not checked:
        raise InputError("hellinger_matrix needs at least one play on each side.")
    for play in checked:
        check_play(play, "hellinger_matrix takes two lists of plays")
    return checked


def _sweep(wanted: Sequence[tuple[Play, Play]]) -> list[Comparison]:
    """All walks and all pairs in one run of the backward loop."""
    plays = {id(p): p for pair in wanted for p in pair}
    kernels = _Kernels(list(plays.values()))
    walks = {key: _own_walk(play, kernels) for key, play in plays.items()}
    pairs = [(a, b, _overlap(a, b, kernels)) for a, b in wanted]
    unknown = [w for key, w in walks.items() if not plays[key].knows(WALK)]
    run(*unknown, *(overlap for _, _, overlap in pairs), done=kernels.forget)
    ends = {key: Ends.of(walk.passed.arrive(), plays[key]) for key, walk in walks.items()}
    return [
        Comparison(ends[id(a)], ends[id(b)], ends[id(a)] if a is b else Ends.of(overlap.passed.arrive(), a))
        for a, b, overlap in pairs
    ]


class _Kernels:
    """The kernels of all plays at the node that the sweep stands at: made once, and forgotten before the next."""

    def __init__(self, plays: Sequence[Play]) -> None:
        networks = {id(p.network): p.network for p in plays}.values()
        self._positions = {node: k for network in networks for k, node in enumerate(network.nodes)}
        self._held: dict[int, Kernel] = {}

    def of(self, play: Play, node: Node) -> Kernel:
        """A play's kernel at a node, which may be another play's copy of it."""
        if id(play) not in self._held:
            self._held[id(play)] = play.kernel(play.network.nodes[self._positions[node]], keep=False)
        return self._held[id(play)]

    def forget(self, node: Node) -> None:
        self._held.clear()


def _own_walk(play: Play, kernels: _Kernels) -> KernelPass:
    """One play's own walk; where the play has walked it already, with its result."""
    play.check_can_remake()
    passed = play.passed(WALK) if play.knows(WALK) else Passed.starting(play.start, play.root())
    return KernelPass(play.network, lambda node: kernels.of(play, node), passed, WALK, keep=False)


def _overlap(a: Play, b: Play, kernels: _Kernels) -> OverlapPass:
    return OverlapPass(a, b, lambda node: (kernels.of(a, node), kernels.of(b, node)))
