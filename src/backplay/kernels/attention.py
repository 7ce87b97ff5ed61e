"""Attention in the Routing Game: Value routing against a detached oracle (app:attention-subgame, S23)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.kernels.kernel import DIFFERENCE, WALK, Kernel, Measure
from backplay.kernels.streams import Contributions, StreamKernel, StreamState, is_empty
from backplay.network.attention import Attention
from backplay.network.nodes import Affine, Node, Scope, rerun


class ValueRouting(StreamKernel):
    """Composite of mixing and V projection (eq:attn-target-input): one sign split for each output entry.

    `weight` are the oracle's weights and `values` the two streams of the V projection in the values' layout, both to
    the power `1/τ`. `projection` holds the contributions of the V projection and `totals` the sums over its inputs,
    both to the power `1/τ` as well: from the key's stream state the walk goes on to an input of the projection.
    """

    def __init__(
        self,
        node: Attention,
        scope: Scope,
        weight: Tensor,
        values: tuple[Tensor, Tensor],
        projection: Contributions,
        totals: tuple[Tensor, Tensor],
        streams: Sequence[StreamState],
    ) -> None:
        super().__init__(*streams)
        assert node.projection is not None
        self.carriers = (node.projection.operand,)
        self.node, self.scope, self.weight, self.values = node, scope, weight, values
        self.projection, self.totals = projection, totals

    @property
    def chosen(self) -> Contributions:
        return self.projection

    def spread(self, on_plus: Tensor, on_minus: Tensor, contributions: Contributions | None = None) -> Tensor:
        sent: list[Tensor] = []
        for part, value, total in zip((on_plus, on_minus), self.values, self.totals, strict=True):
            keys = self.node.map.adjoint(part, self.weight, value.shape) * value
            states = self.node.back(keys, self.scope, total.shape)
            sent.append(states / total.masked_fill(is_empty(total), 1.0))
        return (contributions or self.projection).pull(sent[0], sent[1])

    def push(self, values: Sequence[Tensor]) -> Tensor:
        found: list[Tensor] = []
        ahead = self.projection.push(values[0])
        for stream, value, total, mean in zip((self.plus, self.minus), self.values, self.totals, ahead, strict=True):
            keys = self.node.through(mean / total.masked_fill(is_empty(total), 1.0), self.scope) * value
            found.append(self.node.map.apply(keys, self.weight) * stream.coefficient(WALK))
        return found[0] + found[1]


class GradientBlock(Kernel):
    """Gradient through the whole attention block instead of Value routing (S25, app:abl-gradient-fallback).

    Relevance over the output, sent through autograd of the block, times its input. It is no walk: only maps.
    """

    def __init__(self, node: Attention, scope: Scope) -> None:
        self.node, self.scope = node, scope
        self.source = _common_input(node)
        self.carriers = (self.source,)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        if measure is not DIFFERENCE:
            raise UnsupportedError(
                "attention='gradient' has no kernel, so there is no walk: only attribute() works with it; "
                "use attention='value' for occupation, marginals and distances."
            )
        source, out = self.source, self.scope[self.node]
        with torch.inference_mode(False), torch.enable_grad():
            x = self.scope[source].detach().clone().requires_grad_()
            (back,) = torch.autograd.grad(
                rerun(self.node, {source: x}, self.scope), x, mass / (out + torch.where(out < 0, -1e-6, 1e-6))
            )
        return (back * x.detach(),)


def _common_input(node: Attention) -> Node:
    """The tensor that queries, keys and values are all projected from, else the input of the V projection."""
    if node.projection is not None:
        return node.projection.operand
    value = node.operand
    while len(value.carriers) == 1 and not isinstance(value, Affine):
        value = value.carriers[0]
    return value.carriers[0] if isinstance(value, Affine) else value
