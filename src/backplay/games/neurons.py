"""Roots inside the network: a walk that starts at a hidden neuron (thm:deriv-occ, "fix a neuron state u"; S26b)."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from backplay.errors import NEVER_WALKED, InputError, InputTypeError
from backplay.inputs import Aim
from backplay.network import Network, Node
from backplay.network.nodes import Input


@dataclass(frozen=True, kw_only=True)
class Neuron(Aim):
    """One neuron a sample, all of one node, instead of a logit.

    `shape` is that of the node's value, `index` (B,) the place of each neuron in its sample's flattened part of it.
    """

    node: Node

    @staticmethod
    def at(node: Node, index: Tensor) -> Neuron:
        """The neurons (B,) of a node, by their places in their samples."""
        return Neuron(torch.Size(_shape(node, len(index))), index, node=node)

    @property
    def of_class(self) -> bool:
        return False

    @property
    def given(self) -> Any:
        """The same as a target: one (node, index) a sample."""
        return [(self.node, tuple(row)) for row in self.places().tolist()]

    def places(self) -> Tensor:
        """(B, n) the index of each neuron within its sample."""
        assert self.index is not None
        return torch.stack(torch.unravel_index(self.index, _own_shape(self.node)), 1)

    def part(self, samples: slice) -> Neuron:
        assert self.index is not None
        return Neuron.at(self.node, self.index[samples])

    def signed(self, like: Tensor) -> Tensor:
        assert self.index is not None
        root = torch.zeros(self.shape, dtype=like.dtype, device=like.device)
        entries = torch.arange(root.numel()).view(self.shape)
        chosen = self.node.layout.rows(entries).gather(1, self.index[:, None].cpu())
        root.view(-1)[chosen.flatten().to(like.device)] = 1.0
        return root

    def value(self, logits: Tensor) -> Tensor:
        """(B,) what the neurons are, given the value of their node."""
        assert self.index is not None
        return self.node.layout.rows(logits).gather(1, self.index[:, None].to(logits.device))[:, 0]


def is_neuron(target: Any) -> TypeGuard[tuple[Any, ...]]:
    """A tuple that begins with the name of a node or module."""
    return isinstance(target, tuple) and len(target) > 0 and isinstance(target[0], (str, Node))


def names_neurons(target: Any) -> bool:
    """One such tuple, or a list with one for each sample."""
    several = isinstance(target, (list, tuple)) and len(target) > 0 and all(is_neuron(t) for t in target)
    return several or is_neuron(target)


def one_a_sample(target: Any, batch: int) -> list[tuple[Any, ...]]:
    """The neuron of each sample."""
    if is_neuron(target):
        return [target] * batch
    if len(target) != batch:
        raise InputError(f"{len(target)} targets for {batch} samples: give one target, or one for each sample.")
    return list(target)


def read_neurons(target: Any, network: Network, batch: int) -> Neuron:
    """The neurons that a target names; wrong names and indices are refused before any work."""
    targets = one_a_sample(target, batch)
    nodes = [_node(t, network) for t in targets]
    other = next((n for n in nodes if n is not nodes[0]), None)
    if other is not None:
        raise InputError(
            f"targets at {nodes[0].name!r} and at {other.name!r}: one play starts at one node; play them apart."
        )
    shape = _own_shape(nodes[0])
    rows = torch.tensor([_index(t[1], shape, nodes[0].name) for t in targets]).view(batch, len(shape))
    strides = torch.tensor([torch.Size(shape[k + 1 :]).numel() for k in range(len(shape))])
    return Neuron.at(nodes[0], (rows * strides).sum(1).long())


def _node(target: tuple[Any, ...], network: Network) -> Node:
    if len(target) != 2:
        raise InputError(f"target {target!r} must be a pair: the name of a node or module, and an index without batch.")
    node = network.find(target[0])
    if isinstance(node, Input):
        raise InputError(f"target {target[0]!r} is an input, where walks end; name a node behind it.")
    if node not in network.reached:
        raise InputError(f"target {target[0]!r} is {NEVER_WALKED}.")
    return node


def _index(given: Any, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """One index into a sample's part of a node."""
    given = given.tolist() if hasattr(given, "tolist") else given
    index: tuple[Any, ...] = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not all(hasattr(i, "__index__") and not isinstance(i, bool) for i in index):
        raise InputTypeError(f"target index {given!r} in {name!r} must be {len(shape)} integers, without the batch.")
    index = tuple(operator.index(i) for i in index)
    if len(index) != len(shape) or any(not 0 <= i < size for i, size in zip(index, shape, strict=True)):
        raise InputError(
            f"target index {given!r} is out of range: {name!r} has neurons of shape {shape} a sample; "
            f"give {len(shape)} integers from 0 on."
        )
    return index


def _own_shape(node: Node) -> tuple[int, ...]:
    """Of one sample's part of a node; where samples share an axis with others (windows), that axis stays."""
    layout = node.layout
    here = layout.outer * layout.inner
    return (*node.shape[: layout.dim], *([here] if here > 1 else []), *node.shape[layout.dim + 1 :])


def _shape(node: Node, batch: int) -> tuple[int, ...]:
    """Of a node's value on a batch."""
    layout = node.layout
    return (*node.shape[: layout.dim], layout.outer * batch * layout.inner, *node.shape[layout.dim + 1 :])
