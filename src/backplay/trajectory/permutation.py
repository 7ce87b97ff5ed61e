"""`H_perm`: the distance up to a renaming of hidden channels (sec:model-distance-invariances, S33)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.network.assignment import assign
from backplay.network.channels import _BASE, Channels, Place
from backplay.transforms import channels_of, order_along, permuted

if TYPE_CHECKING:
    from backplay.games.play import Play

SWEEPS = 10  # of alternating assignments at most
STARTS = 2  # random ones, beside bottom-up and the channels as they are

Orders = dict[int, Tensor]


def candidates(a: Play, b: Play) -> Iterator[Play]:
    """B as it is, then with its channels renamed to fit A, from several starts.

    Every candidate is a renaming, so the smallest distance among them is an upper bound of the true minimum.
    """
    yield b
    with torch.inference_mode(False), torch.no_grad():
        channels = channels_of(b.network, b.inputs)
        if not channels.free():
            return
        match = Matching(channels, _roots(a, channels), _roots(b, channels))
        for orders in match.solutions():
            yield b.on(b.network.on(permuted(b.network.model, channels, orders)))


def _roots(play: Play, channels: Channels) -> dict[str, Tensor]:
    """Parameters as the walk weighs them: `±√(|W_ij| / γ_j)`, whose products are overlaps of rows."""
    found: dict[str, Tensor] = {}
    for name, tensor in play.network.tensors().items():
        if any(p.parameter == name for p in channels.places):
            root = tensor.detach().double().sign() * tensor.detach().double().abs().sqrt()
            size = root.flatten(1).norm(dim=1).clamp(min=1e-300) if root.ndim > 1 else root.norm().clamp(min=1e-300)
            found[name] = root / (size.view([-1] + [1] * (root.ndim - 1)) if root.ndim > 1 else size)
    return found


class Matching:
    """Orders of B's channels that make its parameters look like A's."""

    def __init__(self, channels: Channels, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
        self.channels, self.a, self.b = channels, a, b
        self.groups = channels.free()
        self.places = {g: [p for p in channels.places if _speaks_of(p, g)] for g in self.groups}

    def solutions(self) -> Iterator[Orders]:
        """Bottom-up, then the same and other starts improved by alternating assignments."""
        bottom_up = self._bottom_up()
        yield bottom_up
        generator = torch.Generator().manual_seed(0)
        starts = [bottom_up, self._identity(), *(self._random(generator) for _ in range(STARTS))]
        for start in starts:
            yield self._improved(start)

    def _identity(self) -> Orders:
        return {g: torch.arange(self.channels.groups[g].size) for g in self.groups}

    def _random(self, generator: torch.Generator) -> Orders:
        orders = self._identity()
        for g in self.groups:
            block = self.channels.groups[g].block
            noise = torch.rand(len(block), generator=generator)
            for b in torch.unique(block).tolist():
                here = (block == b).nonzero()[:, 0]
                orders[g][here] = here[noise[here].argsort()]
        return orders

    def _bottom_up(self) -> Orders:
        """Each layer by its incoming weights, given the order below; the input is fixed."""
        orders: Orders = {}
        for g in self.groups:
            orders[g] = self._best(g, [p for p in self.places[g] if p.makes], orders)
        return orders

    def _improved(self, start: Orders) -> Orders:
        """By incoming and outgoing weights, given all other orders, until nothing changes."""
        orders = dict(start)
        for _ in range(SWEEPS):
            changed = False
            for g in self.groups:
                found = self._best(g, self.places[g], {k: v for k, v in orders.items() if k != g})
                changed |= not torch.equal(found, orders[g])
                orders[g] = found
            if not changed:
                break
        return orders

    def _best(self, g: int, places: list[Place], orders: Mapping[int, Tensor]) -> Tensor:
        """The order of one group that fits best, block by block."""
        group = self.channels.groups[g]
        gain = torch.zeros(group.size, group.size, dtype=torch.float64)
        for place in places:
            gain += self._rows(self.a, place, g, {}) @ self._rows(self.b, place, g, orders).T
        order = torch.arange(group.size)
        for b in torch.unique(group.block).tolist():
            here = (group.block == b).nonzero()[:, 0]
            if len(here) > 1:
                order[here] = here[assign(gain[here][:, here])]
        return order

    def _rows(self, tensors: Mapping[str, Tensor], place: Place, g: int, orders: Mapping[int, Tensor]) -> Tensor:
        """(channels, entries) of a parameter along one axis, its other axes in the given orders."""
        tensor = tensors[place.parameter]
        for other in self.channels.places:
            if other.parameter == place.parameter and other.axis != place.axis:
                source = order_along(other, orders)
                tensor = tensor if source is None else tensor.index_select(other.axis, source)
        here = (place.labels // _BASE == g) & (place.labels > 0)
        rows = tensor.movedim(place.axis, 0)[here].flatten(1) if tensor.ndim > 1 else tensor[here][:, None]
        present = torch.unique(place.labels[here]) % _BASE - 1
        rows = rows[torch.argsort(place.labels[here], stable=True)].reshape(len(present), -1)
        found = torch.zeros(self.channels.groups[g].size, rows.shape[1], dtype=rows.dtype)
        found[present] = rows
        return found


def _speaks_of(place: Place, g: int) -> bool:
    return bool(((place.labels > 0) & (place.labels // _BASE == g)).any())
