"""`H_perm`: the distance up to a renaming of hidden channels, sample by sample (sec:model-distance-invariances, S33).

With all other orbits fixed, BC is a sum over the pairs of one orbit: what of the overlap arrives at a pair, times
the overlap that is still to come from it. So the best renaming of an orbit is a linear assignment. Where a walk crosses
an orbit several times, as it does a residual stream, the sum is over single crossings, the others as they are: linear
to first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.kernels.geometric import geometric
from backplay.kernels.kernel import WALK, Kernel
from backplay.network import Network, Node
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Input
from backplay.symmetry.channels import Channels, read_channels
from backplay.symmetry.matching import ByWeights, Orbits, by_mass
from backplay.symmetry.orbits import Forest, Member, channels_in, rotated, rotations
from backplay.symmetry.pairing import Gains, pair
from backplay.symmetry.transforms import permuted, shuffle
from backplay.trajectory.hellinger import INVARIANT, Hellinger
from backplay.trajectory.overlap import TwoPlays
from backplay.trajectory.passes import KernelPass, run
from backplay.trajectory.roots import common_root
from backplay.trajectory.survival import ahead_of, expect, ones_at_inputs
from backplay.values.shared import Shared

if TYPE_CHECKING:
    from backplay.games.play import Play

SWEEPS = 10  # of assignments over all orbits, at most, from one start
ROTATIONS = 64  # an orbit that needs more of them stays as it started: each rotation costs a forward pass and more
NOTHING = 1e-14  # more overlap than 1 − NOTHING is all of it


def nearest(a: Play, b: Play, conditioning: str) -> Hellinger:
    """A against B renamed, each sample in the way that brings it nearest; an upper bound of the true minimum."""
    for play in (a, b):
        play.check_unchanged("rename its channels")
        if play.start is not play.network.output:
            raise UnsupportedError(
                f"a walk from the hidden neurons of {play.start.name!r} has no distance up to renaming: they would be "
                "renamed too; start at a class."
            )
    channels = read_channels(b.network, b.inputs)
    orbits = Forest(channels.ledger, channels.signatures()).orbits()
    pairs = [Search(_sample(a, k), _sample(b, k), channels, orbits).closest() for k in range(len(a.value))]
    return Hellinger(a, b, conditioning, pairs)


def _sample(play: Play, k: int) -> Play:
    """One sample of a play, as a play."""
    inputs, part = play.inputs, slice(k, k + 1)
    if inputs.batch == 1:
        return play
    by_sample = [key for key in {*inputs.explained, *play.network.signature.per_sample} if len(inputs[key]) > 1]
    one = inputs.with_values({key: inputs[key][part] for key in by_sample})
    return type(play)(play.game, play.network, one, play.aim.part(part).given)


@dataclass(frozen=True)
class Look:
    """The overlap of A and B renamed by `source`: in all, what arrives at each state, what is still to come there."""

    source: Tensor
    bc: float
    arriving: dict[Node, Mass]
    coming: dict[Node, Mass]


class Renamed:
    """The kernels of A and of B with its channels renamed, at a node of A's; those of B are made when asked for."""

    def __init__(self, a: Play, b: Play, network: Network) -> None:
        self._a, self._game = a, b.game
        self._values = b.game.values(Shared(network, b.inputs, network.weights()))
        self._twins = dict(zip(a.network.nodes, network.nodes, strict=True))
        self._made: dict[Node, Kernel] = {}

    def kernels(self, node: Node) -> tuple[Kernel, Kernel]:
        """Of A, and of B renamed."""
        if node not in self._made:
            self._made[node] = self._game.kernel(self._twins[node], self._values)
        return self._a.kernel(node), self._made[node]

    def kernel(self, node: Node) -> Kernel:
        """`√(T_A T_B)`."""
        return geometric(*self.kernels(node), node.name)


class Search:
    """Renamings of B with more and more overlap, on one sample. Nodes are A's."""

    def __init__(self, a: Play, b: Play, channels: Channels, orbits: Orbits) -> None:
        self.a, self.b, self.channels, self.orbits = a, b, channels, orbits
        self._best: dict[tuple[tuple[int, ...], int], Tensor] = {}  # for starts that come to the same renaming
        pairs = zip(a.network.nodes, b.network.nodes, strict=True)
        self.labels = {node: labels for node, twin in pairs if (labels := channels.labels(twin)) is not None}

    def closest(self) -> TwoPlays:
        """A with the renaming of B that overlaps most, of those that were found."""
        best = self.look(torch.arange(len(self.channels.ledger)))
        if best.bc <= 1 - NOTHING and self.orbits:
            for start in self.starts():
                end = self.improved(start)
                best = end if end.bc > best.bc else best
                if best.bc > 1 - NOTHING:
                    break
        kept = torch.equal(best.source, torch.arange(len(best.source)))
        return TwoPlays(self.a, self.b if kept else self.b.on(self.network(best.source)))

    def starts(self) -> list[Tensor]:
        """Renamings to start from, the best first: likely ones and a random one, of large networks the best alone."""
        own, generator = torch.arange(len(self.channels.ledger)), torch.Generator().manual_seed(0)
        drawn = own.clone()
        for members in self.orbits:
            shuffle(drawn, members, members, generator)
        weighed = ByWeights(self.a, self.b, self.channels, self.orbits).renaming()
        starts = [by_mass(self.a, self.b, self.channels, self.orbits), weighed, own, drawn]
        starts.sort(key=lambda source: -self.look(source).bc)
        return starts if sum(rotations(members) for members in self.orbits) <= ROTATIONS else starts[:1]

    def improved(self, start: Tensor) -> Look:
        """The best order of one orbit after the other, until none of them adds to the overlap."""
        here = self.look(start)
        for _ in range(SWEEPS):
            before = here.bc
            for k, members in enumerate(self.orbits):
                if rotations(members) <= ROTATIONS and here.bc <= 1 - NOTHING:
                    there = self._assigned(here, k)
                    here = there if there.bc > here.bc else here
            if here.bc <= before + NOTHING:
                break
        return here

    def _assigned(self, here: Look, orbit: int) -> Look:
        """One orbit in its best order, all others given."""
        members, key = self.orbits[orbit], (tuple(here.source.tolist()), orbit)
        if key not in self._best:
            source = here.source.clone()
            for left, right in pair(members, members, self._gains(here, members))[1]:
                source[list(left.channels)] = here.source[list(right.channels)]
            self._best[key] = source
        return here if torch.equal(self._best[key], here.source) else self.look(self._best[key])

    def network(self, source: Tensor) -> Network:
        return self.b.network.on(permuted(self.b.network.model, self.channels, source))

    def _renamed(self, source: Tensor) -> Renamed:
        return Renamed(self.a, self.b, self.network(source))

    # ---------------------------------------------------------------- overlaps

    def look(self, source: Tensor) -> Look:
        """Both passes of the overlap (alg:hellinger-backward, alg:hellinger-forward)."""
        both, network = self._renamed(source), self.a.network
        kernels: dict[Node, Kernel] = {}

        def kernel(node: Node) -> Kernel:
            if node not in kernels:
                kernels[node] = both.kernel(node)
            return kernels[node]

        overlap, behind = common_root(self.a, self.b, both.kernels)
        run(KernelPass(network, kernel, overlap, WALK))
        visited = [n for n in self.a.visited() if n not in behind]
        coming = expect(network, kernel, visited, ones_at_inputs(self.a), ends=True)
        arrived = [overlap.masses[n].total() for n in network.inputs if n in overlap.masses]
        return Look(source, float(sum(arrived, overlap.losses.total())), overlap.masses, coming)

    def _gains(self, here: Look, members: Sequence[Member]) -> Gains:
        """What each pair of an orbit would carry: all pairs in as many renamings as the orbit has rotations."""
        gains = Gains(members)
        own = torch.zeros(len(here.source) + 1, dtype=torch.bool)
        own[torch.tensor(channels_in(members)) + 1] = True
        inside = {node: own[labels] for node, labels in self.labels.items() if bool(own[labels].any())}
        for step in range(rotations(members)):
            pairs, source = rotated(members, members, step), here.source.clone()
            for left, right in pairs:
                source[list(left.channels)] = here.source[list(right.channels)]
            carried = self._carried(here, self._renamed(source), inside)
            for left, right in pairs:
                gains.set(left, right, float(carried[[c + 1 for c in left.channels]].sum()))
        return gains

    def _carried(self, here: Look, both: Renamed, inside: dict[Node, Tensor]) -> Tensor:
        """(labels,) overlap of the walks that cross an orbit once as `both` pairs it, and else as they are `here`.

        `inside` says which states of a node belong to the orbit.
        """
        coming = self._coming(here, both, inside)
        carried = torch.zeros(len(here.source) + 1, dtype=torch.float64)

        def enter(node: Node, mass: Mass) -> None:
            if node in inside and node in coming:
                met = (mass.value * coming[node].value * inside[node]).double()
                scale = torch.exp2(mass.exponent + coming[node].exponent)
                carried.index_add_(0, self.labels[node].flatten(), (met * scale).flatten().cpu())

        start, _ = common_root(self.a, self.b, both.kernels)
        for node, mass in start.masses.items():
            enter(node, mass)
        for node, mass in here.arriving.items():
            if isinstance(node, Input) or not any(n in inside for n in self.a.kernel(node).carriers or node.carriers):
                continue
            outside = mass.value * ~inside[node] if node in inside else mass.value
            step = both.kernel(node)
            for operand, moved in zip(step.carriers or node.carriers, step.pull(outside, WALK), strict=True):
                enter(operand, Mass(moved, mass.exponent, operand.layout))
        return carried

    def _coming(self, here: Look, both: Renamed, inside: dict[Node, Tensor]) -> dict[Node, Mass]:
        """The overlap to come: inside the orbit as `both` pairs it, as it is `here` once the walk has left it."""
        coming = dict(here.coming)
        for node in self.a.network.nodes:
            if node in inside and node in coming:
                step = both.kernel(node)
                within = ahead_of(node, step, [coming[n] for n in step.carriers or node.carriers], ends=True)
                (new, old), common = aligned([within, here.coming[node]])
                coming[node] = Mass(torch.where(inside[node], new, old), common, node.layout)
        return coming


INVARIANT["permutation"] = nearest
