"""Every play reports its own health (S38)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.kernel import DIFFERENCE, WALK
from backplay.network.nodes import Affine, Mix

if TYPE_CHECKING:
    from backplay.games.play import Play

TOLERANCE = 1e-4
_MORE_DIGITS = "play in float64, or with a smaller epsilon"


@dataclass(frozen=True)
class Health:
    """`ok` means finite, and both errors below 1e-4."""

    forward_error: float
    mass_error: float
    bias_leak: float
    finite: bool
    arrives: float = 1.0  # smallest share of the walk, over the batch, that ends in input elements
    faded: float = 0.0  # largest share of a map, over the batch, that is too small for its dtype and came out as 0

    @property
    def ok(self) -> bool:
        return self.finite and self.forward_error < TOLERANCE and self.mass_error < TOLERANCE

    def __str__(self) -> str:
        state = "ok" if self.ok else "NOT OK"
        return (
            f"health {state}: forward error {self.forward_error:.1e}, mass error {self.mass_error:.1e}, "
            f"bias leak {self.bias_leak:.1e}, {'finite' if self.finite else 'NaN or Inf'}; "
            + (f"{self.arrives:.2g} of the walk arrives" if self.arrives > 0 else "no walk arrives: the map is 0")
            + (
                f"; {self.faded:.2g} of the map is too small for its dtype: play in float64, or with a smaller epsilon"
                if self.faded
                else ""
            )
        )


def examine(play: Play) -> Health:
    """Compare with the model, weigh the walk, look for NaN and Inf."""
    pixels = play.mass(play.network.input, WALK).total()
    cemetery = play.passed(WALK).cemetery
    assert cemetery is not None
    mass_error = (pixels + play.constant + cemetery - 1).abs().max()
    finite = all(bool(torch.isfinite(t).all()) for t in (play.value, play.attribution(), mass_error))
    leak, arrives = float(play.bias_leak.max()), float(pixels.min())
    return Health(_forward_error(play), float(mass_error), leak, finite, arrives, _faded(play))


def _faded(play: Play) -> float:
    """The part of the map that its own scale can tell from 0 and its dtype cannot (S11)."""
    difference = play.mass(play.network.input, DIFFERENCE)
    there = difference.value.flatten(1) != 0
    gone = there & (difference.plain().flatten(1) == 0)
    return float((gone.sum(1) / there.sum(1).clamp(min=1)).max())


def _forward_error(play: Play) -> float:
    """`max|replayed − model| / max(max|model|, 1e-3 · max of the last affine node's |W||a|)`, 0 where both are 0."""
    model, replayed = play.model_logits(), play.replayed_logits()
    error = (replayed - model).abs().max()
    if error == 0:
        return 0.0
    return float(error / torch.maximum(model.abs().max(), 1e-3 * _last_magnitude(play)))


def _last_magnitude(play: Play) -> Tensor:
    affine = [n for n in play.network.nodes if isinstance(n, Affine) and not isinstance(n, Mix)]
    if not affine:
        return torch.zeros(())
    last = affine[-1]
    return last.map.apply(play.values[last.operand].abs(), last.weight(play.values).abs()).max()
