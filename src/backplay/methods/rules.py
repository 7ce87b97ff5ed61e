"""Rules of relevance propagation: how an affine node hands relevance to its inputs.

A rule weighs the positive and the negative contributions `c_ij = a_i W_ij` of an output; an input gets
`R_i = Σ_j w_j(c_ij) R_j / (Σ_k w_j(c_kj) + ε)`, the Routing Game's contributions under other weights. Every rule here
gives in proportion to the input's own value. That is what keeps deep networks in range: the next denominator meets a
numerator that vanishes with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backplay.games.routing import contribute
from backplay.network import Network
from backplay.network.nodes import Affine, Diagonal, Input, Mix, Node, Wire, rerun
from backplay.values.forward import Values

BIASES = ("share", "absorb")
Weight = float | Tensor


class Rule(Protocol):
    """What a rule says of an affine node."""

    @property
    def epsilon(self) -> float:
        """Stabiliser `ε`: added to each denominator with its sign, so that a part of the relevance is lost."""
        ...

    @property
    def bias(self) -> str | None:
        """ "absorb": the bias keeps its part; "share": the inputs get that part too; None: the bias has no part."""
        ...

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        """What positive contributions count, and what negative ones, given an output `z`."""
        ...


@dataclass(frozen=True)
class Epsilon:
    """`R_i = Σ_j a_i W_ij R_j / (z_j + ε sign z_j)`, the bias in `z` (Bach 2015, eq. 58)."""

    epsilon: float = 0.0
    bias: str | None = "absorb"

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        return 1.0, 1.0


@dataclass(frozen=True)
class Gamma:
    """Contributions of the output's own sign count `1 + γ` (Montavon 2019; for values of any sign, Andéol 2021)."""

    gamma: float
    epsilon: float = 0.0
    bias: str | None = "absorb"

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        return 1 + self.gamma * (z > 0).to(z.dtype), 1 + self.gamma * (z < 0).to(z.dtype)


@dataclass(frozen=True)
class Absolute:
    """`R_i = Σ_j |a_i W_ij| R_j / Σ_k |a_k W_kj|`: both signs share one denominator."""

    epsilon: float = 0.0
    bias: str | None = None

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        return 1.0, -1.0


@dataclass(frozen=True)
class Activating:
    """αβ with `α = 1, β = 0`: the positive contributions alone (Bach 2015, eq. 60)."""

    epsilon: float = 0.0
    bias: str | None = None

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        return 1.0, 0.0


class Relay(ABC):
    """How one node hands relevance on to its inputs. It is no kernel of a game: there are no players and no walk."""

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        """Which nodes get relevance; None for the node's own carriers."""
        return None

    @abstractmethod
    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        """Relevance of the node's output, as relevance of each of these nodes."""


@dataclass(frozen=True)
class AffineRelay(Relay):
    """An affine node under a rule."""

    rule: Rule
    node: Affine
    values: Values

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        node, values, rule = self.node, self.values, self.rule
        z, a = values[node], values[node.operand]
        bias = None if node.bias is None or rule.bias is None else node.bias(values)
        plus, minus = rule.weights(z)
        if isinstance(rule, Epsilon) and (bias is None or rule.bias == "absorb"):  # no need to tell signs apart
            per_unit = over(relevance, stabilised(z, rule.epsilon))
            return (a * node.map.adjoint(per_unit, node.weight(values), a.shape),)
        contributions, (up, down), _ = contribute(node, values, a, 1.0, real=True)
        if rule.bias is None:
            total = plus * up - minus * down
        else:  # as a change of z, which the forward pass knows to the last digit
            total = z + (plus - 1) * up - (minus - 1) * down
        if bias is not None:
            weighed = plus * bias.clamp(min=0) + minus * bias.clamp(max=0)
            total, bias = total + (weighed - bias), weighed
        per_unit = over(relevance, stabilised(total, rule.epsilon))
        share = torch.zeros_like(per_unit)
        if bias is not None and rule.bias == "share":
            # in proportion to |c_ij|, not evenly: an even share would reach inputs of value 0, and the next
            # denominators would blow it up
            share = over(per_unit * bias, plus * up + minus * down)
        return (contributions.pull(plus * (per_unit + share), minus * (share - per_unit)),)


@dataclass(frozen=True)
class Box:
    """zᴮ (Montavon 2017): `c_ij = x_i W_ij − low_i W⁺_ij − high_i W⁻_ij ≥ 0` for pixels between `low` and `high`.

    A bound that is None is the smallest or largest entry of the sample's own input. The bias cancels.
    """

    low: float | None = None
    high: float | None = None

    def bounds(self, node: Affine, values: Values) -> tuple[Tensor, Tensor]:
        """The bounds as the layer sees them: wires and constant scales may lie before it, a negative one swaps them."""
        source = _source(node.operand)
        x: Tensor = values[source]
        low = x.flatten(1).amin(1) if self.low is None else x.new_full((len(x),), self.low)
        high = x.flatten(1).amax(1) if self.high is None else x.new_full((len(x),), self.high)
        ends = [rerun(node.operand, {source: source.layout.spread(b, x).expand(x.shape)}, values) for b in (low, high)]
        return torch.minimum(*ends), torch.maximum(*ends)


class BoxRelay(Relay):
    """A layer that sees the input, under the zᴮ rule."""

    def __init__(self, rule: Box, node: Affine, values: Values) -> None:
        self.node, weight = node, node.weight(values)
        low, high = rule.bounds(node, values)
        self.parts = (values[node.operand], weight), (-low, weight.clamp(min=0)), (-high, weight.clamp(max=0))

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        linear = self.node.map
        total = torch.stack([linear.apply(value, weight) for value, weight in self.parts]).sum(0)
        per_unit = over(relevance, total)
        shares = [value * linear.adjoint(per_unit, weight, value.shape) for value, weight in self.parts]
        return (torch.stack(shares).sum(0),)


def sees_input(node: Node) -> bool:
    """Whether only wires and constant scales lie between the input and a node's output."""
    return isinstance(_source(node), Input)


def _source(node: Node) -> Node:
    """What lies behind wires and constant scales."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def has_first_layer(network: Network) -> bool:
    """Whether a convolution or linear layer sees the input itself."""
    layers = [n for n in network.nodes if isinstance(n, Affine) and not isinstance(n, Mix) and n in network.carrying]
    return any(sees_input(layer.operand) for layer in layers)


def stabilised(total: Tensor, epsilon: float) -> Tensor:
    """`z + ε sign z`, the sign of 0 being +."""
    return total if epsilon == 0 else torch.where(total < 0, total - epsilon, total + epsilon)


def over(relevance: Tensor, total: Tensor) -> Tensor:
    """Relevance for each unit of a denominator; an output that is 0 hands nothing on."""
    empty = total.abs() < torch.finfo(total.dtype).tiny
    return torch.where(empty, 0, relevance / total.masked_fill(empty, 1.0))
