"""Moments: how input noise grows on its way through a network, and what it leaves of the answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from backplay.errors import InputTypeError
from backplay.values.moments import Moments
from backplay.view.canvas import COLUMN, Picture, check_width, letters, picture, quiet
from backplay.view.colours import GREY, PLUS, PURPLE
from backplay.view.images import check_sample, looks_of

_LABELS, _CLASSES = 12, 10


@picture
def moments(found: Any, *, sample: int = 0, model: Any = None, width: float | None = None) -> Figure:
    """Above: the size of the signal and of the noise at every layer. Below: the largest outputs with one deviation.

    Sizes are root mean squares over a layer's elements: of the means, and of the standard deviations.

    >>> bp.view.moments(bp.moments(model, x, 0.1), model=model)
    """
    if not isinstance(found, Moments):
        raise InputTypeError(
            f"moments takes what bp.moments(model, x, input_variance) returns; got {type(found).__name__}."
        )
    network = found.network
    output = found[network.output]
    rows = network.output.layout.rows(output.mean)
    check_sample(sample, len(rows), "the batch")
    names, signal, noise = list[str](), list[float](), list[float]()
    for name in found:
        node = next(n for n in network.nodes if n.name == name)
        moment = found[node]
        names.append(name)
        signal.append(math.sqrt(float(node.layout.rows(moment.mean)[sample].double().square().mean())))
        noise.append(math.sqrt(float(node.layout.rows(moment.variance)[sample].double().mean())))
    deviations = network.output.layout.rows(output.variance)[sample].double().sqrt().cpu().numpy()
    looks = looks_of(model or network)
    classes = [looks.class_name(k) for k in range(rows.shape[1])]
    return _drawn(names, signal, noise, rows[sample].double().cpu().numpy(), deviations, classes, width)


def _drawn(
    names: list[str],
    signal: list[float],
    noise: list[float],
    logits: np.ndarray[Any, Any],
    deviations: np.ndarray[Any, Any],
    classes: list[str],
    width: float | None,
) -> Figure:
    width = check_width(width, COLUMN)
    size = letters(width)
    order = np.argsort(-logits)[:_CLASSES]
    below = len(order) * size * 1.5 / 72 + size * 3.2 / 72
    figure = Picture(figsize=(width, 0.6 * width + below), layout="constrained")
    above, beneath = figure.subplots(2, 1, height_ratios=(0.6 * width, below))
    quiet(above, size * 0.9)
    above.plot(signal, color=GREY, lw=1.2, marker="o", ms=2, label="signal")
    above.plot(noise, color=PURPLE, lw=1.2, marker="o", ms=2, label="noise")
    if min(v for v in (*signal, *noise) if v > 0) * 30 < max(*signal, *noise):
        above.set_yscale("log")
    step = -(-len(names) // _LABELS)
    places = [k for k in range(len(names)) if k % step == 0]
    above.set_xticks(places, [names[k] for k in places], rotation=90, fontsize=size * 0.85)
    above.set_ylabel("root mean square", fontsize=size)
    above.legend(fontsize=size, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.1)
    quiet(beneath, size * 0.9)
    where = range(len(order))
    beneath.barh(where, logits[order], color=[PLUS if k == 0 else "0.8" for k in where], height=0.7)
    beneath.errorbar(
        logits[order], where, xerr=deviations[order], fmt="none", ecolor="0.2", elinewidth=0.9, capsize=1.8
    )
    beneath.set_yticks(where, [classes[k] for k in order], fontsize=size)
    beneath.invert_yaxis()
    beneath.tick_params(axis="y", length=0)
    beneath.axvline(0, color="0.3", lw=0.6)
    beneath.set_xlabel("output, ± one standard deviation", fontsize=size)
    return figure
