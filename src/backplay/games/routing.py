"""The Routing Game (app:routing-formal): its discounted visits are the αβ-LRP family."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from backplay.games.game import Game
from backplay.games.modes import Modes, RoutingModes
from backplay.games.play import Play
from backplay.games.structure import structural_kernel
from backplay.kernels.attention import ValueRouting
from backplay.kernels.gates import routing_probability
from backplay.kernels.kernel import Kernel, PassThrough, Split, Stopping
from backplay.kernels.linear import RoutingLinear, Sharing
from backplay.kernels.prepared import split_weight
from backplay.kernels.streams import ByProduct, ByWeight, Contributions, Stream
from backplay.network.attention import Attention
from backplay.network.layout import Layout
from backplay.network.nodes import Affine, Diagonal, Gate, Mix, Node, Norm, Product, Sum
from backplay.values.forward import Values


class RoutingGame(Game[RoutingModes]):
    """At `tau=1`, `Γ₊ − Γ₋` times the target logit is αβ-LRP-ε at every layer (thm:ab-recovery; S12-S18).

    >>> RoutingGame(model, alpha=2.0, beta=1.0, epsilon=0.5).attribute(x)
    """

    modes_type: ClassVar[type[Modes]] = RoutingModes

    def kernel(self, node: Node, values: Values) -> Kernel:
        match node:
            case Attention() if node.projection is not None:
                return self._attention(node, values)
            case Mix() if node.operand.nonnegative and not node.signed_weights:
                weight, _, _ = split_weight(node, values, self.modes.tau)
                value, _ = temper(values[node.operand], node.operand.layout, self.modes.tau)
                return Sharing(node.map, weight, value)
            case Affine():
                return self._affine(node, values)
            case Gate():
                return Stopping(routing_probability(node, values))
            case Sum():
                return self._sum(node, values)
            case Diagonal() | Norm():
                return PassThrough()
            case Product():
                return PassThrough() if len(node.carrying) == 1 else Split((0.5, 0.5))
            case _:
                return structural_kernel(node, values)

    def finish(self, difference: Tensor, play: Play) -> Tensor:
        if self.modes.output == "one":
            return difference
        return difference * play.value.view([-1] + [1] * (difference.ndim - 1))

    def _sum(self, node: Sum, values: Values) -> Kernel:
        if self.modes.residual == "uniform":
            return Split((0.5, 0.5))
        left, right = (values[n].abs() for n in node.inputs)
        both = left + right
        share = torch.where(both > 0, left / both, 0.5)
        return Split((share, 1 - share))

    def _affine(self, node: Affine, values: Values) -> Kernel:
        tau = self.modes.tau
        value, scale = temper(values[node.operand], node.operand.layout, tau)
        contributions, rows = contribute(node, values, value, tau)
        plus, minus = contributions.sums(_net(node, values) if tau == 1 else None)
        unit = rows if scale is None else rows * node.layout.spread(scale, plus)
        absorbed = self._absorbed(node, values, unit)
        return RoutingLinear(contributions, *self._streams((plus, minus), self._outside(unit), absorbed))

    def _outside(self, unit: Tensor) -> Tensor:
        """`ε^{1/τ}` in the units of the contributions."""
        return (self.modes.epsilon / unit).pow(1 / self.modes.tau)

    def _attention(self, node: Attention, values: Values) -> Kernel:
        """Key policy `(A_qk ṽ^σ_kd)^{1/τ}`, then input policy; the outside option stands once, at the keys (S23)."""
        projection, tau = node.projection, self.modes.tau
        assert projection is not None
        below = values[projection.operand]
        plain, _ = contribute(projection, values, below, 1.0)
        streams = plain.sums(_net(projection, values))
        contributions, totals = plain, streams
        if tau != 1:
            value, _ = temper(below, projection.operand.layout, tau)
            contributions, _ = contribute(projection, values, value, tau)
            totals = contributions.sums()
        moved = tuple(node.through(s, values) for s in streams)
        largest = node.operand.layout.amax(torch.maximum(*moved))
        scale = torch.ones_like(largest) if tau == 1 else torch.where(largest > 0, largest, 1)
        keys = tuple((m / node.operand.layout.spread(scale, m)).pow(1 / tau) if tau != 1 else m for m in moved)
        weight = node.weight(values) if tau == 1 else node.weight(values).pow(1 / tau)
        plus, minus = (node.map.apply(k, weight) for k in keys)
        unit = node.layout.spread(scale, plus)
        absorbed = self._absorbed_keys(node, values, unit)
        both = self._streams((plus, minus), self._outside(unit), absorbed)
        return ValueRouting(node, values, weight, (keys[0], keys[1]), contributions, totals, both)

    def _absorbed_keys(self, node: Attention, values: Values, unit: Tensor) -> tuple[Tensor, Tensor] | None:
        """The projection's bias, which joins the key choice once: weights of a query sum to 1 (S15)."""
        projection = node.projection
        assert projection is not None
        if self.modes.bias == "ignore" or projection.bias is None:
            return None
        spread = projection.bias(values).expand(values[projection].shape)
        bias = node.map.apply(node.through(spread, values), node.weight(values)) / unit
        power = 1 / self.modes.tau
        return bias.clamp(min=0).pow(power), (-bias).clamp(min=0).pow(power)

    def _absorbed(self, node: Affine, values: Values, unit: Tensor) -> tuple[Tensor, Tensor] | None:
        """`|b^σ|^{1/τ}`, which `bias="absorb"` adds to the denominators (S15)."""
        if self.modes.bias == "ignore" or node.bias is None or isinstance(node, Mix):
            return None
        bias, power = node.bias(values) / unit, 1 / self.modes.tau
        return bias.clamp(min=0).pow(power), (-bias).clamp(min=0).pow(power)

    def _streams(
        self, sums: tuple[Tensor, Tensor], outside: Tensor, absorbed: tuple[Tensor, Tensor] | None
    ) -> list[Stream]:
        """The two stream states (S13); under "reroute" a stream whose twin is empty takes all of the mass (S16)."""
        modes, dtype = self.modes, sums[0].dtype
        streams: list[Stream] = []
        for k, (discount, turn) in enumerate(((2 * modes.alpha, 1.0), (2 * modes.beta, -1.0))):
            bias = None if absorbed is None else absorbed[k]
            aside = outside if bias is None else outside + bias
            stream = Stream(sums[k], aside, bias, 0.5, discount, turn)
            if modes.empty_stream == "reroute":
                empty, alone = sums[k] == 0, sums[1 - k] == 0
                stream.entry = torch.where(alone & ~empty, 1.0, torch.where(empty & ~alone, 0.0, 0.5)).to(dtype)
                stream.discount = torch.where(alone, modes.alpha - modes.beta, discount).to(dtype)
                stream.turn = torch.where(alone, 1.0, turn).to(dtype)
            streams.append(stream)
        return streams


def contribute(node: Affine, values: Values, value: Tensor, tau: float) -> tuple[Contributions, Tensor]:
    """The contributions of a node to the power `1/τ`, and the scale of its rows."""
    first, second, rows = split_weight(node, values, tau)
    kind = ByWeight if node.operand.nonnegative else ByProduct
    return kind(node.map, first, second, value), rows


def _net(node: Affine, values: Values) -> Tensor:
    """`Z⁺ − Z⁻` as the forward pass computed it."""
    return values[node] if node.bias is None else values[node] - node.bias(values)


def temper(value: Tensor, layout: Layout, tau: float) -> tuple[Tensor, Tensor | None]:
    """Observed values to the power `1/τ`, signs kept, after division by the largest of each sample (B,)."""
    if tau == 1:
        return value, None
    scale = layout.amax(value.abs())
    scale = torch.where(scale > 0, scale, 1)
    relative = value / layout.spread(scale, value)
    return relative.sign() * relative.abs().pow(1 / tau), scale
