"""DeepLift on the game graph: multipliers between an input and a baseline, carried back node by node.

A multiplier of a node says how much the output rises for each unit that the node lies above its baseline. Crossing a
node multiplies by its Jacobian averaged on the way from the baseline to the input. For an activation that average is
`Δout / Δin`, DeepLift's Rescale rule; for an affine node it is `W`; for a product the mean of both ends, and a norm is
undone by a product. The sum of multiplier times difference is `f(x) − f(baseline)` at every cut of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backplay.kernels.kernel import DIFFERENCE
from backplay.kernels.moves import Winner
from backplay.network.attention import Attention
from backplay.network.choices import Max, Select
from backplay.network.nodes import Affine, Gate, Held, Mix, Node, Norm, Oracle, Overlay, Scope, Sum, rerun
from backplay.trajectory.passes import BackwardPass, run
from backplay.values.forward import Values
from backplay.values.gates import derivative

_POINTS = 16  # of the quadrature for the rest, such as other vector norms

Reading = Callable[[Scope], Tensor]


@dataclass(frozen=True)
class DeltaRule:
    """How an affine node shares its difference out: contributions `plain · c` and `boost · c` where they agree.

    A contribution `c_ij = W_ij Δa_i` agrees if it has the sign of the sum `Δz_j`. Shares are divided by their sum, so
    every rule keeps the total; the agreeing part is the larger one, so that sum never vanishes before `Δz_j` does.
    """

    plain: float
    boost: float


RESCALE, POSITIVE = DeltaRule(1.0, 0.0), DeltaRule(0.0, 1.0)


def multipliers(at: Values, base: Values, root: Tensor, rule: DeltaRule, layer: Node | None = None) -> list[Tensor]:
    """Multipliers at each of the network's inputs, in its shape, for `root` at the output; or at a layer alone."""
    crossing = Crossing(at, base, root, rule, keep=layer is not None)
    if layer is not None:
        run(crossing)
        return [crossing.standing.get(layer, torch.zeros_like(at[layer]))]

    def forget(node: Node) -> None:
        at.forget(node)
        base.forget(node)

    run(crossing, done=forget)
    return [crossing.standing.get(n, torch.zeros_like(at[n])) for n in at.network.inputs]


class Crossing(BackwardPass[Tensor]):
    """Multipliers on their way back, given the values of an input (`at`) and of its baseline (`base`)."""

    def __init__(self, at: Values, base: Values, root: Tensor, rule: DeltaRule, keep: bool = False) -> None:
        super().__init__(at.network, {at.network.output: root}, keep)
        self.at, self.base, self.rule = at, base, rule

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def difference(self, node: Node) -> Tensor:
        return self.at[node] - self.base[node]

    def move(self, node: Node, here: Tensor) -> Iterator[tuple[Node, Tensor]]:
        """Each live operand with its multiplier."""
        match node:
            case Affine() if not isinstance(node, (Mix, Held)):
                yield node.operand, self._affine(node, here)
            case Gate():
                yield node.operand, here * self._slope(node, node.operand)
            case Sum():
                yield from ((operand, here) for operand in node.inputs)
            case Max(winner=None):
                yield from self._duel(node, here)
            case Max():
                yield node.inputs[0], self._winner(node, here)
            case Select():
                yield from self._select(node, here)
            case Norm(spread=spread) if spread is not None and node.inputs == (node.operand,):
                yield node.operand, self._norm(node, here)
            case Norm(spread=spread) if spread is not None:
                yield from self._spelled_norm(node, here)
            case _ if node.facts.divides and len(node.inputs) == 2:
                yield from self._quotient(node, here)
            case Oracle() if node.facts.softmax:
                operand, axis = node.inputs[0], node.args[1]
                log, log0 = (torch.log_softmax(values[operand], axis) for values in (self.at, self.base))
                yield operand, _softmax(here, log, log0, axis)
            case Attention(logits=logits) if logits is not None:
                yield from self._attention(node, here, logits)
            case Oracle() if not node.facts.quadratic:
                yield from self._averaged(node, here, _POINTS)
            case _:  # of degree two at most: the Jacobian half way is its average
                yield from self._averaged(node, here, 1)

    def _affine(self, node: Affine, mass: Tensor) -> Tensor:
        rule = self.rule
        weight, delta = self.at.weight(node), self.difference(node.operand)
        if rule.boost == 0:
            return node.map.adjoint(mass, weight, delta.shape)
        size = weight.abs()
        net = node.map.apply(delta, weight)
        sign = net.sign()
        agreeing = (net + sign * node.map.apply(delta.abs(), size)) / 2
        total = rule.plain * net + rule.boost * agreeing
        shared = torch.where(total == 0, 0, mass * self.difference(node) / torch.where(total == 0, 1, total))
        whole = node.map.adjoint(shared, weight, delta.shape)
        part = (whole + delta.sign() * node.map.adjoint(sign * shared, size, delta.shape)) / 2
        return rule.plain * whole + rule.boost * part

    def _slope(self, node: Node, operand: Node) -> Tensor:
        """`Δout / Δin`; where the difference drowns in rounding, the slope half way."""
        z, z0, y, y0 = (values[n] for n in (operand, node) for values in (self.at, self.base))
        size = torch.maximum(torch.maximum(z.abs(), z0.abs()), torch.minimum(y.abs(), y0.abs()).clamp(max=1))
        close = (z - z0).abs() <= torch.finfo(z.dtype).eps ** 0.5 * size
        ratio = (y - y0) / torch.where(close, 1, z - z0)
        if not bool(close.any()):
            return ratio
        return torch.where(close, derivative(lambda a: rerun(node, {operand: a}, self.at), (z + z0) / 2), ratio)

    def _winner(self, node: Max, mass: Tensor) -> Tensor:
        """A maximum that rises owes it to the winner at the input, one that falls to the winner at the baseline.

        With a minimum it is the other way round.
        """
        rise, delta = self.difference(node), self.difference(node.inputs[0])
        index = torch.where(-rise >= 0 if node.least else rise >= 0, node.winners(self.at), node.winners(self.base))
        (carried,) = Winner(index, delta.shape).pull(mass * _share(rise, delta.flatten()[index]), DIFFERENCE)
        return carried

    def _duel(self, node: Max, mass: Tensor) -> Iterator[tuple[Node, Tensor]]:
        left, right = node.inputs
        rise = self.difference(node)
        first = torch.where(-rise >= 0 if node.least else rise >= 0, node.first(self.at), node.first(self.base))
        for operand, wins in ((left, first), (right, ~first)):
            yield operand, mass * wins * _share(rise, self.difference(operand))

    def _select(self, node: Select, mass: Tensor) -> Iterator[tuple[Node, Tensor]]:
        """The chosen side; where the mask has turned, the side that has moved further the way that the output has.

        At `where(a > b, a, b)` that is the winner of the maximum, and at `where(a > b, b, a)` that of the minimum.
        """
        rise = self.difference(node)
        now, then = (values[node.mask] for values in (self.at, self.base))
        moved = [self.difference(side) if isinstance(side, Node) else torch.zeros_like(rise) for side in node.sides]
        left, right = (rise.sign() * delta for delta in moved)
        further = torch.where(torch.maximum(left, right) > 0, left >= right, left <= right)
        first = torch.where(now == then, now, further)
        for side, wins, delta in zip(node.sides, (first, ~first), moved, strict=True):
            if isinstance(side, Node):
                yield side, mass * wins * _share(rise, delta)

    def _norm(self, node: Norm, mass: Tensor) -> Tensor:
        """`y = g c / d`, `c` centred (but for RMS), `d` its root mean square, `Δd = mean((c + c₀) Δc) / (d + d₀)`.

        What is crossed is the product `c = (c / d) d`, exactly: `1 / d` is huge at a baseline near 0.
        """
        assert node.average is not None
        assert node.spread is not None
        average = node.average
        centre = (lambda v: v - average(v)) if node.centres else (lambda v: v)
        d, d0 = node.spread(self.at).sqrt(), node.spread(self.base).sqrt()
        c, c0 = centre(self.at[node.operand]), centre(self.base[node.operand])
        slope = mass * node.scale(self.at) * d * 2 / (d + d0)
        return centre(slope - (c + c0) * average(slope * (c / d + c0 / d0) / 2) / (d + d0))

    def _spelled_norm(self, node: Norm, mass: Tensor) -> Iterator[tuple[Node, Tensor]]:
        """`y = x / d` or `y = x r`, `d = 1 / r` a deviation that is an operand and crossed in its turn: `x = y d`."""
        (statistic,) = (n for n in node.inputs if n is not node.operand)
        d, d0 = 1 / node.scale(self.at), 1 / node.scale(self.base)
        slope = mass * 2 / (d + d0)
        yield node.operand, slope
        on_deviation = -slope * (self.at[node] + self.base[node]) / 2
        yield statistic, on_deviation if node.facts.divides else -on_deviation * d * d0

    def _quotient(self, node: Node, mass: Tensor) -> Iterator[tuple[Node, Tensor]]:
        above, below = node.inputs
        inverse, inverse0 = 1 / self.at[below], 1 / self.base[below]
        yield above, mass * (inverse + inverse0) / 2
        yield below, -mass * (self.at[above] + self.base[above]) / 2 * inverse * inverse0

    def _attention(self, node: Attention, mass: Tensor, logits: Reading) -> Iterator[tuple[Node, Tensor]]:
        """Fused attention as the product, the softmax and the product that it stands for."""
        (log, weight), (log0, weight0) = (_weights(logits(values)) for values in (self.at, self.base))
        value, value0 = self.at[node.operand], self.base[node.operand]
        yield node.operand, node.map.adjoint(mass, (weight + weight0) / 2, value.shape)
        scores = _softmax(mass @ ((value + value0) / 2).mT, log, log0, -1)
        yield from self._averaged(node, scores, 1, logits)

    def _averaged(
        self, node: Node, mass: Tensor, points: int, run: Reading | None = None
    ) -> Iterator[tuple[Node, Tensor]]:
        """The Jacobian averaged over the straight way of all operands, by Gauss-Legendre quadrature."""
        live = [n for n in dict.fromkeys(node.inputs) if _floating(self.at[n])]
        total = [torch.zeros_like(self.at[n]) for n in live]
        for time, share in gauss_legendre(points):
            with torch.enable_grad():
                here = {n: _between(self.base[n], self.at[n], time).requires_grad_() for n in live}
                out = (run or node.run)(Overlay(here, self.at))
                if not _floating(out) or not out.requires_grad:
                    continue
                options = {"allow_unused": True, "materialize_grads": True}
                parts = torch.autograd.grad(out, list(here.values()), share * mass, **options)
            total = [t + p for t, p in zip(total, parts, strict=True)]
        yield from zip(live, total, strict=True)


def gauss_legendre(points: int) -> list[tuple[float, float]]:
    """Times in (0, 1) and their weights, which sum to 1."""
    times, weights = np.polynomial.legendre.leggauss(points)
    return [(float(t + 1) / 2, float(w) / 2) for t, w in zip(times, weights, strict=True)]


def _share(rise: Tensor, winner: Tensor) -> Tensor:
    """`Δout / Δin` of a winner, 1 where it has not moved."""
    return torch.where(winner == 0, 1, rise / torch.where(winner == 0, 1, winner))


def _weights(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of the attention weights and the weights; a query that sees no key has none."""
    log = torch.log_softmax(logits, -1)
    return log, log.exp().nan_to_num(0.0)


def _softmax(mass: Tensor, log: Tensor, log0: Tensor, axis: int) -> Tensor:
    """Softmax between two sets of scores, exactly: `Δp = L (Δz − Σ L Δz / Σ L)`.

    `L = Δp / Δlog p` is the Rescale rule of the exponential, the logarithmic mean of `p` and `p₀`; weights sum to 1
    at both ends, which settles how the common denominator has moved.
    """
    p, p0, rise = log.exp().nan_to_num(0.0), log0.exp().nan_to_num(0.0), (log - log0).nan_to_num(0.0)
    close = rise.abs() < torch.finfo(p.dtype).eps ** 0.25
    mean = torch.where(close, (p * p0).sqrt() * (1 + rise.square() / 24), (p - p0) / torch.where(close, 1, rise))
    total = mean.sum(axis, keepdim=True)
    return mean * (mass - (mean * mass).sum(axis, keepdim=True) / torch.where(total == 0, 1, total))


def _floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _between(start: Tensor, end: Tensor, time: float) -> Tensor:
    # what is the same at both ends stays as it is, the −∞ of a mask above all
    return torch.where(start == end, end, torch.lerp(start, end, time))
