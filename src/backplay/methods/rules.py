"""Rules of relevance propagation: how an affine node hands relevance to its inputs.

A rule names contributions `c_ij = value_i · weight_ij` and the denominators that they share; one kernel runs them all.
Every rule here gives an input relevance in proportion to its own value, `R_i = a_i · (…)`. That is what keeps deep
networks in range: the next denominator meets a numerator that vanishes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backplay.kernels.kernel import Kernel, Measure
from backplay.network.nodes import Affine, Diagonal, Input, Node, Wire, rerun
from backplay.values.forward import Values

BIASES = ("share", "absorb")


@dataclass
class Group:
    """Contributions with one denominator: their sum and the bias."""

    parts: Sequence[tuple[Tensor, Tensor]]  # (weight, value): contributions value_i · weight_ij
    bias: Tensor | None = None
    total: Tensor | None = None  # the denominator, where the forward pass knows it
    where: Tensor | None = None  # the outputs that propagate by this group; None for all


class Rule(Protocol):
    """What a rule says of an affine node."""

    @property
    def epsilon(self) -> float:
        """Stabiliser `ε`: added to each denominator with its sign, so that a part of the relevance is lost."""
        ...

    @property
    def bias(self) -> str:
        """ "absorb": the bias keeps its part of the relevance; "share": the inputs share that part too."""
        ...

    def groups(self, node: Affine, values: Values) -> Iterator[Group]:
        """The contributions of a node."""
        ...


@dataclass(frozen=True)
class Epsilon:
    """`R_i = Σ_j a_i W_ij R_j / (z_j + ε sign z_j)`, the bias in `z` (Bach 2015, eq. 58)."""

    epsilon: float = 0.0
    bias: str = "absorb"

    def groups(self, node: Affine, values: Values) -> Iterator[Group]:
        yield Group([(node.weight(values), values[node.operand])], _bias(node, values), values[node])


@dataclass(frozen=True)
class Gamma:
    """Contributions of the output's own sign count `1 + γ` times (Montavon 2019; for any sign, Andéol 2021).

    Where `z > 0` these are the positive products `a_i W_ij`, where `z < 0` the negative ones; the bias likewise.
    """

    gamma: float
    epsilon: float = 0.0
    bias: str = "absorb"

    def groups(self, node: Affine, values: Values) -> Iterator[Group]:
        weight, value, z, bias = node.weight(values), values[node.operand], values[node], _bias(node, values)
        up, down = weight + self.gamma * weight.clamp(min=0), weight + self.gamma * weight.clamp(max=0)
        plus, minus = value.clamp(min=0), value.clamp(max=0)
        for sign, favoured, other in ((1, up, down), (-1, down, up)):
            parts = [(favoured, plus)] if node.operand.nonnegative else [(favoured, plus), (other, minus)]
            own = None if bias is None else bias + self.gamma * sign * (sign * bias).clamp(min=0)
            yield Group(parts, own, where=sign * z > 0)


@dataclass(frozen=True)
class Absolute:
    """`R_i = Σ_j |a_i W_ij| R_j / Σ_k |a_k W_kj|`: both signs share one denominator, the bias has no part."""

    epsilon: float = 0.0
    bias: str = "absorb"

    def groups(self, node: Affine, values: Values) -> Iterator[Group]:
        yield Group([(node.weight(values).abs(), values[node.operand].abs())])


@dataclass(frozen=True)
class Activating:
    """αβ with `α = 1, β = 0`: the positive products `a_i W_ij` alone, the bias has no part (Bach 2015, eq. 60)."""

    epsilon: float = 0.0
    bias: str = "absorb"

    def groups(self, node: Affine, values: Values) -> Iterator[Group]:
        weight, value = node.weight(values), values[node.operand]
        parts = [(weight.clamp(min=0), value.clamp(min=0))]
        if not node.operand.nonnegative:
            parts.append((weight.clamp(max=0), value.clamp(max=0)))
        yield Group(parts)


@dataclass(frozen=True)
class Box:
    """zᴮ (Montavon 2017): `c_ij = x_i W_ij − low_i W⁺_ij − high_i W⁻_ij ≥ 0` for pixels between `low` and `high`.

    A bound that is None is the smallest or largest entry of the sample's own input. The bias cancels.
    """

    low: float | None = None
    high: float | None = None
    epsilon: float = 0.0
    bias: str = "absorb"

    def groups(self, node: Affine, values: Values) -> Iterator[Group]:
        weight, source = node.weight(values), values.network.input
        x: Tensor = values[source]
        low = x.flatten(1).amin(1) if self.low is None else x.new_full((len(x),), self.low)
        high = x.flatten(1).amax(1) if self.high is None else x.new_full((len(x),), self.high)
        # wires and constant scales may stand before the layer: the bounds go through them, a negative scale swaps them
        ends = [rerun(node.operand, {source: source.layout.spread(b, x).expand(x.shape)}, values) for b in (low, high)]
        below, above = torch.minimum(*ends), torch.maximum(*ends)
        parts = [(weight, values[node.operand]), (weight.clamp(min=0), -below), (weight.clamp(max=0), -above)]
        yield Group(parts)


def sees_input(node: Node) -> bool:
    """Whether only wires and constant scales lie between the input and a node's output."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return isinstance(node, Input)


class Propagation(Kernel):
    """The kernel of an affine node under a rule."""

    def __init__(self, rule: Rule, node: Affine, values: Values) -> None:
        self.rule, self.node, self.values = rule, node, values

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        found = torch.zeros_like(self.values[self.node.operand])
        for group in self.rule.groups(self.node, self.values):
            arrived = mass if group.where is None else mass * group.where
            if group.where is None or bool(arrived.any()):
                found += self._carried(group, arrived)
        return (found,)

    def _carried(self, group: Group, arrived: Tensor) -> Tensor:
        total = group.total
        if total is None:
            total = self._sum(group.parts)
            total = total if group.bias is None else total + group.bias
        per_unit = over(arrived, stabilised(total, self.rule.epsilon))
        found = self._back(group.parts, per_unit)
        if group.bias is None or self.rule.bias == "absorb":
            return found
        # in proportion to |c_ij|, not evenly: an even share would reach inputs of value 0, and the next denominators
        # would blow it up
        sizes = [(weight.abs(), value.abs()) for weight, value in group.parts]
        return found + self._back(sizes, over(per_unit * group.bias, self._sum(sizes)))

    def _sum(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        first, *others = (self.node.map.apply(value, weight) for weight, value in parts)
        return sum(others, first)

    def _back(self, parts: Sequence[tuple[Tensor, Tensor]], per_unit: Tensor) -> Tensor:
        first, *others = (value * self.node.map.adjoint(per_unit, weight, value.shape) for weight, value in parts)
        return sum(others, first)


def stabilised(total: Tensor, epsilon: float) -> Tensor:
    """`z + ε sign z`, the sign of 0 being +."""
    return total if epsilon == 0 else torch.where(total < 0, total - epsilon, total + epsilon)


def over(relevance: Tensor, total: Tensor) -> Tensor:
    """Relevance for each unit of a denominator; an output that is 0 hands nothing on."""
    empty = total.abs() < torch.finfo(total.dtype).tiny
    return torch.where(empty, 0, relevance / total.masked_fill(empty, 1.0))


def _bias(node: Affine, values: Values) -> Tensor | None:
    return None if node.bias is None else node.bias(values)
