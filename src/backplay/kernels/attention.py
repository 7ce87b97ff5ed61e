"""Attention in the Routing Game: Value routing against a detached oracle (app:attention-subgame, S23)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.kernels.contributions import ByParts, Contributions, Streams, is_empty, none_empty
from backplay.kernels.divergence import Divergence
from backplay.kernels.draws import Standing, gather
from backplay.kernels.geometric import mean
from backplay.kernels.kernel import DIFFERENCE, Kernel, Measure
from backplay.kernels.streams import StreamKernel
from backplay.network.attention import Attention
from backplay.network.indicator import below
from backplay.network.nodes import Affine, Node, Scope, rerun


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueRouting(StreamKernel):
    """Composite of mixing and V projection (eq:attn-target-input): one sign split for each output entry.

    From an output the walk chooses a key, which leads to a stream state of the V projection, and from there an input of
    the projection. Mass at those stream states is `Γ^V` (eq:attn-Gamma-V-corollary). `A ≥ 0` leaves the signs to the
    projection (eq:attn-composite-weight), whose streams are `ṽ^σ` and, mixed, `Z^σ` (eq:attn-Z-def).
    """

    node: Attention
    scope: Scope  # values of the play, for the wires between projection and values
    weight: Tensor  # the oracle's weights A^{1/τ}
    values: Streams  # ṽ^{1/τ}: both streams of the projection, in the layout of the attention's values
    projection: Contributions  # of the V projection, to the power 1/τ
    totals: Streams  # their sums, shaped like the projection's output

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return (self._projected.operand,)

    @property
    def _projected(self) -> Affine:
        assert self.node.projection is not None
        return self.node.projection

    @property
    def crossed(self) -> Affine | None:
        return self._projected

    def cross(self, mass: Tensor, measure: Measure, future: Tensor | None = None, wire: Node | None = None) -> Tensor:
        """`Γ^V`, both streams together (eq:attn-Gamma-V-corollary, eq:attn-target-rule), at V or on a `wire` behind."""
        states = self._at_values(*(mass * stream.coefficient(measure) for stream in (self.plus, self.minus)), to=wire)
        if future is not None:
            ahead = self._ahead(future)
            if wire is not None:
                ahead = [self.node.through(part, self.scope, wire) for part in ahead]
            states = [part * expected for part, expected in zip(states, ahead, strict=True)]
        return states[0] + states[1]

    def crosses(self, node: Node) -> bool:
        return node is self._projected or node in self.node.wires

    def narrowed(self, mask: Tensor, at: Node) -> Kernel:
        """Keys whose states are masked weigh less. What they would have carried is dropped.

        It goes to no other key and not to †: the denominators stay.
        """
        shown = mask.expand(self.scope[at].shape)
        wires = self.node.wires if at is self._projected else self.node.wires[self.node.wires.index(at) + 1 :]
        for wire in wires:
            shown = wire.move([shown], self.scope)
        plus, minus = (value * shown for value in self.values)
        return replace(self, values=(plus, minus))

    def crossings(self, between: Tensor) -> Iterable[tuple[Node, Tensor]]:
        return self.node.traced(between, self.scope)

    def _at_values(self, on_plus: Tensor, on_minus: Tensor, to: Node | None = None) -> Sequence[Tensor]:
        """Masses on both streams, divided by the denominators, after the key is chosen (eq:attn-V-routing-policy-O).

        They stand at the projection's output; with `to`, on their way there, at the output of that wire.
        """
        sent: list[Tensor] = []
        for part, value, total in zip((on_plus, on_minus), self.values, self.totals, strict=True):
            keys = self.node.map.adjoint(part, self.weight, value.shape) * value
            sent.append(self.node.back(keys, self.scope, total.shape, to))
        return sent

    def spread(self, on_plus: Tensor, on_minus: Tensor, exact: bool = False) -> Tensor:
        """From the keys to the inputs (eq:attn-V-routing-policy, eq:attn-target-input-via-V): thm:attn-ab-recovery.

        In one step this is eq:attn-ab-recovery. The difference of both players at the exit is `Γ^X` (eq:attn-Gamma-X),
        each by eq:attn-Gamma-X-recursion.
        """
        states = self._at_values(on_plus, on_minus)
        plus, minus = (part / _without_zeros(total) for part, total in zip(states, self.totals, strict=True))
        return (self.projection.exactly() if exact else self.projection).pull(plus, minus)

    def at_streams(self, function: Tensor) -> Streams:
        plus, minus = (
            self.node.map.apply(ahead * value, self.weight)
            for ahead, value in zip(self._after_keys(function), self.values, strict=True)
        )
        return plus, minus

    def _after_keys(self, function: Tensor) -> Streams:
        """Expectation of a function of the inputs that the walk may choose once it stands at each key.

        On both streams, in the values' layout.
        """
        plus, minus = (self.node.through(ahead, self.scope) for ahead in self._ahead(function))
        return plus, minus

    def _ahead(self, function: Tensor) -> Streams:
        """The same at the projection's stream states, in their shape."""
        plus, minus = (
            total / _without_zeros(size)
            for total, size in zip(self.projection.push(function), self.totals, strict=True)
        )
        return plus, minus

    def choose(self, side: int, walks: Standing) -> tuple[Tensor, Tensor]:
        k = 0 if side > 0 else 1
        value = self.values[k]
        flat = (value if walks.future is None else value * self._after_keys(walks.future[0])[k]).flatten()
        keys, _ = walks.choose(self.node, self.weight, value.shape, lambda w, i: w * flat[i])
        projected = replace(walks, states=self.states_of_keys(keys), shape=self.totals[k].shape)
        return self.projection.choose(side, projected), keys

    def key_scores(self, side: int, states: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Keys of single outputs, by their places in the values, and how much each weighs, both (states, keys)."""
        value = self.values[0 if side > 0 else 1]
        keys, row = gather(self.node, self.weight, states, (value.shape, shape))
        return keys, row * value.flatten()[keys]

    def states_of_keys(self, keys: Tensor) -> Tensor:
        """The place in the projection's output of each place in the values."""
        *_, (_, states) = self.crossings(keys)
        return states

    def scores_apart(self, other: ValueRouting) -> tuple[Divergence, Divergence]:
        """Of the key choice and, after the key is chosen, of the input choice."""
        inputs = self.projection.divergence(other.projection)
        divergences: list[Divergence] = []
        for k, rows in enumerate(inputs):
            own, its = (torch.where(is_empty(r.totals[k]), 0, 1 / _without_zeros(r.totals[k])) for r in (self, other))
            rows = rows.normalised((own > 0).to(own.dtype), own, its)
            keys, _ = ByParts(self.node, self.weight, self.values[k]).divergence(
                ByParts(other.node, other.weight, other.values[k])
            )
            nats, parted = (
                self.node.map.apply(self.node.through(part, self.scope) * self.values[k], self.weight)
                for part in (rows.nats, rows.parted)
            )
            divergences.append(keys.plus(Divergence(nats, parted)))
        return divergences[0], divergences[1]

    def geometric(self, other: ValueRouting) -> Kernel:
        """Key choice and input choice each to their geometric mean: the input tells which key was chosen."""
        values = [mean(x, y) for x, y in zip(self.values, other.values, strict=True)]
        totals = [mean(x, y) for x, y in zip(self.totals, other.totals, strict=True)]
        return ValueRouting(
            node=self.node,
            scope=self.scope,
            weight=mean(self.weight, other.weight),
            values=(values[0], values[1]),
            projection=self.projection.geometric(other.projection),
            totals=(totals[0], totals[1]),
            plus=self.stream(1).geometric(other.stream(1)),
            minus=self.stream(-1).geometric(other.stream(-1)),
        )


def _without_zeros(total: Tensor) -> Tensor:
    return total if none_empty(total) else total + below(total, torch.finfo(total.dtype).tiny)


NO_WALK = (
    "attention='gradient' has no kernel, so there is no walk: only attribute() works with it; "
    "use attention='value' for occupation, marginals and distances."
)


@dataclass(frozen=True, eq=False)
class GradientBlock(Kernel):
    """Gradient through the whole attention block instead of Value routing (S25, app:abl-gradient-fallback).

    Relevance over the output, sent through autograd of the block, times its input. It is no walk: only maps.
    """

    walks: ClassVar[bool] = False

    node: Attention
    scope: Scope
    out: Tensor  # of the block

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return (self._source,)

    @property
    def _source(self) -> Node:
        """The tensor that queries, keys and values are all projected from, else the input of the V projection."""
        if self.node.projection is not None:
            return self.node.projection.operand
        value = self.node.operand
        while len(value.carriers) == 1 and not isinstance(value, Affine):
            value = value.carriers[0]
        return value.carriers[0] if isinstance(value, Affine) else value

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        if measure is not DIFFERENCE:
            raise UnsupportedError(NO_WALK)
        source, out = self._source, self.out
        with torch.enable_grad():
            x = self.scope[source].detach().clone().requires_grad_()
            (back,) = torch.autograd.grad(
                rerun(self.node, {source: x}, self.scope), x, mass / (out + torch.where(out < 0, -1e-6, 1e-6))
            )
        return (back * x.detach(),)
