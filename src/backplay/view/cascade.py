"""A cascade: how far the walks of a network move away from its own while it forgets layer after layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from backplay.errors import InputError, InputTypeError
from backplay.view.canvas import COLUMN, Picture, check_width, fitted, letters, picture, quiet
from backplay.view.colours import MINUS, PLUS, PURPLE

_COLOURS = {"rg": PLUS, "sg": MINUS}
_LABELS = 12  # layers that are named


@picture
def cascade(steps: Iterable[Any], *, deviation: bool = False, width: float | None = None) -> Figure:
    """The distance of each game after each step, as a mean over the samples (fig:hellinger-sanity).

    Dotted lines are the same given survival. With `deviation` the standard deviation over the samples is drawn
    instead: how much the distance depends on the image (fig:hellinger-variance).

    >>> bp.view.cascade(bp.sanity.cascade(model, x, method={}))
    """
    found = list(steps) if isinstance(steps, Iterable) else [steps]
    if not all(hasattr(step, "distance") and hasattr(step, "layer") for step in found):
        kind = type(found[0]).__name__ if found else "nothing"
        raise InputTypeError(f"cascade takes the steps that bp.sanity.cascade(model, x) gives; got {kind}.")
    if not found or not found[0].distance:
        raise InputError("the cascade has no distances to draw; name games, games=('sg', 'rg').")
    names = ["nothing" if step.layer is None else step.layer.name for step in found]
    width = check_width(width, COLUMN)
    size = letters(width)
    figure = Picture(figsize=(width, 0.85 * width), layout="constrained")
    axes = quiet(figure.subplots(), size * 0.9)
    for game in found[0].distance:
        colour = _COLOURS.get(game, PURPLE)
        for values, style, what in (("distance", "-", "H"), ("surviving", ":", "H given survival")):
            curve = [_summary(getattr(step, values)[game], deviation) for step in found]
            axes.plot(
                range(len(found)), curve, style, color=colour, marker="o", ms=2.2, label=f"{game.upper()}, {what}"
            )
    shown = [k for k in range(len(names)) if k % -(-len(names) // _LABELS) == 0]
    axes.set_xticks(shown, [fitted(names[k], 0.4 * width, size * 0.85, 1)[0] for k in shown], rotation=90)
    axes.set_ylim(0, None if deviation else 1.03)
    axes.set_xlabel("drawn anew, from the output to", fontsize=size)
    axes.set_ylabel("deviation over the images" if deviation else "distance", fontsize=size)
    axes.grid(axis="y", color="0.9", lw=0.5)
    axes.legend(fontsize=size * 0.85, frameon=False, loc="best" if deviation else "lower right")
    return figure


def _summary(values: Any, deviation: bool) -> float:
    """Mean or deviation over the samples; those where no walk arrives have no distance given survival."""
    numbers = values.detach().double().cpu().numpy()
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return float("nan")
    return float(known.std() if deviation else known.mean())
