"""`H_perm`: the distance up to a renaming of hidden channels (sec:model-distance-invariances, S33)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.symmetry.assignment import assign
from backplay.symmetry.channels import Channels
from backplay.symmetry.families import Branch, Forest, Leaf, Member, channels_of
from backplay.symmetry.ledger import Place, present
from backplay.symmetry.transforms import channels_of as analysed
from backplay.symmetry.transforms import permuted, shuffle

if TYPE_CHECKING:
    from backplay.games.play import Play

SWEEPS = 10  # of alternating assignments at most
STARTS = 2  # random ones, beside bottom-up and the channels as they are

Pairs = list[tuple[Leaf, Leaf]]


def candidates(a: Play, b: Play) -> Iterator[Play]:
    """B as it is, then with its channels renamed to fit A, from several starts.

    Every candidate is a renaming, so the smallest distance among them is an upper bound of the true minimum.
    """
    for play in (a, b):
        play.check_unchanged("rename its channels")
    yield b
    with torch.inference_mode(False), torch.no_grad():
        channels = analysed(b.network, b.inputs)
        match = Matching(channels, _roots(a, channels), _roots(b, channels))
        if not match.families:
            return
        for source in match.solutions():
            yield b.on(b.network.on(permuted(b.network.model, channels, source)))


def _roots(play: Play, channels: Channels) -> dict[str, Tensor]:
    """Parameters as the walk weighs them: `±√(|W_ij| / γ_j)`, whose products are overlaps of rows."""
    found: dict[str, Tensor] = {}
    rows = {p.parameter: p.axis for p in channels.places if p.makes}
    for name, tensor in play.network.tensors().items():
        if any(p.parameter == name for p in channels.places):
            root = tensor.detach().double().cpu()
            root = root.sign() * root.abs().sqrt()
            axes = [d for d in range(root.ndim) if d != rows.get(name, 0)] if root.ndim > 1 else [0]
            found[name] = root / root.square().sum(axes, keepdim=True).sqrt().clamp(min=1e-300)
    return found


class Matching:
    """Renamings of B's channels that make its parameters look like A's.

    A renaming is a tensor `source`: channel `c` takes over what channel `source[c]` of B was.
    """

    def __init__(self, channels: Channels, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
        self.channels, self.a, self.b = channels, a, b
        self.families = Forest(channels.ledger, channels.signatures()).families()
        self._size = len(channels.ledger)
        self._stands: dict[int, list[Place]] = {}
        for place in channels.places:
            for c in present(place.labels):
                self._stands.setdefault(c, []).append(place)

    def solutions(self) -> Iterator[Tensor]:
        """Bottom-up, then the same and other starts improved by alternating assignments."""
        bottom_up = self._bottom_up()
        yield bottom_up
        generator = torch.Generator().manual_seed(0)
        starts = [bottom_up, self._identity(), *(self._random(generator) for _ in range(STARTS))]
        for start in starts:
            yield self._improved(start)

    def _identity(self) -> Tensor:
        return torch.arange(self._size)

    def _random(self, generator: torch.Generator) -> Tensor:
        source = self._identity()
        for members in self.families:
            shuffle(source, members, members, generator)
        return source

    def _bottom_up(self) -> Tensor:
        """Each layer by its incoming weights, given the order below; the input is fixed.

        Within a family of heads or groups some layers read others: what reads only settled channels comes first.
        """
        source, settled = self._identity(), torch.ones(self._size, dtype=torch.bool)
        for members in self.families:
            settled[channels_of(members)] = False
        for members in self.families:
            own = torch.tensor(channels_of(members))
            while not bool(settled[own].all()):
                known = [p for p in self.channels.places if p.makes and self._reads_only(p, settled)]
                self._solve(members, known, source)
                spoken = {c for p in known for c in present(p.labels)}
                fresh = [c for c in own.tolist() if c in spoken and not settled[c]]
                settled[fresh or own] = True
        return source

    def _reads_only(self, place: Place, settled: Tensor) -> bool:
        """Whether all that a parameter reads has found its order."""
        others = [p for p in self.channels.places if p.parameter == place.parameter and not p.makes]
        return all(bool(settled[present(p.labels)].all()) for p in others)

    def _improved(self, start: Tensor) -> Tensor:
        """By incoming and outgoing weights, given all other orders, until nothing changes."""
        source = start.clone()
        for _ in range(SWEEPS):
            before = source.clone()
            for members in self.families:
                self._solve(members, self.channels.places, source)
            if torch.equal(before, source):
                break
        return source

    # ---------------------------------------------------------------- one family

    def _solve(self, members: Sequence[Member], places: Sequence[Place], source: Tensor) -> None:
        """The best order of one family, all others given: written into `source`."""
        inverse = torch.empty_like(source)
        inverse[source] = self._identity()
        gains = Gains(self, places, inverse)
        gains.prepare(members)
        for left, right in _paired(members, members, gains)[1]:
            source[list(left.channels)] = torch.tensor(right.channels)

    def gain(self, leaves: Sequence[Leaf], places: Sequence[Place], inverse: Tensor) -> Tensor:
        """(leaves, leaves) how well each of A's fits each of B's, over all their roles."""
        total = torch.zeros(len(leaves), len(leaves), dtype=torch.float64)
        for role in range(len(leaves[0].channels)):
            channels = torch.tensor([leaf.channels[role] for leaf in leaves])
            for place in self._stands.get(int(channels[0]), []):
                if any(place is p for p in places):
                    own = self._rows(self.a, place, channels, self._identity())
                    total += own @ self._rows(self.b, place, channels, inverse).T
        return total

    def _rows(self, tensors: Mapping[str, Tensor], place: Place, channels: Tensor, inverse: Tensor) -> Tensor:
        """(channels, entries) of a parameter, its other axes in the order of A's channels that theirs became."""
        tensor, labels = tensors[place.parameter], place.labels
        for other in self.channels.places:
            if other.parameter != place.parameter or other.axis == place.axis:
                continue
            order = _key(other.labels, inverse).argsort(dim=-1, stable=True)
            if order.ndim == 2:  # columns of a grouped convolution, row by row
                tensor = tensor.gather(1, order.view(*order.shape, *[1] * (tensor.ndim - 2)).expand(tensor.shape))
            else:
                tensor = tensor.index_select(other.axis, order)
                labels = labels[order] if labels.ndim == 2 else labels
        entries = tensor.movedim(place.axis, 0) if labels.ndim == 1 else tensor.flatten(0, 1)
        labels = labels.flatten()
        positions = labels.argsort(stable=True)
        positions = positions[torch.isin(labels[positions], channels + 1)].view(len(channels), -1)
        found = entries[positions.flatten()].reshape(len(channels), -1)
        return found[channels.argsort().argsort()]


class Gains:
    """Gains between the leaves of a family, kind by kind: worked out once for all cells."""

    def __init__(self, matching: Matching, places: Sequence[Place], inverse: Tensor) -> None:
        self._matching, self._places, self._inverse = matching, places, inverse
        self._found: dict[tuple[int, ...], tuple[Tensor, int]] = {}  # table of a leaf's kind, its row there

    def prepare(self, members: Sequence[Member]) -> None:
        """Tables for equals, and for what stands in the same place in cells that are equals."""
        if isinstance(members[0], Leaf):
            leaves = _leaves(members)
            table = self._matching.gain(leaves, self._places, self._inverse)
            self._found |= {leaf.channels: (table, k) for k, leaf in enumerate(leaves)}
            return
        for k in range(len(members[0].inner)):
            self.prepare([m for cell in _branches(members) for m in cell.inner[k]])

    def between(self, left: Sequence[Leaf], right: Sequence[Leaf]) -> Tensor:
        """(left, right), the part of a table that is asked for."""
        rows, columns = ([self._found[leaf.channels][1] for leaf in side] for side in (left, right))
        return self._found[left[0].channels][0][rows][:, columns]


def _paired(left: Sequence[Member], right: Sequence[Member], gains: Gains) -> tuple[float, Pairs]:
    """The best assignment of one list of equals to another, cells by the best assignments within them."""
    if not isinstance(left[0], Leaf):
        return _paired_cells(_branches(left), _branches(right), gains)
    leaves, others = _leaves(left), _leaves(right)
    table = gains.between(leaves, others)
    order = assign(table).tolist()
    value = float(table[torch.arange(len(order)), order].sum())
    return value, [(leaves[k], others[o]) for k, o in enumerate(order)]


def _paired_cells(left: Sequence[Branch], right: Sequence[Branch], gains: Gains) -> tuple[float, Pairs]:
    table = torch.zeros(len(left), len(right), dtype=torch.float64)
    for k, inner in enumerate(left[0].inner):
        if len(inner) == 1 and isinstance(inner[0], Leaf):  # nothing to choose within a cell
            own, other = ([leaf for cell in side for leaf in _leaves(cell.inner[k])] for side in (left, right))
            table += gains.between(own, other)
            continue
        for i, one in enumerate(left):
            for j, other in enumerate(right):
                table[i, j] += _paired(one.inner[k], other.inner[k], gains)[0]
    pairs: Pairs = []
    order = assign(table).tolist()
    for i, j in enumerate(order):
        for k, inner in enumerate(left[i].inner):
            pairs += _paired(inner, right[j].inner[k], gains)[1]
    return float(table[torch.arange(len(order)), order].sum()), pairs


def _leaves(members: Sequence[Member]) -> list[Leaf]:
    return [m for m in members if isinstance(m, Leaf)]


def _branches(members: Sequence[Member]) -> list[Branch]:
    return [m for m in members if isinstance(m, Branch)]


def _key(labels: Tensor, inverse: Tensor) -> Tensor:
    """By the channel of A that each became; what has no label stays in front, in its order."""
    return torch.where(labels > 0, inverse[(labels - 1).clamp(min=0)] + 1, 0)
