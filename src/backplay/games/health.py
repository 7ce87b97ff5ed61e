"""Every play reports its own health (S38): whether its numbers are sound, and how much of the walk arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.kernels.kernel import BIASES, DIFFERENCE, EMPTY, GATES, OUTSIDE, WALK, ZEROS
from backplay.network.capture import TOLERANCE, forward_error
from backplay.network.mass import Mass
from backplay.network.nodes import Gate, Input, Sum

if TYPE_CHECKING:
    from backplay.games.play import Play

DEAD, CONSTANTS = "dead ends of residual sums", "constants"
_LITTLE, _NOTABLE = 0.5, 0.05  # below this share of arriving walks advice is given; causes from this share on count


@dataclass(frozen=True)
class Health:
    """`ok` means sound: finite, and both errors below 1e-4. It does not mean that much of the walk arrives."""

    forward_error: float
    mass_error: float
    bias_leak: float
    finite: bool
    arrives: float = 1.0  # smallest share of the walk, over the batch, that ends in input elements
    faded: float = 0.0  # largest share of a map, over the batch, that is too small for its dtype and came out as 0
    ends: Mapping[str, float] = field(default_factory=dict[str, float])  # where the rest of that sample's walk ends
    advice: tuple[str, ...] = ()  # what lets more of it arrive
    precision: str = "float32"  # of the model; half precision is played in float32

    @property
    def ok(self) -> bool:
        return self.finite and self.forward_error < TOLERANCE and self.mass_error < TOLERANCE

    def __str__(self) -> str:
        state = "sound" if self.ok else "NOT SOUND"
        half = ", played in float32" if self.precision in ("float16", "bfloat16") else ""
        numbers = (
            f"{state}: forward error {self.forward_error:.1e}, mass error {self.mass_error:.1e}, bias leak "
            f"{self.bias_leak:.1e}, {'finite' if self.finite else 'NaN or Inf'}; model in {self.precision}{half}"
        )
        faded = f"; {_percent(self.faded)} of the map is too small for its dtype: play in float64" if self.faded else ""
        return f"{numbers}\n{self.journey()}{faded}"

    @property
    def summary(self) -> str:
        """All of it in one line."""
        return str(self).replace("\n", "; ")

    def journey(self) -> str:
        """How much of the walk arrives, where the rest ends, and what raises it."""
        if self.arrives <= 0:
            share = "no walk arrives at the input: the map is 0"
        else:
            share = f"{_percent(self.arrives)} of the walk arrives at the input"
        ends = ", ".join(f"{_percent(part)} ends in {cause}" for cause, part in self.ends.items())
        more = f"; to raise it, try {' or '.join(self.advice)}" if self.advice else ""
        return f"{share}{f'; {ends}' if ends else ''}{more}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def examine(play: Play) -> Health:
    """Compare with the model, weigh the walk, look for NaN and Inf."""
    pixels = torch.stack([play.mass(n, WALK).total() for n in play.network.inputs]).sum(0)
    mass_error = (pixels + play.passed(WALK).losses.total() - 1).abs().max()
    finite = all(bool(torch.isfinite(t).all()) for t in (play.value, *play.maps(), mass_error))
    worst = int(pixels.argmin())
    arrives, ends = float(pixels[worst]), _ends(play, worst)
    return Health(
        _forward_error(play),
        float(mass_error),
        float(play.bias_leak.max()),
        finite,
        arrives,
        _faded(play),
        {cause: share for cause, share in sorted(ends.items(), key=lambda end: -end[1]) if share >= 0.001},
        _advice(play, ends) if arrives < _LITTLE else (),
        str(play.network.precision).removeprefix("torch."),
    )


def _ends(play: Play, sample: int) -> dict[str, float]:
    """Where the walk of one sample ends, other than at the input: shares by cause."""
    causes = (OUTSIDE, EMPTY, BIASES, DEAD, GATES, ZEROS)
    shares = dict.fromkeys(causes, 0.0) | {CONSTANTS: float(play.constant[sample])}
    for node, mass in play.visited().items():
        if isinstance(node, Input):
            continue
        for cause, ended in play.kernel(node).causes(mass.value):
            shares[cause] += float(Mass(ended, mass.exponent, mass.layout).total()[sample])
        if isinstance(node, Sum) and hasattr(play.game.modes, "tau"):  # whose policy goes by contributions
            dead = float(_dead_ends(play, node, mass)[sample])
            shares[DEAD], shares[GATES] = shares[DEAD] + dead, shares[GATES] - dead
    return shares


def _dead_ends(play: Play, node: Sum, mass: Mass) -> Tensor:
    """(B,) what a sum sends into shut gates: a policy on contributions never would."""
    total = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
    for operand, part in zip(node.carriers, play.kernel(node).pull(mass.value, WALK), strict=True):
        lost = play.kernel(operand).lost(part) if isinstance(operand, Gate) else None
        if lost is not None:
            total = total + Mass(lost, mass.exponent, operand.layout).total()
    return total


def _advice(play: Play, ends: Mapping[str, float]) -> tuple[str, ...]:
    """Modes that let more of the walk arrive as a rule, by what ends it now."""
    modes: Any = play.game.modes
    sums = any(isinstance(n, Sum) for n in play.visited())  # walks end in their blocks more often than on the skip
    lost = sum(ends.values()) - ends[CONSTANTS]
    single = play.value.dtype == torch.float32
    known = (
        # powers 1/τ of small contributions are too small for float32, and streams look empty that are not
        (ends[EMPTY], "tau", lambda value: single and value < 0.2, "float64"),
        (ends[OUTSIDE], "epsilon", lambda value: value > 0, "a smaller epsilon"),
        (ends[EMPTY], "empty_stream", lambda value: value == "cemetery", 'empty_stream="reroute"'),
        (ends[BIASES], "bias", lambda value: value == "absorb", 'bias="ignore"'),
        (lost if sums else 0.0, "residual", lambda value: value == "uniform", 'residual="proportional"'),
    )
    return tuple(
        words
        for share, name, open_to, words in known
        if share >= _NOTABLE and hasattr(modes, name) and any(map(open_to, modes.anywhere(name)))
    )


def _faded(play: Play) -> float:
    """The part of the map that its own scale can tell from 0 and its dtype cannot (S11)."""
    gone = there = torch.zeros(len(play.value), device=play.value.device)
    for source in play.network.inputs:
        difference = play.mass(source, DIFFERENCE)
        known = difference.value.flatten(1) != 0
        there = there + known.sum(1)
        gone = gone + (known & (difference.plain().flatten(1) == 0)).sum(1)
    return float((gone / there.clamp(min=1)).max())


def _forward_error(play: Play) -> float:
    """How far the replayed logits are from the model's."""
    return forward_error(play.network, play.solved, play.replayed_logits(), play.model_logits())
