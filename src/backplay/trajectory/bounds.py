"""Randomisation bounds and the cemetery floor, corrected (thm:rand-adf, thm:rand-routing, eq:cemetery-floor; S35).

The bounds speak of the ordinary overlap `BC_ord`, what two walks share at input elements; the floor is an estimate of
`BC` itself. Plot each against what it speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import KeywordError
from backplay.kernels.streams import StreamKernel
from backplay.network.nodes import Affine, Mix
from backplay.trajectory.comparable import check_comparable
from backplay.trajectory.curvature import curvature as curvature
from backplay.trajectory.gates import GateShares
from backplay.trajectory.overlap import TwoPlays

if TYPE_CHECKING:
    from backplay.games.play import Play


def _check(name: str, value: float, low: float = 0.0, high: float = 1.0) -> None:
    if not low <= value <= high:
        raise KeywordError(f"{name}={value!r} is out of range: it must lie between {low:g} and {high:g}.")


def stopping_bound(delta: float, layers: int) -> float:
    """`E[BC_ord] ≤ (1 − δ)^N` when `N` layers are random and each neuron lives with probability in [δ, 1 − δ]."""
    return routing_bound(delta, 1.0, layers)


def routing_bound(delta: float, row_overlap: float, layers: int) -> float:
    """`E[BC_ord] ≤ ((1 − δ) b)^N`, `b` the largest row overlap on the agreement set (see `largest_row_overlap`)."""
    _check("delta", delta)
    _check("row_overlap", row_overlap)
    _check("layers", layers, 0, math.inf)
    return ((1 - delta) * row_overlap) ** layers


def surviving_distance(ordinary: float, survival_a: float, survival_b: float) -> float:
    """`H_surv` that belongs to an ordinary overlap (eq:conditioned-h2); of a bound on that, a bound from below."""
    _check("ordinary", ordinary)
    for name, value in (("survival_a", survival_a), ("survival_b", survival_b)):
        _check(name, value)
        if value == 0:
            raise KeywordError(f"{name}=0: where no walk survives, there is no law given survival.")
    return math.sqrt(max(0.0, 1 - ordinary / math.sqrt(survival_a * survival_b)))


@dataclass(frozen=True)
class Floor:
    """Mean-field estimates after `N` random layers: `cemetery` of `β(†)`, `ordinary` of `BC_ord`."""

    cemetery: float
    ordinary: float

    @property
    def bc(self) -> float:
        """Estimate of `BC`; no bound."""
        return self.cemetery + self.ordinary

    @property
    def distance(self) -> float:
        """Estimate of `H`."""
        return math.sqrt(max(0.0, 1 - self.bc))


def cemetery_floor(dead: float, alive: float, delta: float, layers: float = math.inf) -> Floor:
    """eq:cemetery-floor: A's share `q` of dead neurons, B's chance `p` of a live one, `δ`, and `N` layers.

    >>> cemetery_floor(dead=0.2, alive=0.5, delta=0.5).cemetery  # 0.18 for the paper's VGG-16
    """
    _check("dead", dead)
    _check("alive", alive)
    _check("delta", delta)
    _check("layers", layers, 0, math.inf)
    rate = dead * (1 - alive)
    shrink = (1 - delta) * (1 - rate)
    left = 0.0 if math.isinf(layers) and shrink < 1 else shrink**layers if shrink < 1 else 1.0
    ended = 0.0 if rate == 0 else rate * (1 - left) / (1 - shrink)
    return Floor(ended, left)


@dataclass(frozen=True)
class LayerFloor:
    """The same estimates once one gate is passed, (B,) each, from what was measured there and above it."""

    name: str
    cemetery: Tensor
    ordinary: Tensor

    @property
    def bc(self) -> Tensor:
        """(B,) estimate of `BC`; no bound."""
        return self.cemetery + self.ordinary


def measured_floor(gates: Sequence[GateShares]) -> list[LayerFloor]:
    """The recursion behind eq:cemetery-floor gate by gate, with measured `q`, `p` and `δ` (rem:adf-cemetery-floor).

    >>> bp.bounds.measured_floor(bp.hellinger(play, plays[0]).gates)[-1].bc

    `c + d f` ends in †, with `d = q (1 − p)`, and `(1 − δ)(1 − d) f` goes on. Where all gates measure the same, this is
    `cemetery_floor`.
    """
    floors: list[LayerFloor] = []
    for gate in gates:
        rate = gate.dead * (1 - gate.alive)
        ended = floors[-1].cemetery if floors else torch.zeros_like(rate)
        going = floors[-1].ordinary if floors else torch.ones_like(rate)
        floors.append(LayerFloor(gate.name, ended + rate * going, (1 - gate.differ) * (1 - rate) * going))
    return floors


@entry
def largest_row_overlap(play_a: Play, play_b: Play) -> float:
    """`b`: the largest row sum of `√(T_A T_B)` (eq:geom-rowsum) over the affine states that both plays leave."""
    check_comparable(play_a, play_b)
    plays, largest = TwoPlays(play_a, play_b), 0.0
    for node in play_a.visited():
        if not isinstance(node, Affine):
            continue
        step, twin = plays.kernels(node)
        if isinstance(node, Mix) and not isinstance(step, StreamKernel):  # a mean or a pool has no weights
            continue
        ones = [torch.ones_like(play_a.solved[n]) for n in step.carriers or node.carriers]
        own, other, both = (k.push(ones) for k in (step, twin, plays.kernel(node)))
        agreed = both[(own > 0) & (other > 0)]
        largest = max(largest, float(agreed.amax()) if len(agreed) else 0.0)
    return min(1.0, largest)
