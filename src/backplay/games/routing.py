"""The Routing Game (app:routing-formal): its discounted visits are the αβ-LRP family."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from backplay.games.game import Game
from backplay.games.modes import Modes, RoutingModes
from backplay.games.play import Play
from backplay.games.structure import structural_kernel
from backplay.kernels.gates import routing_probability
from backplay.kernels.kernel import Kernel, PassThrough, Split, Stopping
from backplay.kernels.linear import RoutingLinear, Sharing, Stream, Streams
from backplay.kernels.prepared import split_weight
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
        positive, negative, rows = split_weight(node, values, tau)
        value, scale = temper(values[node.operand], node.operand.layout, tau)
        streams = Streams(node.map, positive, negative, value, node.operand.nonnegative)
        sums = streams.sums()
        unit = rows if scale is None else rows * node.layout.spread(scale, sums[0])
        outside = (self.modes.epsilon / unit).pow(1 / tau) if self.modes.epsilon > 0 else torch.zeros_like(rows)
        absorbed = self._absorbed(node, values, unit)
        return RoutingLinear(streams, *self._streams(sums, outside, absorbed))

    def _absorbed(self, node: Affine, values: Values, unit: Tensor) -> tuple[Tensor, Tensor] | None:
        """`|b^σ|^{1/τ}`, which `bias="absorb"` adds to the denominators (S15)."""
        if self.modes.bias == "ignore" or node.bias is None or isinstance(node, Mix):
            return None
        bias, power = node.bias(values) / unit, 1 / self.modes.tau
        return bias.clamp(min=0).pow(power), (-bias).clamp(min=0).pow(power)

    def _streams(
        self, sums: tuple[Tensor, Tensor], outside: Tensor, absorbed: tuple[Tensor, Tensor] | None
    ) -> tuple[Stream, Stream]:
        modes = self.modes
        empty = sums[0] == 0, sums[1] == 0
        streams: list[Stream] = []
        for k, (discount, switch) in enumerate(((2 * modes.alpha, 1.0), (2 * modes.beta, -1.0))):
            entry: Tensor | float = 0.5
            pays: Tensor | float = discount
            turn: Tensor | float = switch
            if modes.empty_stream == "reroute":  # the other stream takes all, player kept, discount α − β
                alone = empty[1 - k]
                entry = torch.where(alone, 1.0, 0.5).to(sums[k].dtype)
                pays = torch.where(alone, modes.alpha - modes.beta, discount).to(sums[k].dtype)
                turn = torch.where(alone, 1.0, switch).to(sums[k].dtype)
            aside = outside if absorbed is None else outside + absorbed[k]
            denominator = sums[k] + aside
            route = torch.where(empty[k], 0, entry / denominator)
            lost = torch.where(empty[k], entry, entry * aside / denominator)
            if modes.empty_stream == "reroute":  # an empty stream is entered only if the other is empty too
                lost = torch.where(empty[k] & ~empty[1 - k], 0, lost)
                lost = torch.where(empty[k] & empty[1 - k], 0.5, lost)
            leaked = None if absorbed is None else torch.where(empty[k], 0, entry * absorbed[k] / denominator)
            streams.append(Stream(route, pays, turn, lost, leaked))
        return streams[0], streams[1]


def temper(value: Tensor, layout: Layout, tau: float) -> tuple[Tensor, Tensor | None]:
    """Observed values to the power `1/τ`, signs kept, after division by the largest of each sample (B,)."""
    if tau == 1:
        return value, None
    scale = layout.amax(value.abs())
    scale = torch.where(scale > 0, scale, 1)
    relative = value / layout.spread(scale, value)
    return relative.sign() * relative.abs().pow(1 / tau), scale
