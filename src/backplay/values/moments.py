"""Assumed-density filtering (S22): independent Gaussian moments of every node under input noise."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from backplay.entry import at, entry
from backplay.errors import UnsupportedError, tensor_words
from backplay.keywords import Choice, Number
from backplay.network import Model, Node, read_model
from backplay.network.arguments import Inputs
from backplay.network.captures import Captures
from backplay.network.choices import Max, Select
from backplay.network.nodes import Affine, Diagonal, Gate, Halves, Input, Norm, Overlay, Product, Sum
from backplay.network.wires import Wire
from backplay.pictured import Pictured
from backplay.values.forward import Forward, Values
from backplay.values.gates import bend_width
from backplay.values.gaussian import moments_of, relu_moments
from backplay.values.powers import in_blocks


@dataclass(frozen=True, repr=False)
class Moment:
    """Mean and variance at a node, each in the shape of its output."""

    mean: Tensor
    variance: Tensor

    def __repr__(self) -> str:
        return f"Moment(mean, variance {tensor_words(self.mean)})"


class Moments(Pictured, Mapping[Any, Moment]):
    """Variances filtered through the whole graph.

    `mean="real"`: gates see a Gaussian around the real pre-activation, as the games do. `mean="filtered"`: the textbook
    filter, whose means are expectations too.
    """

    def __init__(self, values: Values, input_variance: float, mean: Literal["real", "filtered"] = "real") -> None:
        self.network, self.real = values.network, values.plain()
        self._filtered, self.input_variance = mean == "filtered", input_variance
        self._means: dict[Node, Tensor] = {}
        self._variances: dict[Node, Tensor] = {}
        self._steps = 0  # nodes that have been filtered

    def on(self, values: Values) -> Moments:
        """The same moments beside a twin of the values that they were filtered on."""
        other = copy.copy(self)
        other.real = values.plain()
        return other

    def advance(self, through: Gate | None = None) -> Moments:
        """Filter on through a gate, or through the whole graph; values before it must be there."""
        for node in self.network.nodes[self._steps :]:
            self._steps += 1
            if isinstance(node, Input):
                self._variances[node] = torch.full_like(self.real[node], self.input_variance)
            else:
                with at(node):
                    self._step(node)
            if node is through:
                break
        return self

    def __repr__(self) -> str:
        name, kind = type(self.network.model).__name__, "filtered" if self._filtered else "real"
        return f"Moments({name}: {len(self)} nodes, input variance {self.input_variance:g}, {kind} means)"

    def __getitem__(self, key: str | Node) -> Moment:
        node = self.network.find(key)
        return Moment(self._mean(node), self.variance(node))

    def __iter__(self) -> Iterator[str]:
        return (n.name for n in self._variances)

    def __len__(self) -> int:
        return len(self._variances)

    def reaches(self, node: Node) -> bool:
        """Whether variances are known at a node."""
        return node in self._variances

    def variance(self, node: Node) -> Tensor:
        """Filtered variance at a node."""
        if node not in self._variances:
            raise UnsupportedError(f"{node.name!r} ({node.operator}) lies inside an oracle: no moments reach it.")
        return self._variances[node]

    def of_gate(self, gate: Gate, z: Tensor) -> Moment:
        """Moments of a gate on another pre-activation; around the real one they are known."""
        if z is self.real[gate.operand]:
            return self[gate]
        return Moment(*gate_moments(gate, z, self.variance(gate.operand), self.real))

    def _mean(self, node: Node) -> Tensor:
        return self._means[node] if node in self._means else self.real[node]

    def _step(self, node: Node) -> None:
        if any(n not in self._variances for n in node.carriers) or not node.carriers:
            return  # inside an oracle: its value is known, and not filtered
        if isinstance(node, Gate):
            centre = self._mean(node.operand) if self._filtered else self.real[node.operand]
            mean, variance = gate_moments(node, centre, self._variances[node.operand], self.real)
            self._means[node] = mean
        else:
            variance = self._linear(node)
            if self._filtered:
                self._means[node] = node.run(Overlay(self._means, self.real))
        self._variances[node] = variance

    def _linear(self, node: Node) -> Tensor:
        values, variances = self.real, self._variances
        match node:
            case Affine():
                return _through_squares(node, variances[node.operand], values)
            case Halves():
                return sum((variances[n] for n in node.inputs[1:]), variances[node.inputs[0]])
            case Sum():
                left, right = (variances[n] for n in node.inputs)
                return left + right
            case Diagonal(scale=None):
                return variances[node.operand].expand(values[node].shape)
            case Diagonal():
                assert node.scale is not None
                return variances[node.operand] * node.scale(values).to(values[node].dtype).square()
            case Norm():
                return _matched(node, variances[node.operand], values)
            case Product():
                return _product(node, variances, values)
            case Max():
                return node.pick([variances[n] for n in node.inputs], values)
            case Select():
                return torch.where(node.first(values), *(_side(side, variances, values[node]) for side in node.sides))
            case Wire():
                return node.move([variances[n] for n in node.inputs], values)  # fills have no variance
            case _:
                raise AssertionError(f"no moments for {node!r}")


def _through_squares(node: Affine, variance: Tensor, values: Forward) -> Tensor:
    """`W²` on variances."""
    squares = values.weights.prepared(node, "squares", lambda: node.weight(values).square())
    return node.map.apply_squares(variance, squares)


def _matched(node: Norm, variance: Tensor, values: Forward) -> Tensor:
    """`v γ² / (s² + mean v)`: matched moments keep deep transformers bounded; other statistics scale."""
    scale = node.scale(values).to(variance.dtype).square()
    if node.spread is None or node.average is None:
        return variance * scale
    spread = node.spread(values)
    return variance * scale * spread / (spread + node.average(variance))


def _product(node: Product, variances: dict[Node, Tensor], values: Forward) -> Tensor:
    first, *other = (variances[f] * node.scale_of(f, values).square() for f in node.carrying)
    return first + other[0] if other else first


def _side(side: Any, variances: dict[Node, Tensor], like: Tensor) -> Tensor:
    """The variance of one side of a choice; a constant has none."""
    return variances[side] if isinstance(side, Node) and side in variances else torch.zeros_like(like)


def gate_moments(node: Gate, mean: Tensor, variance: Tensor, values: Forward) -> tuple[Tensor, Tensor]:
    """Moments of the gate applied to a Gaussian: closed form for ReLU, quadrature for any other gate."""
    form = values.form(node)
    if form.name == "relu":
        expected, spread = in_blocks(relu_moments, mean, variance)
        return (expected, spread) if form.scale == 1 else (expected * form.scale, spread * form.scale**2)
    return moments_of(lambda z: node.on(z, values), bend_width(form), mean, variance)


@entry
def moments(
    model: Model,
    x: Inputs,
    input_variance: float,
    mean: Literal["real", "filtered"] = "real",
    additional_forward_args: Any = None,
) -> Moments:
    """Mean and variance at every node under independent Gaussian noise of `input_variance` on every input element.

    `mean="real"` is what the games use; `mean="filtered"` is the textbook filter, which Monte-Carlo can check.

    >>> bp.moments(model, x, 0.1)["fc"].variance
    """
    input_variance = Number(0.0, 0).check("input_variance", input_variance)
    Choice("real", ("real", "filtered")).check("mean", mean)
    network, inputs = Captures(read_model(model, "moments")).prepare(x, additional_forward_args)
    return Moments(Values(network, inputs, network.weights()), input_variance, mean).advance()
