"""Where a search for the best renaming starts: channels of B that look like A's, by their weights or by their mass.

A renaming is a tensor `source` (channels,): channel `c` takes over what channel `source[c]` of B was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.kernel import WALK, WALK_DIFFERENCE
from backplay.symmetry.channels import Channels
from backplay.symmetry.ledger import Axis, present
from backplay.symmetry.orbits import Leaf, Member, channels_in
from backplay.symmetry.pairing import Gains, pair

if TYPE_CHECKING:
    from backplay.games.play import Play

Orbits = Sequence[Sequence[Member]]


def by_mass(a: Play, b: Play, channels: Channels, orbits: Orbits) -> Tensor:
    """Channels that the two walks, each on its own, visit alike: `Σ √(p_A p_B)` over states, both players.

    Equal laws have equal marginals, so that this finds any renamed copy whose channels carry different mass.
    """
    source = torch.arange(len(channels.ledger))
    nodes = list(zip(a.network.nodes, b.network.nodes, strict=True))
    masses = [(channels.labels(twin), _players(a, node), _players(b, twin)) for node, twin in nodes]
    for members in orbits:
        gains = Gains(members)
        for leaves, table in zip(gains.kinds, gains.tables, strict=True):
            for role in range(len(leaves[0].channels)):
                own = torch.tensor([leaf.channels[role] for leaf in leaves])
                for labels, mine, other in masses:
                    if labels is not None and mine is not None and other is not None:
                        where = _elements(labels, own)
                        table += sum(p[where] @ q[where].T for p, q in zip(mine, other, strict=True))
        for left, right in pair(members, members, gains)[1]:
            source[list(left.channels)] = torch.tensor(right.channels)
    return source


def _players(play: Play, node: object) -> list[Tensor] | None:
    """Roots of each player's walk mass at a node, flat, on the scale of their sum; None where no walk comes."""
    total = play.passed(WALK).masses.get(node)  # type: ignore[call-overload]
    if total is None:
        return None
    difference = play.passed(WALK_DIFFERENCE).masses[node].plain().double()  # type: ignore[index]
    mass = total.plain().double()
    return [((mass + sign * difference) / 2).clamp(min=0).sqrt().flatten().cpu() for sign in (1, -1)]


def _elements(labels: Tensor, channels: Tensor) -> Tensor:
    """(channels, elements) the flat positions of each channel's elements, which are equally many; () where none is."""
    flat = labels.flatten().cpu()
    positions = flat.argsort(stable=True)
    positions = positions[torch.isin(flat[positions], channels + 1)].view(len(channels), -1)
    return positions[channels.argsort().argsort()]


class ByWeights:
    """Bottom-up: each layer by its incoming weights, given the order below; the input is fixed.

    Weights count as the Stopping Game's walk weighs them, `±√(|W_ij| / γ_j)`: products of rows are overlaps.
    """

    def __init__(self, a: Play, b: Play, channels: Channels, orbits: Orbits) -> None:
        self.channels, self.orbits = channels, orbits
        self.a, self.b = _roots(a, channels), _roots(b, channels)
        self._axes: dict[int, list[Axis]] = {}  # of each channel: the axes of parameters that it stands on
        for axis in channels.axes:
            for c in present(axis.labels):
                self._axes.setdefault(c, []).append(axis)

    def renaming(self) -> Tensor:
        """Within an orbit of heads or groups some layers read others: what reads only settled channels comes first."""
        source = torch.arange(len(self.channels.ledger))
        settled = torch.ones(len(source), dtype=torch.bool)
        for members in self.orbits:
            settled[channels_in(members)] = False
        for members in self.orbits:
            own = torch.tensor(channels_in(members))
            while not bool(settled[own].all()):
                known = [x for x in self.channels.axes if x.makes and self._reads_only(x, settled)]
                self._solve(members, known, source)
                named = {c for x in known for c in present(x.labels)}
                fresh = [c for c in own.tolist() if c in named and not settled[c]]
                settled[fresh or own] = True
        return source

    def _reads_only(self, axis: Axis, settled: Tensor) -> bool:
        """Whether all that a parameter reads has found its order."""
        others = [x for x in self.channels.axes if x.parameter == axis.parameter and not x.makes]
        return all(bool(settled[present(x.labels)].all()) for x in others)

    def _solve(self, members: Sequence[Member], axes: Sequence[Axis], source: Tensor) -> None:
        """The best order of one orbit by what stands on some axes: written into `source`."""
        inverse = torch.empty_like(source)
        inverse[source] = torch.arange(len(source))
        gains = Gains(members)
        for leaves, table in zip(gains.kinds, gains.tables, strict=True):
            table += self._gain(leaves, axes, inverse)
        for left, right in pair(members, members, gains)[1]:
            source[list(left.channels)] = torch.tensor(right.channels)

    def _gain(self, leaves: Sequence[Leaf], axes: Sequence[Axis], inverse: Tensor) -> Tensor:
        """(leaves, leaves) how well each of A's fits each of B's, over all their roles."""
        total = torch.zeros(len(leaves), len(leaves), dtype=torch.float64)
        for role in range(len(leaves[0].channels)):
            channels = torch.tensor([leaf.channels[role] for leaf in leaves])
            for axis in self._axes.get(int(channels[0]), []):
                if any(axis is x for x in axes):
                    own = self._rows(self.a, axis, channels, torch.arange(len(inverse)))
                    total += own @ self._rows(self.b, axis, channels, inverse).T
        return total

    def _rows(self, tensors: Mapping[str, Tensor], axis: Axis, channels: Tensor, inverse: Tensor) -> Tensor:
        """(channels, entries) of a parameter, its other axes in the order of A's channels that theirs became."""
        tensor, labels = tensors[axis.parameter], axis.labels
        for other in self.channels.axes:
            if other.parameter != axis.parameter or other.number == axis.number:
                continue
            order = _key(other.labels, inverse).argsort(dim=-1, stable=True)
            if order.ndim == 2:  # columns of a grouped convolution, row by row
                tensor = tensor.gather(1, order.view(*order.shape, *[1] * (tensor.ndim - 2)).expand(tensor.shape))
            else:
                tensor = tensor.index_select(other.number, order)
                labels = labels[order] if labels.ndim == 2 else labels
        entries = tensor.movedim(axis.number, 0) if labels.ndim == 1 else tensor.flatten(0, 1)
        where = _elements(labels, channels)
        return entries[where.flatten()].reshape(len(channels), -1)


def _roots(play: Play, channels: Channels) -> dict[str, Tensor]:
    """Each parameter as `±√(|W_ij| / γ_j)`."""
    normalised: dict[str, Tensor] = {}
    rows = {x.parameter: x.number for x in channels.axes if x.makes}
    for name, tensor in play.network.tensors().items():
        if any(x.parameter == name for x in channels.axes):
            squashed = tensor.detach().double().cpu()
            squashed = squashed.sign() * squashed.abs().sqrt()
            axes = [d for d in range(squashed.ndim) if d != rows.get(name, 0)] if squashed.ndim > 1 else [0]
            normalised[name] = squashed / squashed.square().sum(axes, keepdim=True).sqrt().clamp(min=1e-300)
    return normalised


def _key(labels: Tensor, inverse: Tensor) -> Tensor:
    """By the channel of A that each became; what has no label stays in front, in its order."""
    return torch.where(labels > 0, inverse[(labels - 1).clamp(min=0)] + 1, 0)
