"""Which channels of a network may change places: neurons and the parameters that speak of them (S33, S34).

Labels run through the network beside its values: every element is told which channel of which group it belongs to.
Channels that a sum joins belong to one group. What the labels cannot follow (grouped convolutions, constants that are
computed from parameters, queries and keys) is held in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from backplay.network.attention import Attention
from backplay.network.graph import Network
from backplay.network.linear import Convolution, Dense
from backplay.network.nodes import Affine, Diagonal, Gate, Input, Max, Mix, Node, Norm, Oracle, Product, Ref, Sum

_BASE = 2**24  # a label is group · _BASE + channel + 1; 0 is no label


@dataclass
class Place:
    """One axis of a parameter: `labels` says, position by position, which channel it belongs to."""

    parameter: str
    axis: int
    labels: Tensor
    makes: bool  # the axis of what a layer computes, not of what it reads
    node: Node


@dataclass
class Group:
    """Channels that share one permutation; only those with equal `block` may change places."""

    size: int
    block: Tensor
    name: str

    def hold(self, channels: Tensor) -> None:
        """Keep channels where they are: each gets a block of its own."""
        self.block[channels] = -1 - channels

    def divide(self, channels: Tensor, parts: Tensor) -> None:
        """Keep channels within their part."""
        self.block[channels] = torch.where(self.block[channels] < 0, self.block[channels], parts)


@dataclass
class Channels:
    """The groups of a network, found by running labels through it."""

    network: Network
    values: Mapping[Any, Any]
    groups: list[Group] = field(default_factory=list[Group])
    places: list[Place] = field(default_factory=list[Place])

    def __post_init__(self) -> None:
        self._parent: list[int] = []
        self._labels: dict[Node, Tensor] = {}
        self._names = self.network.parameter_names()
        for node in self.network.nodes:
            if isinstance(self.values[node], Tensor):
                self._labels[node] = self._step(node)
        self._hold(self._labels[self.network.output])
        for place in self.places:
            place.labels = self._canonical(place.labels)

    # ---------------------------------------------------------------- groups

    def find(self, group: int) -> int:
        while self._parent[group] != group:
            group = self._parent[group]
        return group

    def free(self) -> list[int]:
        """Groups in which some channels may change places, in the order of the forward pass."""
        return [g for g, group in enumerate(self.groups) if self.find(g) == g and _movable(group)]

    def of(self, name: str) -> int:
        """The group of what a named module computes."""
        label = int(self._labels[self.network.find(name)].amax())
        return self.find(label // _BASE) if label else -1

    def _new(self, size: int, name: str) -> int:
        self.groups.append(Group(size, torch.zeros(size, dtype=torch.long), name))
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _canonical(self, labels: Tensor) -> Tensor:
        known = labels > 0
        parents = torch.tensor([self.find(g) for g in range(len(self._parent))] or [0])
        return torch.where(known, parents[(labels // _BASE).clamp(max=len(parents) - 1)] * _BASE + labels % _BASE, 0)

    def _hold(self, labels: Tensor) -> None:
        present = torch.unique(labels[labels > 0])
        for g in torch.unique(present // _BASE).tolist():
            self.groups[self.find(g)].hold(present[present // _BASE == g] % _BASE - 1)

    def _join(self, left: Tensor, right: Tensor) -> Tensor:
        """Two labels for one thing: their groups become one if the channels agree, else both are held."""
        left, right = (self._canonical(t) for t in torch.broadcast_tensors(left, right))
        pairs = torch.unique(torch.stack([left.flatten(), right.flatten()]), dim=1)
        for a, b in pairs.T.tolist():
            if a == b:
                continue
            same = a > 0 and b > 0 and a % _BASE == b % _BASE
            first, second = (self.find(t // _BASE) if t else -1 for t in (a, b))
            if same and self.groups[first].size == self.groups[second].size:
                if first != second:
                    self._merge(min(first, second), max(first, second))
            else:
                self._hold(torch.tensor([t for t in (a, b) if t]))
        return self._canonical(torch.where(left > 0, left, right))

    def _merge(self, keep: int, drop: int) -> None:
        kept, dropped = self.groups[keep], self.groups[drop]
        held = torch.minimum(kept.block, dropped.block) < 0
        own = -1 - torch.arange(kept.size)
        kept.block = torch.where(held, own, kept.block * (int(dropped.block.amax()) + 1) + dropped.block)
        self._parent[drop] = keep

    # ---------------------------------------------------------------- labels

    def _step(self, node: Node) -> Tensor:
        below = [self._labels[n] for n in node.inputs if n in self._labels]
        shape = self.values[node].shape
        zeros = torch.zeros(shape, dtype=torch.long)
        match node:
            case Input():
                return zeros
            case Mix():
                return self._mixed(node)
            case Affine():
                return self._affine(node)
            case Gate() | Diagonal() | Norm():
                return self._elementwise(node, self._labels[node.operand].expand(shape))
            case Sum() | Product():
                return self._join(*below).expand(shape) if len(below) == 2 else self._stop(below, shape)
            case Max(winner=None):
                return self._join(*below)
            case Max():
                assert node.winner is not None
                return below[0].flatten()[node.winner(self.values[node.inputs[0]])]
            case Oracle():
                return self._stop(below, shape)
            case _:
                return self._moved(node, below, shape)

    def _stop(self, below: list[Tensor], shape: torch.Size) -> Tensor:
        for labels in below:
            self._hold(labels)
        return torch.zeros(shape, dtype=torch.long)

    def _moved(self, node: Any, below: list[Tensor], shape: torch.Size) -> Tensor:
        """Labels move with the elements; beside constants everything stays in place."""
        moved = node.move([b.double() for b in below], self.values).long()
        if node.constants and any(isinstance(self.values.get(r), Tensor) for r in _refs(node.args)):
            self._hold(moved)
        return moved

    def _mixed(self, node: Mix) -> Tensor:
        """An average of equal labels is the label."""
        labels = self._labels[node.operand]
        if isinstance(node, Attention):
            self._attend(node, labels)
        ones = torch.ones(labels.shape, dtype=torch.float64)
        weight = node.weight(self.values).double()
        size = node.map.apply(ones, weight)
        mean, square = (node.map.apply(labels.double() ** k, weight) / size for k in (1, 2))
        if bool(((square - mean**2).abs() > 1e-6 * square.abs() + 1e-6).any()) or not bool(torch.isfinite(mean).all()):
            return self._stop([labels], self.values[node].shape)
        return mean.round().long()

    def _attend(self, node: Attention, labels: Tensor) -> None:
        """Queries and keys stay; values keep to their head."""
        for told in node.inputs:
            if told is not node.operand and told not in node.operand.inputs:
                self._hold(self._labels[told])
        if labels.ndim > 3:
            self._divide(labels, torch.arange(labels.shape[-3]).view(-1, 1, 1).expand(labels.shape))

    def _divide(self, labels: Tensor, parts: Tensor) -> None:
        pairs = torch.unique(torch.stack([self._canonical(labels).flatten(), parts.flatten()]), dim=1)
        for g in torch.unique(pairs[0] // _BASE).tolist():
            here = (pairs[0] // _BASE == g) & (pairs[0] > 0)
            if bool(here.any()):
                self.groups[self.find(g)].divide(pairs[0][here] % _BASE - 1, pairs[1][here])

    def _affine(self, node: Affine) -> Tensor:
        """A new group for the outputs; places for the rows and columns of its parameters."""
        shape, labels = self.values[node].shape, self._labels[node.operand]
        plain = isinstance(node.map, Convolution) and not node.map.transposed and node.map.groups == 1
        if not plain and not isinstance(node.map, Dense):
            return self._stop([labels], shape)
        axis = 1 if plain else -1
        columns = labels.movedim(axis, 0).flatten(1)
        sources = [r for r in _refs(node.args) if isinstance(self.values.get(r), Tensor)]
        known = all(r in self._names and self._fits(r, shape[axis], len(columns)) for r in sources)
        if not known or not bool((columns == columns[:, :1]).all()):
            return self._stop([labels], shape)
        group = self._new(shape[axis], node.name)
        rows = group * _BASE + 1 + torch.arange(shape[axis])
        for ref in sources:
            if self.values[ref].ndim == 0:  # a counter
                continue
            self._place(ref, 0, rows, node, makes=True)
            if self.values[ref].ndim > 1:
                self._place(ref, 1, columns[:, 0], node, makes=False)
        view = [1] * len(shape)
        view[axis] = -1
        return rows.view(view).expand(shape).clone()

    def _fits(self, ref: Ref, rows: int, columns: int) -> bool:
        shape = self.values[ref].shape
        return len(shape) <= 1 or tuple(shape[:2]) == (rows, columns)

    def _place(self, ref: Ref, axis: int, labels: Tensor, node: Node, makes: bool) -> None:
        name = self._names[ref]
        for place in self.places:
            if (place.parameter, place.axis) == (name, axis):  # a reused module: both uses speak of one parameter
                labels = self._join(place.labels, labels)
                place.labels = labels
                return
        self.places.append(Place(name, axis, labels.clone(), makes, node))

    def _elementwise(self, node: Node, labels: Tensor) -> Tensor:
        """Constants along the channels get places; those that are no parameters hold the channels."""
        for ref in _refs(node.args):
            value = self.values.get(ref)
            if not isinstance(value, Tensor) or value.numel() == 1:
                continue
            axis = self._channel_axis(node, value, labels)
            if ref not in self._names or axis is None:
                self._hold(labels)
                continue
            line = labels.movedim(axis, 0).flatten(1)
            if bool((line == line[:, :1]).all()):
                self._place(ref, value.ndim - 1, line[:, 0], node, makes=False)
            else:
                self._hold(labels)
        return labels

    def _channel_axis(self, node: Node, value: Tensor, labels: Tensor) -> int | None:
        """Where a constant's last axis lies in the tensor it acts on."""
        if "batch_norm" in node.operator or "prelu" in node.operator:
            return 1
        if "group_norm" in node.operator or "instance_norm" in node.operator:
            return None
        return labels.ndim - 1 if value.shape[-1] == labels.shape[-1] else None


def _movable(group: Group) -> bool:
    free = group.block[group.block >= 0]
    return len(free) > len(torch.unique(free))


def _refs(tree: Any) -> list[Ref]:
    if isinstance(tree, Ref):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [r for item in tree for r in _refs(item)]  # pyright: ignore[reportUnknownVariableType]
    return []
