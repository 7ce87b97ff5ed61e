"""The normal distribution, and moments of a gate on it (S22): in closed form for ReLU, by quadrature for others.

Gauss-Hermite nodes move with the Gaussian: exact while it is narrow, slow once it is wide and the gate looks like a
kink. Most gates are straight lines far from 0; then the moments of the two lines are known in closed form, and what is
left lies near 0, where fixed Gauss-Legendre nodes see it whole. Gates with tails of another kind (softsign, squares)
keep the first rule, whose variances are a few per cent off where the Gaussian is wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backplay.network.indicator import above

Activation = Callable[[Tensor], Tensor]

_HERMITE, _LEGENDRE = 24, 16  # nodes of the whole line, nodes of each half of the bend
_WIDE = 0.1  # a deviation above this share of the bend is wide


def normal_cdf(z: Tensor) -> Tensor:
    """`Φ(z)` with correct digits in the left tail."""
    return (z * -math.sqrt(0.5)).erfc_().mul_(0.5)


def density(z: Tensor) -> Tensor:
    """`φ(z)`."""
    # by powers of 2: the exponential takes ten times as long where its result is too small for a number
    return z.square().mul_(-0.5 / math.log(2)).exp2_().mul_(1 / math.sqrt(2 * math.pi))


def relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of `ReLU(X)`, `X ~ N(mean, variance)` (gast2018lightweight).

    Both are written with the small tail `Φ(−|α|)`, `α = mean / deviation`, so that nothing large cancels. Each line is
    one pass over memory, and most write over what is not needed any more: gates have as many elements as a network.
    """
    deviation = variance.sqrt()
    size = (mean.abs() / deviation.clamp(min=torch.finfo(deviation.dtype).tiny)).clamp_(max=1e4)  # |α|
    tail, edge = normal_cdf(-size), density(size)
    excess = torch.addcmul(edge, size, tail, value=-1).clamp_(min=0)  # E[(X − |α|)⁺] of a standard normal X
    share = size.square().add_(1).mul_(tail)  # of the variance: what is left below 0 …
    share.addcmul_(size, edge, value=-1).addcmul_(excess, excess, value=-1)
    share.addcmul_(above(mean, 0), tail.mul_(-2).add_(1))  # … and, where the mean is positive, above
    expected = torch.addcmul(mean.clamp(min=0), deviation, excess)
    return expected, share.clamp_(0, 1).mul_(variance)


# ---------------------------------------------------------------- quadrature


def moments_of(gate: Activation, width: float, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of `gate(X)`, `X ~ N(mean, variance)`; the gate bends within `width` of 0."""
    wide = variance > (_WIDE * width) ** 2
    bend = Bend.of(gate, width, mean) if bool(wide.any()) else None
    if bend is None:
        return hermite(gate, mean, variance)
    if bool(wide.all()):
        return bend.moments(gate(mean), mean, variance)
    pairs = zip(bend.moments(gate(mean), mean, variance), hermite(gate, mean, variance), strict=True)
    first, second = (torch.where(wide, far, near) for far, near in pairs)
    return first, second


def hermite(gate: Activation, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite moments of `gate(X)`."""
    points, weights = np.polynomial.hermite_e.hermegauss(_HERMITE)
    weights = weights / weights.sum()
    deviation = variance.sqrt()
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    centre = gate(mean)
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        departure = gate(mean + point * deviation) - centre  # moments about the centre: no large squares cancel
        first += weight * departure
        second += weight * departure.square()
    return centre + first, (second - first.square()).clamp(min=0)


@dataclass
class Bend:
    """A gate as two straight lines that meet at 0, and the rest, which is 0 beyond `width`.

    Slopes and offsets are those of the right and of the left line; all tensors are broadcastable against the output.
    """

    slopes: tuple[Tensor, Tensor]
    offsets: tuple[Tensor, Tensor]
    points: list[float]
    rests: list[tuple[Tensor, Tensor]]  # at each point, weighted: the rest r, and r² + 2 r × line

    @staticmethod
    def of(gate: Activation, width: float, like: Tensor) -> Bend | None:
        """None for a gate that is no straight line far from 0."""
        # one place for each channel: constants of a gate may differ there
        places = [size if dim == 1 else 1 for dim, size in enumerate(like.shape)]

        def at(point: float) -> Tensor:
            return gate(torch.full(places, point, dtype=like.dtype, device=like.device))

        lines = [_line(at, side * width) for side in (1.0, -1.0)]
        if lines[0] is None or lines[1] is None:
            return None
        slopes, offsets = zip(*lines, strict=True)
        nodes, weights = np.polynomial.legendre.leggauss(_LEGENDRE)
        points: list[float] = []
        rests: list[tuple[Tensor, Tensor]] = []
        for side in (0, 1):
            for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
                point = (1 - 2 * side) * width * (node + 1) / 2
                line = slopes[side] * point + offsets[side]
                rest = at(point) - line
                points.append(point)
                rests.append((rest * (weight * width / 2), (rest.square() + 2 * rest * line) * (weight * width / 2)))
        return Bend(slopes, offsets, points, rests)

    def moments(self, centre: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the gate on `N(mean, variance)`, computed about `centre`, its value at the mean."""
        deviation = variance.sqrt()
        first, second = self._lines(centre, mean, deviation)
        for point, (rest, square) in zip(self.points, self.rests, strict=True):
            chance = density((point - mean) / deviation) / deviation
            first += rest * chance
            second += (square - 2 * centre * rest) * chance
        return centre + first, (second - first.square()).clamp(min=0)

    def _lines(self, centre: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """First and second moment of the two lines about `centre`: integrals of `y = X − mean` over each side of 0."""
        ratio = mean / deviation
        first, second = torch.zeros_like(mean), torch.zeros_like(mean)
        for sign, slope, offset in zip((1.0, -1.0), self.slopes, self.offsets, strict=True):
            chance, edge = normal_cdf(sign * ratio), sign * density(ratio)
            rise = slope * mean + offset - centre
            first += slope * deviation * edge + rise * chance
            second += slope.square() * deviation.square() * (chance - ratio * edge)
            second += 2 * slope * rise * deviation * edge + rise.square() * chance
        return first, second


def _line(at: Callable[[float], Tensor], start: float) -> tuple[Tensor, Tensor] | None:
    """Slope and offset of the straight line that a gate follows from `start` on; None if it does not."""
    near, middle, far = at(start), at(2 * start), at(3 * start)
    slope = (middle - near) / start
    size = torch.maximum(middle.abs(), far.abs()).clamp(min=1.0)
    straight = bool(((far - 2 * middle + near).abs() <= 1e-4 * size).all())
    return (slope, near - slope * start) if straight else None
