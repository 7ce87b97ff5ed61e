"""Contributions to the power `1/τ` (app:routing-temp): of an affine node, and of the keys of an attention composite.

Powers leave the range of a float soon, so what is raised is counted in a unit, the largest value of each sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.kernels.contributions import Contributions, Streams, split_contributions
from backplay.kernels.prepared import split_weight
from backplay.network.attention import Attention
from backplay.network.layout import Layout
from backplay.network.memory import in_line
from backplay.network.nodes import Affine
from backplay.values.forward import Values
from backplay.values.powers import power_


def temper(value: Tensor, layout: Layout, tau: float) -> tuple[Tensor, Tensor | None]:
    """Observed values over the largest of each sample, to the power `1/τ`, signs kept; and that largest, (B,)."""
    if tau == 1:
        return value, None
    largest = _unit(layout.amax(value.abs()))
    relative = value / layout.spread(largest, value)
    return power_(relative.abs(), 1 / tau).copysign_(relative), largest


def _unit(largest: Tensor) -> Tensor:
    """(B,) what values are counted in; 1 in samples that are all zeros."""
    return torch.where(largest > 0, largest, 1)


def contribute(
    node: Affine, values: Values, value: Tensor, tau: float, real: bool = False
) -> tuple[Contributions, Streams, Tensor]:
    """The contributions of a node to the power `1/τ`, their sums `Z⁺, Z⁻`, and the scale of its rows.

    `real` says that `value` is what the forward pass computed with, so that it knows `Z⁺ − Z⁻`.
    """
    first, second, rows = split_weight(node, values, tau)
    return *split_contributions(node, first, second, value, _net(node, values) if real else None), rows


def _net(node: Affine, values: Values) -> Tensor | None:
    """`Z⁺ − Z⁻` as the forward pass computed it; None where a large bias has swallowed its digits (S37)."""
    bias = values.bias(node)
    if bias is None:
        return values[node].clone()
    net = values[node] - bias
    least: float = values.weights.prepared(node, "bias's digits", lambda: _size(bias) / 64)
    # a few entries are mostly enough to see that there are large ones
    line = in_line(net)
    some = net if line is None else line[0][:: max(1, net.numel() // 256)]
    return net if _size(some) >= least or _size(net) >= least else None


def _size(x: Tensor) -> float:
    """The largest entry, whatever its sign."""
    low, high = x.aminmax()
    return max(float(high), -float(low))


@dataclass(frozen=True)
class KeyChoice:
    """What the key policy of an attention composite rests on (S23)."""

    weight: Tensor  # A^{1/τ}
    values: Streams  # the streams ṽ^σ of the projection in the values' layout, to the power 1/τ
    sums: Streams  # Z^σ, shaped like the attention's output
    unit: Tensor  # in which the sums are counted, broadcastable against them
    projection: Contributions  # of the V projection
    totals: Streams  # their sums, shaped like the projection's output

    @staticmethod
    def of(node: Attention, values: Values, weight: Tensor, tau: float, players_know: bool) -> KeyChoice:
        """Under the oracle's policy `weight`; players who know τ see it in the keys' values too (S19)."""
        projection = node.projection
        assert projection is not None
        below = values.observed[projection.operand]
        real = below is values[projection.operand] and not values.deformed
        contributions, totals, _ = contribute(projection, values, below, 1.0, real)
        streams = totals
        if tau != 1:
            value, unit = temper(below, projection.operand.layout, tau)
            contributions, totals, rows = contribute(projection, values, value, tau)
            if players_know:
                assert unit is not None
                whole = rows * projection.layout.spread(unit, totals[0])
                streams = totals[0].pow(tau) * whole, totals[1].pow(tau) * whole
        plus, minus = (node.through(stream, values) for stream in streams)
        unit = torch.ones(values.batch, dtype=plus.dtype, device=plus.device)
        if tau != 1:
            layout = node.operand.layout
            unit = _unit(layout.amax(torch.maximum(plus, minus)))
            plus, minus = (power_(v / layout.spread(unit, v), 1 / tau) for v in (plus, minus))
            weight = power_(weight.clone(), 1 / tau)
        sums = node.map.apply(plus, weight), node.map.apply(minus, weight)
        return KeyChoice(weight, (plus, minus), sums, node.layout.spread(unit, sums[0]), contributions, totals)
