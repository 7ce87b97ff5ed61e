"""Relays: how one node hands relevance on to its inputs.

An affine node under a rule gives an input `R_i = Σ_j w_j(c_ij) R_j / (Σ_k w_j(c_kj) + ε)`: the Routing Game's
contributions `c_ij = a_i W_ij` under other weights. Most rules give in proportion to the input's own value. That is
what keeps deep networks in range: the next denominator meets a numerator that vanishes with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backplay.games.tempered import contribute
from backplay.network.nodes import Affine, Node
from backplay.values.forward import Values

Weight = float | Tensor


class Relay(ABC):
    """How one node hands relevance on to its inputs. It is no kernel of a game: there are no players and no walk."""

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        """Which nodes get relevance; None for the node's own carriers."""
        return None

    @abstractmethod
    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        """Relevance of the node's output, as relevance of each of these nodes."""


class Weighing(Protocol):
    """A rule that weighs positive and negative contributions against one denominator."""

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
class PlainRelay(Relay):
    """`R_i = a_i Σ_j W_ij R_j / (z_j + ε sign z_j)`, the bias in `z`: no need to tell signs apart."""

    epsilon: float
    node: Affine
    values: Values

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        node, a = self.node, self.values[self.node.operand]
        per_unit = over(relevance, stabilised(self.values[node], self.epsilon))
        return (a * node.map.adjoint(per_unit, node.weight(self.values), a.shape),)


@dataclass(frozen=True)
class WeighingRelay(Relay):
    """Contributions that count by their sign, over one denominator."""

    rule: Weighing
    node: Affine
    values: Values

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        node, values, rule = self.node, self.values, self.rule
        z, a = values[node], values[node.operand]
        bias = None if node.bias is None or rule.bias is None else node.bias(values)
        plus, minus = rule.weights(z)
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
class StreamsRelay(Relay):
    """`α` times the positive and `−β` times the negative contributions, each over their own sum and bias."""

    alpha: float
    beta: float
    epsilon: float
    bias: str | None
    node: Affine
    values: Values

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        node, values = self.node, self.values
        contributions, (up, down), _ = contribute(node, values, values[node.operand], 1.0, real=True)
        if node.bias is not None and self.bias is not None:
            bias = node.bias(values)
            up, down = up + bias.clamp(min=0), down + (-bias).clamp(min=0)
        plus, minus = (over(relevance, total + self.epsilon) for total in (up, down))
        return (contributions.pull(self.alpha * plus, -self.beta * minus),)


@dataclass(frozen=True)
class BlindRelay(Relay):
    """`R_i = Σ_j w_ij R_j / (Σ_k w_kj + b_j + ε)` whatever the input is; zero padding has no part."""

    weight: Tensor
    bias: Tensor | None
    epsilon: float
    node: Affine
    like: Tensor  # the input

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        linear = self.node.map
        total = linear.apply(torch.ones_like(self.like), self.weight) + self.epsilon
        total = total if self.bias is None else total + self.bias
        return (linear.adjoint(over(relevance, total), self.weight, self.like.shape),)


@dataclass(frozen=True)
class BoxRelay(Relay):
    """`c_ij = x_i W_ij − low_i W⁺_ij − high_i W⁻_ij ≥ 0`, the zᴮ rule of a layer that sees the input."""

    low: Tensor
    high: Tensor
    epsilon: float
    node: Affine
    values: Values

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        linear, weight = self.node.map, self.node.weight(self.values)
        x = self.values[self.node.operand]
        parts = (x, weight), (-self.low, weight.clamp(min=0)), (-self.high, weight.clamp(max=0))
        total = torch.stack([linear.apply(value, some) for value, some in parts]).sum(0)
        per_unit = over(relevance, stabilised(total, self.epsilon))
        shares = [value * linear.adjoint(per_unit, some, value.shape) for value, some in parts]
        return (torch.stack(shares).sum(0),)


def stabilised(total: Tensor, epsilon: float) -> Tensor:
    """`z + ε sign z`, the sign of 0 being +."""
    return total if epsilon == 0 else torch.where(total < 0, total - epsilon, total + epsilon)


def over(relevance: Tensor, total: Tensor) -> Tensor:
    """Relevance for each unit of a denominator; an output that is 0 hands nothing on."""
    empty = total.abs() < torch.finfo(total.dtype).tiny
    return torch.where(empty, 0, relevance / total.masked_fill(empty, 1.0))
