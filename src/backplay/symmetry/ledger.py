"""Channels by number, and what is known of them: their layer, which are tied, which stay, which keep together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backplay.network.nodes import Node


@dataclass
class Axis:
    """One axis of a parameter, whose entries move with channels; `labels` (positions,) says with which.

    The columns of a grouped convolution belong to other channels in every group: there `labels` is (rows, columns).
    """

    parameter: str
    number: int  # of the axis among the parameter's
    labels: Tensor
    makes: bool  # the axis of what a layer computes, not of what it reads
    node: Node

    def order(self, source: Tensor) -> Tensor:
        """Where each position of the axis takes its entry from if channel `c` takes over what `source[c]` was."""
        return matching(self.labels, renamed(self.labels, source))


def renamed(labels: Tensor, source: Tensor) -> Tensor:
    """Labels of the channels that are taken over."""
    return torch.where(labels > 0, source.to(labels.device)[(labels - 1).clamp(min=0)] + 1, 0)


def matching(have: Tensor, want: Tensor) -> Tensor:
    """Positions with `have[positions] = want` along the last axis; of equal labels, the first goes to the first."""
    canonical = torch.empty_like(have)
    return canonical.scatter_(-1, want.argsort(dim=-1, stable=True), have.argsort(dim=-1, stable=True))


@dataclass
class Cell:
    """Channels that keep together: a head, a group of a convolution or of a norm. `fixed` cells stay where they are."""

    channels: set[int]
    fixed: bool = False


@dataclass
class Ledger:
    """A label is the number of a channel plus 1; 0 is no label."""

    maker: list[int] = field(default_factory=list[int])  # of each channel: the number of its layer
    held: set[int] = field(default_factory=set[int])  # channels that stay where they are
    bound: set[int] = field(default_factory=set[int])  # channels whose size matters: statistics and scores read them
    bundles: list[list[Cell]] = field(default_factory=list[list[Cell]])  # cells that may change places with each other
    _parent: list[int] = field(default_factory=list[int])
    _layers: int = 0

    def __len__(self) -> int:
        return len(self.maker)

    def new(self, size: int) -> Tensor:
        """Labels of the channels of a new layer."""
        start = len(self)
        self.maker += [self._layers] * size
        self._parent += range(start, start + size)
        self._layers += 1
        return torch.arange(start + 1, start + size + 1)

    def find(self, channel: int) -> int:
        """The first channel among those that are tied to one."""
        while self._parent[channel] != channel:
            self._parent[channel] = self._parent[self._parent[channel]]
            channel = self._parent[channel]
        return channel

    def canonical(self, labels: Tensor) -> Tensor:
        """Equal labels for channels that are tied."""
        first = torch.tensor([0, *(self.find(c) + 1 for c in range(len(self)))], device=labels.device)
        return first[labels]

    def tie(self, left: Tensor, right: Tensor) -> Tensor:
        """Two labels for one thing move as one; what has a label beside what has none stays. Returns labels."""
        left, right = torch.broadcast_tensors(left, right)
        for a, b in _pairs(left, right):
            if a and b:
                first, second = sorted((self.find(a - 1), self.find(b - 1)))
                self._parent[second] = first
            elif a or b:
                self.held.add(max(a, b) - 1)
        return torch.where(left > 0, left, right)

    def hold(self, labels: Tensor) -> None:
        """Keep channels where they are."""
        self.held.update(present(labels))

    def bind(self, labels: Tensor) -> None:
        """Keep channels as large as they are."""
        self.bound.update(present(labels))

    def keep_together(self, keys: Tensor, labels: Tensor, fixed: Iterable[int] = ()) -> None:
        """A cell for each key, of the channels that it stands beside; one cell alone keeps nothing apart."""
        cells: dict[int, Cell] = {}
        for key, label in _pairs(*torch.broadcast_tensors(keys, labels)):
            if label:
                cells.setdefault(key, Cell(set(), key in fixed)).channels.add(label - 1)
        if len(cells) > 1 and any(len(cell.channels) > 1 or cell.fixed for cell in cells.values()):
            self.bundles.append(list(cells.values()))


def _pairs(left: Tensor, right: Tensor) -> list[tuple[int, int]]:
    """The different pairs of non-negative numbers, as one number each: sorting those is a hundred times faster."""
    base = int(right.amax()) + 1 if right.numel() else 1
    return [divmod(code, base) for code in torch.unique(left.flatten() * base + right.flatten()).tolist()]


def present(labels: Tensor) -> list[int]:
    """The channels that appear among labels, in order."""
    return (torch.unique(labels[labels > 0]) - 1).tolist()


def line(labels: Tensor, first: int | None = None) -> tuple[int, Tensor] | None:
    """The one axis along which labels vary, `first` if it is one, and the labels along it; None where there is none.

    Positions without a label fit any.
    """
    for axis in sorted(range(labels.ndim), key=lambda axis: (axis != first, -axis)):
        along = labels.movedim(axis, 0).flatten(1).amax(1) if labels.ndim > 1 else labels
        spread = along.view([-1 if d == axis else 1 for d in range(labels.ndim)])
        if bool(((labels == 0) | (labels == spread)).all()):
            return axis, along
    return None
