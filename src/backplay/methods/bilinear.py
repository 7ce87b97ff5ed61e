"""Relevance through attention, a product of two live tensors: into values, and through the softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.methods.relays import Relay, over, stabilised
from backplay.network.attention import Attention
from backplay.network.nodes import Halves, Held, Node, Overlay, rerun
from backplay.network.wires import Wire
from backplay.values.forward import Values

ATTENTION_STABILISER = 0.25  # ε of the two products of attention


@dataclass(frozen=True)
class Softmax:
    """How relevance passes a softmax, and the stabiliser of the products before and behind it.

    "taylor": `x_i (R_i − s_i Σ_j R_j)` (Achtibat 2024, prop. 3.1); "pass": unchanged (Chefer 2021).
    """

    rule: str
    epsilon: float = 0.0


class Bilinear(Relay):
    """One half to the values, one half to the weights; of that, one half each to queries and keys (prop. 3.3).

    Fused and spelled-out attention are treated alike: both know the weights, the values, and the scaled product of
    queries and keys.
    """

    def __init__(self, node: Attention, values: Values, softmax: Softmax) -> None:
        assert node.scores is not None
        self.node, self.values, self.softmax, self.scores = node, values, softmax, node.scores

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return self.scores.query, self.scores.key, self.node.operand

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        weight, value = self.node.weight(self.values), self.values[self.node.operand]
        slopes = halves(lambda a, v: self.node.map.apply(v, a), (weight, value), relevance, self.softmax.epsilon)
        on_scores = self._behind_softmax(weight, slopes[0])
        operands = self.values[self.scores.query], self.values[self.scores.key]
        queries, keys = halves(self._product, operands, on_scores, self.softmax.epsilon)
        return operands[0] * queries, operands[1] * keys, value * slopes[1]

    def _behind_softmax(self, weight: Tensor, slope: Tensor) -> Tensor:
        """Relevance of the scores, from relevance for each unit of weight."""
        if self.softmax.rule == "pass":
            return _through_wires(self.node, weight * slope, self.values)
        softmax, product = self.node.weights_node, self.scores.product
        if softmax is None or product is None:
            scores = self._product(self.values[self.scores.query], self.values[self.scores.key])
            return scores * weight * (slope - (weight * slope).sum(-1, keepdim=True))
        plain = self.values[product]
        (back,) = pulled_back(lambda z: rerun(softmax, {product: z}, self.values), (plain,), slope)
        return plain * back

    def _product(self, query: Tensor, key: Tensor) -> Tensor:
        """The scores before masks and biases: `scale · QKᵀ`."""
        factor = self.scores.factor(self.values).to(query)
        return factor * self.scores.raw(query, key)


def factors_of(node: Held | Halves) -> tuple[Node, Node]:
    """Both factors of a contraction of two live tensors, whichever of them a game holds as the weight of the other."""
    reading = node if isinstance(node, Held) else node.args[0]
    return reading.operand, reading.held


class Factors(Relay):
    """A contraction of two live tensors: one half to each, whatever games hold of them (prop. 3.3, as in S17)."""

    def __init__(self, node: Held | Halves, values: Values, epsilon: float) -> None:
        self.reading: Held = node if isinstance(node, Held) else node.args[0]
        self.values, self.epsilon = values, epsilon

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return factors_of(self.reading)

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        node = self.reading
        operands = self.values[node.operand], self.values[node.held]

        def product(operand: Tensor, held: Tensor) -> Tensor:
            return node.run(Overlay({node.operand: operand, node.held: held}, self.values))

        slopes = halves(product, operands, relevance, self.epsilon)
        return [value * slope for value, slope in zip(operands, slopes, strict=True)]


def halves(
    function: Callable[..., Tensor], operands: tuple[Tensor, Tensor], relevance: Tensor, epsilon: float
) -> tuple[Tensor, ...]:
    """Relevance for each unit of both factors of a bilinear function: `R / (2z + ε sign z)`, one half to each."""
    return pulled_back(function, operands, over(relevance, stabilised(2 * function(*operands), epsilon)))


def pulled_back(function: Callable[..., Tensor], operands: Sequence[Tensor], cotangent: Tensor) -> tuple[Tensor, ...]:
    """Vector-Jacobian products of a function in each of its operands."""
    with torch.enable_grad():
        leaves = [operand.detach().requires_grad_() for operand in operands]
        return torch.autograd.grad(function(*leaves), leaves, cotangent)


def _through_wires(node: Attention, relevance: Tensor, values: Values) -> Tensor:
    """Relevance at the weights, carried unchanged to the product of queries and keys: only wires move it."""
    assert node.scores is not None
    at, product = node.weights_node, node.scores.product
    while at is not None and at is not product:
        below = at.carriers[0] if at.carriers else at.inputs[0]
        if isinstance(at, Wire):
            (relevance,) = at.transpose(relevance, values, [values[below].shape])
        at = below
    return relevance
