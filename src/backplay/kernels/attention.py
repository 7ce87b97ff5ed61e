"""Attention in the Routing Game: Value routing against a detached oracle (app:attention-subgame, S23)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backplay.kernels.kernel import Measure
from backplay.kernels.streams import Contributions, Stream, StreamKernel
from backplay.network.attention import Attention
from backplay.network.nodes import Scope


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
        streams: Sequence[Stream],
    ) -> None:
        super().__init__(*streams)
        assert node.projection is not None
        self.carriers = (node.projection.operand,)
        self.node, self.scope, self.weight, self.values = node, scope, weight, values
        self.projection, self.totals = projection, totals

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        sent: list[Tensor] = []
        for stream, value, total in zip((self.plus, self.minus), self.values, self.totals, strict=True):
            keys = self.node.map.adjoint(mass * stream.coefficient(measure), self.weight, value.shape) * value
            states = self.node.back(keys, self.scope, total.shape)
            sent.append(states / total.masked_fill(total == 0, 1.0))
        return (self.projection.pull(sent[0], sent[1]),)
