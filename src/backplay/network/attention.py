"""Attention in the graph (S23): softmax weights that mix values, fused or spelled out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from backplay.network.contraction import Contraction, Equation
from backplay.network.nodes import Affine, Mix, Node, Scope
from backplay.network.wires import Wire


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
        """The product itself, of these queries and keys or of what stands in their places.

        Times `factor` it is eq:attn-qk-bilinear.
        """
        if self.repeats > 1:
            key = key.repeat_interleave(self.repeats, -3)
        return torch.einsum(self.equation.text, query, key)

    def factor(self, scope: Scope) -> Tensor:
        """What the product is multiplied by before the softmax."""
        factor = torch.ones((), dtype=torch.float64)
        for scale in self.scales:
            factor = factor * scale(scope)
        return factor


@dataclass(eq=False, repr=False, kw_only=True)
class Attention(Mix):
    """Attention times Value (eq:attn-AV-forward): `operand` are the values, `weight` the oracle's reference policy.

    The values come from a projection, if there is one (eq:attn-V-forward).
    """

    projection: Affine | None = None  # the affine node that feeds the values through `wires`
    wires: tuple[Wire, ...] = ()  # from the projection to the values
    scores: Scores | None = None  # the queries and keys that the weights come from
    weights_node: Node | None = None  # the node that holds the weights, where they are spelled out
    logits: Callable[[Scope], Tensor] | None = None  # the oracle's scores, where they are fused

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """Operands of the operator, and the values where they are not one of them (grouped heads)."""
        operands = super().inputs
        return operands if self.operand in operands else (*operands, self.operand)

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

    def through(self, x: Tensor, scope: Scope, to: Node | None = None) -> Tensor:
        """Carry a tensor in the projection's layout to the values' layout, or only to that of the wire `to`."""
        for wire in self.wires:
            x = wire.move([x], scope)
            if wire is to:
                break
        return x

    def traced(self, places: Tensor, scope: Scope) -> Iterator[tuple[Node, Tensor]]:
        """Flat places in the values, followed back: each wire with the places in its output, then the projection."""
        assert self.projection is not None
        for wire in reversed(self.wires):
            yield wire, places
            sources = wire.sources([scope[n].shape for n in wire.inputs], scope, places.device)
            places = sources.flatten()[places]
        yield self.projection, places

    def back(self, mass: Tensor, scope: Scope, shape: torch.Size, to: Node | None = None) -> Tensor:
        """Carry mass from the values' layout to the projection's, of this shape; or only to that of the wire `to`."""
        if not self.wires:
            return mass
        shapes = [shape]
        for wire in self.wires[:-1]:
            shapes.append(wire.move([torch.empty(1, device=mass.device).expand(shapes[-1])], scope).shape)
        for wire, below in zip(reversed(self.wires), reversed(shapes), strict=True):
            if wire is to:
                break
            (mass,) = wire.transpose(mass, scope, [below])
        return mass
