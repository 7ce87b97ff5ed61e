"""Attention in the Routing Game: Value routing against a detached oracle (app:attention-subgame, S23)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backplay.kernels.kernel import WALK
from backplay.kernels.streams import Contributions, StreamKernel, StreamState
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
            sent.append(states / total.masked_fill(total == 0, 1.0))
        return (contributions or self.projection).pull(sent[0], sent[1])

    def push(self, values: Sequence[Tensor]) -> Tensor:
        found: list[Tensor] = []
        ahead = self.projection.push(values[0])
        for stream, value, total, mean in zip((self.plus, self.minus), self.values, self.totals, ahead, strict=True):
            keys = self.node.through(mean / total.masked_fill(total == 0, 1.0), self.scope) * value
            found.append(self.node.map.apply(keys, self.weight) * stream.coefficient(WALK))
        return found[0] + found[1]
