"""Robustness: what input noise does to the map and to the walk, from hard gates to soft ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from backplay.errors import InputTypeError
from backplay.games.robustness import Robustness
from backplay.view.canvas import COLUMN, Picture, check_width, fitted, letters, picture, quiet
from backplay.view.colours import GREY, PURPLE
from backplay.view.images import check_sample


@picture
def robustness(found: Any, *, sample: int = 0, width: float | None = None) -> Figure:
    """Against θ: `H` of the walks, the change of the map by its own size, and by the noise, with its bound if known.

    A point is the median of the draws, its line goes from the smallest to the largest; θ = 0 is the network's ReLU.

    >>> bp.view.robustness(bp.robustness(model, x, thetas=[0.0, 0.1, 1.0]))
    """
    if not isinstance(found, Robustness):
        raise InputTypeError(f"robustness takes what bp.robustness(model, x) returns; got {type(found).__name__}.")
    check_sample(sample, len(found.shift), "the batch")
    width = check_width(width, COLUMN)
    size = letters(width)
    figure = Picture(figsize=(width, 1.45 * width), layout="constrained")
    walk, share, bend = figure.subplots(3, 1, sharex=True)
    _plain(walk, found.distance[:, sample], "H of the walks", size)
    _plain(share, found.relative[:, sample], "change of the map\nby its own size", size)
    _logarithmic(bend, found, sample, size)
    names = ["ReLU" if theta == 0 else f"{theta:g}" for theta in found.thetas]
    bend.set_xticks(range(len(names)), names)
    bend.set_xlim(-0.5, len(names) - 0.5)
    bend.set_xlabel("θ of the Softplus gates", fontsize=size)
    draws = found.shift.shape[1]
    text, small = fitted(f"noise of {found.noise:g}, {draws} draw{'s' * (draws != 1)}", width - 0.1, size, 1)
    figure.suptitle(text, fontsize=small)
    return figure


def _plain(axes: Axes, values: Tensor, label: str, size: float) -> None:
    """Numbers from 0 upward; what is infinite, such as a share of a map that was 0, stands at the top."""
    numbers = values.cpu().numpy()
    top = 1.1 * max(float(numbers[np.isfinite(numbers)].max(initial=0.0)), 1e-6)
    _ranges(axes, np.minimum(numbers, top))
    axes.set_ylim(0, top)
    _finished(axes, label, size)


def _logarithmic(axes: Axes, found: Robustness, sample: int, size: float) -> None:
    """The change for each unit of noise and its bound, in powers of ten; what is 0 stands at the foot."""
    numbers = found.measured[:, sample].cpu().numpy()
    curve = None if found.curvature is None else found.curvature[:, sample].cpu().numpy()
    known = [] if curve is None else [k for k, value in enumerate(curve) if np.isfinite(value)]
    tops = [float(curve[k]) for k in known] if curve is not None else []
    positive = numbers[numbers > 0]
    low = math.floor(math.log10(positive.min())) if positive.size else -1
    high = max([low + 1, *(math.ceil(math.log10(v)) for v in (numbers.max(), *tops) if v > 0)])
    axes.set_yscale("log")
    axes.set_ylim(10.0**low, 10.0**high * 1.2)
    axes.yaxis.set_major_locator(LogLocator(numticks=5))
    axes.yaxis.set_minor_locator(NullLocator())
    _ranges(axes, np.maximum(numbers, 10.0**low))
    if curve is not None and known:
        axes.plot(known, curve[known], color=GREY, ls="--", lw=1.0, marker="_", ms=5)
    said = "no bound known" if curve is None else "dashed: bound for all inputs" if known else "no bound for a ReLU"
    axes.set_title(said, fontsize=size * 0.9, color="0.35", loc="right", pad=2)
    _finished(axes, "change of the map\nby unit of noise", size)


def _ranges(axes: Axes, numbers: np.ndarray[Any, Any]) -> None:
    """Median and range over the draws, (T, n), at each θ."""
    middle = np.median(numbers, 1)
    ends = np.stack([middle - numbers.min(1), numbers.max(1) - middle])
    axes.errorbar(range(len(middle)), middle, ends, color=PURPLE, marker="o", ms=3, lw=1.1, elinewidth=0.9, capsize=1.8)


def _finished(axes: Axes, label: str, size: float) -> None:
    quiet(axes, size * 0.9).grid(axis="y", color="0.92", lw=0.5)
    axes.set_axisbelow(True)
    axes.set_ylabel(label, fontsize=size)
