"""Attention in the graph (S23): softmax weights that mix values, fused or spelled out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.network.builder import Builder, Call, constant, lowers
from backplay.network.contraction import Contraction, Equation
from backplay.network.nodes import (
    Affine,
    Diagonal,
    Halves,
    Held,
    Mix,
    Node,
    Norm,
    Oracle,
    Product,
    Scope,
    Sum,
    Wire,
    resolve,
)


@dataclass(frozen=True)
class Scores:
    """The product of queries and keys that an oracle's softmax reads, times all `scales`."""

    query: Node
    key: Node
    equation: Equation  # queries, keys -> scores
    scales: tuple[Callable[[Scope], Tensor], ...]
    product: Node | None  # the node of the product, where it is spelled out
    repeats: int = 1  # query heads that share a head of keys, where the operator itself repeats them

    def raw(self, query: Tensor, key: Tensor) -> Tensor:
        """The product itself, of these queries and keys or of what stands in their places."""
        if self.repeats > 1:
            key = key.repeat_interleave(self.repeats, -3)
        return torch.einsum(self.equation.text, query, key)

    def factor(self, scope: Scope) -> Tensor:
        """What the product is multiplied by before the softmax."""
        factor = torch.ones((), dtype=torch.float64)
        for scale in self.scales:
            factor = factor * scale(scope)
        return factor


@dataclass(eq=False, repr=False)
class Attention(Mix):
    """Attention times Value: `operand` are the values, `weight` the oracle's reference policy."""

    projection: Affine | None = None  # the affine node that feeds the values through `wires`
    wires: tuple[Wire, ...] = ()  # from the projection to the values
    scores: Scores | None = None  # queries and keys behind the weights
    told: Node | None = None  # the node that holds the weights, where they are spelled out
    logits: Callable[[Scope], Tensor] | None = None  # the oracle's scores, where they are fused

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Operands of the operator, and the values where they are not one of them (grouped heads)."""
        found = super().inputs
        return found if self.operand in found else (*found, self.operand)

    @property
    def equation(self) -> Equation:
        """Values, weights -> output."""
        assert isinstance(self.map, Contraction)
        return self.map.equation

    @property
    def axes(self) -> tuple[str, str] | None:
        """The letters of queries and keys; None where either stands for several axes or none."""
        values, weights, out = self.equation.left, self.equation.right, self.equation.out
        queries = [c for c in weights if c in out and c not in values]
        keys = [c for c in weights if c in values and c not in out]
        return (queries[0], keys[0]) if len(queries) == len(keys) == 1 else None

    def queries_first(self, weight: Tensor) -> Tensor:
        """Weights as (…, queries, keys)."""
        if self.axes is None:
            return weight
        letters = self.equation.right
        order = [c for c in letters if c not in self.axes] + list(self.axes)
        return weight.permute([letters.index(c) for c in order])

    def through(self, x: Tensor, scope: Scope) -> Tensor:
        """Carry a tensor in the projection's layout to the values' layout."""
        for wire in self.wires:
            x = wire.move([x], scope)
        return x

    def back(self, mass: Tensor, scope: Scope, shape: torch.Size) -> Tensor:
        """Carry mass from the values' layout to the projection's."""
        if not self.wires:
            return mass
        shapes = [shape]
        for wire in self.wires[:-1]:
            shapes.append(wire.move([torch.empty(1, device=mass.device).expand(shapes[-1])], scope).shape)
        for wire, below in zip(reversed(self.wires), reversed(shapes), strict=True):
            (mass,) = wire.transpose(mass, scope, [below])
        return mass


def find_projection(value: Node) -> tuple[Affine | None, tuple[Wire, ...]]:
    """The affine node behind the values, if only wires lie between."""
    path: list[Wire] = []
    while isinstance(value, Wire) and len(value.inputs) == 1 and not value.constants:
        path.append(value)
        value = value.inputs[0]
    found = isinstance(value, Affine) and not isinstance(value, Mix)
    return (value, tuple(reversed(path))) if found else (None, ())  # type: ignore[return-value]


def find_scores(told: Node) -> Scores | None:
    """The product of two live operands behind a softmax, through masks, biases, scales and wires."""
    softmax = told
    while not (isinstance(softmax, Oracle) and softmax.operator == "softmax"):
        softmax = softmax.carriers[0]
    node = softmax.inputs[0]
    scales: list[Callable[[Scope], Tensor]] = []
    while True:
        if isinstance(node, (Halves, Held)):
            held = node.args[0] if isinstance(node, Halves) else node
            query, key = held.inputs
            assert isinstance(held.map, Contraction)
            equation = held.map.equation
            return Scores(query, key, equation if held.operand is query else equation.swapped, tuple(scales), node)
        if isinstance(node, Diagonal) and node.scale is not None:
            scales.append(node.scale)
        live = node.carriers if node.carriers else node.inputs
        if len(live) != 1:
            return None
        node = live[0]


def comes_from_softmax(node: Node) -> bool:
    """Whether a node is a softmax, or linear in softmaxes (talking heads) but for a detached sum or statistic."""
    if isinstance(node, Oracle):
        return node.operator == "softmax"
    if isinstance(node, Sum):
        return all(comes_from_softmax(n) for n in node.inputs)
    linear = isinstance(node, (Wire, Diagonal, Affine, Norm, Product))
    return linear and len(node.carriers) == 1 and comes_from_softmax(node.carriers[0])


def mixing(
    builder: Builder,
    call: Call,
    pair: tuple[Node, Node],
    linear: Contraction,
    weight: Callable[[Scope], Tensor],
    run: Callable[..., Tensor],
    operands: tuple[Node, Node],
    shape: torch.Size,
) -> Node:
    """A pair of softmax weights and values, multiplied in any spelling."""
    told, value = pair
    node = Attention(run, operands, operator=call.operator, fleeting=True)
    node.operand, node.map, node.weight, node.told = value, linear, weight, told
    node.scores = find_scores(told)
    node.signed_weights = not told.nonnegative
    node.nonnegative = told.nonnegative and value.nonnegative
    if told.nonnegative:
        node.projection, node.wires = find_projection(value)
    return builder.add(node, shape)


@lowers("scaled_dot_product_attention")
def fused_attention(builder: Builder, call: Call) -> Node | None:
    """The fused operator hides its weights; they are recomputed from queries and keys when they are needed."""
    query, key, value = call["query"], call["key"], call["value"]
    if not isinstance(value, Node):
        return None
    grouped = bool(call.get("enable_gqa", False))
    node = Attention(call.function, call.args, operator=call.operator, fleeting=True)
    node.operand = _repeated(builder, value, query) if grouped else value
    ranks = [len(builder.traced[node.operand]), len(call.node.meta["val"].shape)]
    node.map, node.nonnegative = Contraction(Equation.matmul(ranks[1], ranks[0]).swapped), value.nonnegative
    mask, causal, scale = call.get("attn_mask"), bool(call.get("is_causal", False)), call.get("scale")

    def logits(scope: Scope) -> Tensor:
        q, k = (resolve(t, scope) for t in (query, key))
        if grouped:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        scores = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        if causal:
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~keep, -math.inf)
        if mask is None:
            return scores
        bias = resolve(mask, scope)
        return scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias

    node.logits = logits
    if isinstance(query, Node) and isinstance(key, Node):
        size = int(builder.traced[query][-1])
        repeats = int(builder.traced[query][-3]) // int(builder.traced[key][-3]) if grouped else 1
        factor = constant(1 / math.sqrt(size) if scale is None else scale)
        equation = Equation.scores(len(builder.traced[query]), len(builder.traced[key]))
        node.scores = Scores(query, key, equation, (factor,), None, repeats)
    node.weight = lambda scope: torch.softmax(logits(scope), -1).nan_to_num(0.0)
    node.projection, node.wires = find_projection(node.operand)
    return builder.add(node)


def _repeated(builder: Builder, value: Node, query: Any) -> Node:
    """Grouped heads: each value head serves several query heads, which is a wire."""
    heads, groups = builder.traced[query][-3], builder.traced[value][-3]
    wire = Wire(lambda v: v.repeat_interleave(heads // groups, -3), (value,), operator="repeat_interleave")
    wire.nonnegative, wire.helper = value.nonnegative, True
    shape = list(builder.traced[value])
    shape[-3] = heads
    return builder.add(wire, torch.Size(shape))
