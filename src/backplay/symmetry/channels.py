"""Which channels of a network may change places: neurons, and the axes of parameters that move with them (S33, S34).

Labels run through the network beside its values: each element carries the number of its channel. Channels that a sum
or a product of queries and keys joins are tied; those that a grouped convolution, a norm or a head treats as one set
keep together. What the labels cannot follow is held in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backplay.network.attention import Attention
from backplay.network.choices import Max, Select
from backplay.network.contraction import Contraction, Equation
from backplay.network.graph import Network
from backplay.network.linear import Averaging, Convolution, Dense
from backplay.network.nodes import (
    Affine,
    Diagonal,
    Gate,
    Halves,
    Held,
    Input,
    Mix,
    Node,
    Norm,
    Oracle,
    Overlay,
    Product,
    Ref,
    Sum,
)
from backplay.symmetry.ledger import Axis, Ledger, line
from backplay.symmetry.origins import Origins, refs
from backplay.values.forward import Values

_MANY = 256  # sets of channels that one node may tell apart


def read_channels(network: Network, inputs: Mapping[Any, Any]) -> Channels:
    """The channels of a network, found on the first sample of an input."""
    first = {k: v[:1] if isinstance(v, Tensor) and v.ndim else v for k, v in inputs.items()}
    return Channels(network, Values(network, first, network.weights()))


class Channels:
    """The channels of a network, found by running labels through it on one input."""

    def __init__(self, network: Network, values: Mapping[Any, Any]) -> None:
        self.network, self.values = network, values
        self.ledger, self.axes = Ledger(), list[Axis]()
        self._labels: dict[Node, Tensor] = {}
        self._names, self._origins = network.parameter_names(), Origins(network, values)
        for node in network.nodes:
            if isinstance(values[node], Tensor):
                self._labels[node] = self._step(node)
        self.ledger.hold(self._labels[network.output])

    def of(self, name: str) -> list[int]:
        """The channels of what a named module computes, in their order."""
        labels = self._labels[self.network.find(name)]
        return (torch.unique(labels[labels > 0]) - 1).tolist()

    def labels(self, node: Node) -> Tensor | None:
        """Like the node's value on one sample: the channel of each element by its number plus 1, 0 for none."""
        return self._labels.get(node)

    def signatures(self) -> list[int]:
        """A number for each channel that tells at which nodes it stands and how often; none may replace another's."""
        hashes = torch.zeros(len(self.ledger) + 1, dtype=torch.long)
        for labels in self._labels.values():
            hashes = hashes * 1000003 + torch.bincount(labels.flatten().cpu(), minlength=len(hashes))
        return hashes[1:].tolist()

    # ---------------------------------------------------------------- labels

    def _step(self, node: Node) -> Tensor:
        below = [self._labels[n] for n in node.inputs if n in self._labels]
        shape = self.values[node].shape
        match node:
            case Input():
                return self._none(shape)
            case Attention():
                return self._attended(node)
            case Mix():
                return self._mixed(node)
            case Held():
                assert isinstance(node.map, Contraction)
                return self._scored(node.map.equation, self._labels[node.operand], self._labels[node.held], shape)
            case Affine():
                return self._affine(node)
            case Diagonal() if len(below) > 1:  # a detached value stands beside the operand
                return self._stop(below, shape)
            case Select():
                return self._stop(below, shape)
            case Halves():
                return below[0] if len(below) == 1 else self.ledger.tie(*below).expand(shape)
            case Gate() | Diagonal():
                return self._elementwise(node, self._labels[node.operand].expand(shape))
            case Norm():
                return self._normalised(node)
            case Sum() | Product() | Max(winner=None):
                return self.ledger.tie(*below).expand(shape) if len(below) == 2 else self._stop(below, shape)
            case Max():
                return node.pick(below, self.values)
            case Oracle():
                return self._softmax(node, below)
            case _:
                return self._moved(node, below)

    def _none(self, shape: torch.Size) -> Tensor:
        return torch.zeros(1, dtype=torch.long, device=self.values[self.network.inputs[0]].device).expand(shape)

    def _stop(self, below: list[Tensor], shape: torch.Size) -> Tensor:
        for labels in below:
            self.ledger.hold(labels)
        return self._none(shape)

    # ---------------------------------------------------------------- affine nodes

    def _affine(self, node: Affine) -> Tensor:
        """New channels for the outputs; the rows and columns of its parameters are axes that move."""
        shape, labels, geometry = self.values[node].shape, self._labels[node.operand], node.map
        convolves = isinstance(geometry, Convolution)
        groups = geometry.groups if convolves else 1
        if not isinstance(geometry, (Convolution, Dense)) or (convolves and geometry.transposed and groups > 1):
            return self._stop([labels], shape)
        axis = 1 if convolves else labels.ndim - 1
        along = line(labels, axis)
        if along is None or along[0] != axis:
            return self._stop([labels], shape)
        columns = along[1]
        sources = [r for r in refs(node.args) if isinstance(self.values.get(r), Tensor) and self.values[r].ndim]
        transposed = {r: self._transposed(node, self.values[r]) for r in sources}
        size = columns.numel() // groups
        if not all(r in self._names and self._fits(r, shape[axis], size, transposed[r]) for r in sources):
            return self._stop([labels], shape)
        rows = self.ledger.new(shape[axis]).to(labels.device)
        if groups > 1:
            columns = self._grouped(rows, columns, groups)
        for ref in sources:
            flat = self.values[ref].ndim == 1
            self._add_axis(self._names[ref], 0 if flat else int(transposed[ref]), rows, node, makes=True)
            if not flat:
                self._add_axis(self._names[ref], 1 - int(transposed[ref]), columns, node, makes=False)
        return rows.view([-1 if d == axis % len(shape) else 1 for d in range(len(shape))]).expand(shape)

    def _transposed(self, node: Affine, tensor: Tensor) -> bool:
        """Whether a parameter holds its rows second: transposed convolutions, and products `x @ W`."""
        if isinstance(node.map, Convolution):
            return node.map.transposed
        if tensor.ndim != 2:
            return False
        weight = node.weight(self.values)
        if tensor.shape[0] != tensor.shape[1]:
            return weight.shape == tensor.T.shape
        same = weight.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        return same and weight.stride() == tensor.stride()[::-1]

    def _fits(self, ref: Ref, rows: int, columns: int, transposed: bool) -> bool:
        shape = self.values[ref].shape
        expected = (columns, rows) if transposed else (rows, columns)
        return tuple(shape) == (rows,) if len(shape) == 1 else tuple(shape[:2]) == expected

    def _grouped(self, rows: Tensor, columns: Tensor, groups: int) -> Tensor:
        """Inputs and outputs of a group keep together; a group that reads the input stays. The columns of each row."""
        parts = columns.view(groups, -1)
        keys = torch.arange(groups, device=rows.device)[:, None]
        fixed = (parts == 0).any(1).nonzero()[:, 0].tolist()
        self.ledger.keep_together(keys, torch.cat([parts, rows.view(groups, -1)], 1), fixed)
        return parts.repeat_interleave(len(rows) // groups, 0)

    def _add_axis(self, name: str, axis: int, labels: Tensor, node: Node, makes: bool) -> None:
        for known in self.axes:
            if (known.parameter, known.number) == (name, axis):  # a reused module: both uses read one parameter
                self.ledger.tie(known.labels, labels)
                return
        self.axes.append(Axis(name, axis, labels.cpu().clone(), makes, node))

    # ---------------------------------------------------------------- elementwise nodes and wires

    def _elementwise(self, node: Node, labels: Tensor) -> Tensor:
        """Parameters along the channels move with them; constants that are no parameters hold them in place."""
        for ref in refs(node.args):
            value = self.values.get(ref)
            if not isinstance(value, Tensor) or value.numel() == 1 or not value.is_floating_point():
                continue
            per_channel = value.ndim == 1 and node.facts.by_channel
            view = [-1] + [1] * (labels.ndim - 2) if per_channel else list(value.shape)
            origin = self._origins.of(ref)
            try:
                entries = (self._numbered(value) if origin is None else origin.entries).view(view).expand(labels.shape)
            except RuntimeError:
                self.ledger.hold(labels)
                continue
            self._follow(node, None if origin is None else origin.parameter, entries, labels)
        return labels

    def _numbered(self, value: Tensor) -> Tensor:
        """Entries that are equal count as one: a constant that is the same for all channels tells none apart."""
        return torch.unique(value, return_inverse=True)[1] + 1

    def _follow(self, node: Node, parameter: str | None, entries: Tensor, labels: Tensor) -> None:
        """A constant acts on labelled elements: an axis of its parameter moves with the channels, or they stay.

        `entries`, shaped like `labels`, says which entry of the constant acts on each element, by number from 1; 0 is
        none. `parameter` is where the constant comes from, None if it is computed.
        """
        met = (entries > 0) & (labels > 0)
        if not bool(met.any()):
            return
        entry, label = entries[met], labels[met]
        if parameter is None:  # harmless if it is the same for all channels
            axis = line(labels)
            if axis is None or not bool((entries == entries.narrow(axis[0], 0, 1)).all()):
                self.ledger.hold(label)
            return
        tensor = self.network.tensors()[parameter]
        table = torch.zeros(tensor.numel() + 1, dtype=torch.long, device=labels.device)
        table[entry] = label
        along = line(table[1:].view(tensor.shape)) if tensor.ndim else None
        if along is None or not torch.equal(table[entry], label):
            self.ledger.hold(label)
        else:
            self._add_axis(parameter, along[0], along[1], node, makes=False)

    def _moved(self, node: Any, below: list[Tensor]) -> Tensor:
        """Labels move with the elements; constants beside them take the label of their row."""
        blank = [torch.zeros(b.shape, dtype=torch.float64, device=b.device) for b in below]
        moved = node.move([b.double() for b in below], self.values).long()
        if not node.constants or not bool(moved.any()):
            return moved
        along = line(moved)
        floating = [r for r in refs(node.args) if self._is_floating(r)]
        if along is None:
            if floating:
                self.ledger.hold(moved)
            return moved
        labels = along[1].view([-1 if d == along[0] else 1 for d in range(moved.ndim)]).expand(moved.shape)
        silent = {r: torch.zeros_like(self.values[r], dtype=torch.float64) for r in floating}
        silent |= dict(zip(node.inputs, blank, strict=True))
        filled = node.run(Overlay(silent, self.values)) != 0  # numbers that the wire puts in by itself
        for ref in floating:
            origin = self._origins.of(ref)
            entries = self._numbered(self.values[ref]) if origin is None else origin.entries
            scope = Overlay(silent | {ref: entries.double()}, self.values)
            entries = torch.where(filled, 0, node.run(scope)).long()
            self._follow(node, None if origin is None else origin.parameter, entries, labels)
        return labels

    def _is_floating(self, ref: Ref) -> bool:
        value = self.values.get(ref)
        return isinstance(value, Tensor) and value.is_floating_point()

    # ---------------------------------------------------------------- sets of channels

    def _mixed(self, node: Mix) -> Tensor:
        """An average of equal labels is the label; a plain average of several is one of their set."""
        labels = self._labels[node.operand]
        weight = node.weight(self.values).double()
        size = node.map.apply(torch.ones(labels.shape, dtype=torch.float64, device=labels.device), weight)
        mean, square = (node.map.apply(labels.double() ** k, weight) / size for k in (1, 2))
        if bool(torch.isfinite(mean).all()) and bool(((square - mean**2).abs() <= 1e-6 * square.abs() + 1e-6).all()):
            return mean.round().long()
        if not isinstance(node.map, Averaging):
            return self._stop([labels], self.values[node].shape)
        keys = _distinct(node.map.apply(_noise(labels), weight) / size)
        if int(keys.amax()) >= _MANY:
            return self._stop([labels], self.values[node].shape)
        if int(keys.amax()) == 0:  # one set: nothing is told apart
            self.ledger.bind(labels)
            return self._none(keys.shape)
        marks = self.ledger.new(int(keys.amax()) + 1).to(labels.device)
        reads = [labels[node.map.adjoint((keys == k).double(), weight, labels.shape) > 0] for k in range(len(marks))]
        self._bundle(marks.repeat_interleave(torch.tensor([len(r) for r in reads])), torch.cat(reads))
        self.ledger.bind(labels)
        return marks[keys]

    def _bundle(self, marks: Tensor, labels: Tensor) -> None:
        """Channels keep together with the mark that stands for their set."""
        marks, labels = torch.broadcast_tensors(marks, labels)
        keys, labels = marks[marks > 0], labels[marks > 0]
        self.ledger.keep_together(keys, torch.stack([keys, labels]))

    def _normalised(self, node: Norm) -> Tensor:
        """Channels that are normalised together keep together."""
        labels = self._labels[node.operand].expand(self.values[node].shape)
        self.ledger.bind(labels)
        if node.average is not None:
            self.ledger.keep_together(_distinct(node.average(_noise(labels))), labels)
        for other in node.inputs:
            if other is not node.operand and other in self._labels:  # a statistic, spelled out
                self._bundle(self._labels[other], labels)
        return self._elementwise(node, labels)

    # ---------------------------------------------------------------- queries, keys, values

    def _softmax(self, node: Oracle, below: list[Tensor]) -> Tensor:
        """A softmax over tokens changes no label."""
        shape = self.values[node].shape
        if node.facts.softmax and len(below) == 1 and isinstance(node.args[1], int):
            along = below[0].movedim(node.args[1], 0)
            if bool((along == along[:1]).all()):
                return below[0]
        return self._stop(below, shape)

    def _scored(self, equation: Equation, left: Tensor, right: Tensor, shape: torch.Size) -> Tensor:
        """Scores stand for the set of features that they sum over: a head.

        A feature of queries and its twin of keys are tied; the features of a head keep together.
        """
        self.ledger.bind(left)
        self.ledger.bind(right)
        pair = equation.features(left, right)
        if pair is None:
            return self._stop([left, right], shape)
        tied = self.ledger.tie(*pair)
        features = self.ledger.canonical(tied)  # (shared axes, features)
        heads = torch.unique(features.flatten(0, -2).sort(-1)[0], dim=0)
        if not bool(heads.any()) or len(heads) == 1:
            return self._none(shape)
        marks = self.ledger.new(len(heads)).to(left.device)
        self._bundle(marks[:, None], heads)
        same = (features.sort(-1)[0].unsqueeze(-2) == heads).all(-1)  # (shared axes, heads)
        return equation.spread(marks[same.long().argmax(-1)], shape)

    def _attended(self, node: Attention) -> Tensor:
        """Values keep to their head."""
        labels = self._labels[node.operand]
        marks = self._labels[node.weights_node] if node.weights_node is not None else self._fused(node)
        if marks is not None:
            pair = node.equation.swapped.values(marks, labels)
            if pair is None:
                self._stop([marks, labels], self.values[node].shape)
            elif bool(pair[0].any()):
                self._bundle(*pair)
            else:  # nothing is known of the heads: they stay, each with its values
                head = pair[1].amin(1, keepdim=True)
                self.ledger.keep_together(head, pair[1], fixed=head.flatten().tolist())
        return self._mixed(node)

    def _fused(self, node: Attention) -> Tensor | None:
        """Labels of the weights that a fused operator hides, (…, queries, keys); a mask of its own holds a head."""
        query, key = (self._labels.get(n) if isinstance(n, Node) else None for n in node.args[:2])
        if query is None or key is None:
            self._stop([t for t in (query, key) if t is not None], self.values[node].shape)
            return None
        if key.shape[-3:-2] != query.shape[-3:-2]:  # grouped heads
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        shape = torch.Size((*query.shape[:-1], key.shape[-2]))
        marks = self._scored(Equation.scores(query.ndim, key.ndim), query, key, shape)
        for ref in refs(node.args):
            mask, origin = self.values.get(ref), self._origins.of(ref)
            if isinstance(mask, Tensor) and mask.ndim > 2:
                entries = self._numbered(mask.double()) if origin is None else origin.entries
                self._follow(node, None if origin is None else origin.parameter, entries.expand(shape), marks)
        if len({*node.inputs}) > len({node.args[0], node.args[1], node.args[2], node.operand}):
            self.ledger.hold(marks)  # a mask that depends on the input
        return marks


def _noise(labels: Tensor) -> Tensor:
    """A random number for each label: sums of them tell sets apart."""
    table = torch.rand(int(labels.amax()) + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return table.to(labels.device)[labels]


def _distinct(sums: Tensor) -> Tensor:
    """Numbers 0, 1, … for sums that differ by more than rounding."""
    return torch.unique((sums * 1e9).round(), return_inverse=True)[1]
