"""The flow of walks through the layers: how many come to each, and in whose turn."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from backplay.view.canvas import COLUMN, Picture, breadth, check_width, fitted, letters, picture, quiet
from backplay.view.colours import GREY, MINUS, PLUS, share
from backplay.view.images import check_sample, looks_of
from backplay.view.play import check_play, described, layers, shares


@picture
def flow(play: Any, *, sample: int = 0, model: Any = None, width: float | None = None) -> Figure:
    """One bar a layer, from the output down to the input: the share of all walks that pass it, red in the turn of `+`.

    Deep networks are shown by their modules. A layer inside a branch is passed by those walks alone that take the
    branch. The last bars say how walks end: at the input, in †, in constants.

    >>> bp.view.flow(game.play(x))
    """
    check_play(play, "flow")
    check_sample(sample, len(play.value), "the play")
    rows: list[tuple[str, float, float, bool]] = []
    for name, node in layers(play):
        plus, minus = (float(s[sample]) for s in shares(play, node))
        rows.append((name, plus, minus, False))
    rows.append(("† stopped", float(play.cemetery[sample]), 0.0, True))
    if float(play.constant[sample]) > 0:
        rows.append(("constants", float(play.constant[sample]), 0.0, True))
    return _drawn(rows, described(play, sample, looks_of(model or play.network)), width)


def _drawn(rows: list[tuple[str, float, float, bool]], title: str, width: float | None) -> Figure:
    width = check_width(width, COLUMN)
    size = letters(width)
    line = size * 1.45 / 72
    heading, heading_size = fitted(title, width - 0.1, size, 2)
    top = (heading.count("\n") + 1) * heading_size * 1.25 / 72 + 0.1
    bottom = size * 2.9 / 72 + 0.1 + size * 1.5 / 72
    left = min(0.45 * width, max(breadth(name, size) for name, *_ in rows) + 0.12)
    right = breadth("> 99.9 %", size) + 0.1
    height = top + line * (len(rows) + 0.4) + bottom
    figure = Picture(figsize=(width, height))
    box = left / width, bottom / height, (width - left - right) / width, 1 - (top + bottom) / height
    axes = quiet(figure.add_axes(box), size)
    where = [k + (0.4 if ended else 0.0) for k, (*_, ended) in enumerate(rows)]
    axes.barh(where, [1.0] * len(rows), color="0.95", height=0.72)
    walking = [k for k, (*_, ended) in enumerate(rows) if not ended]
    ended = [k for k, (*_, over) in enumerate(rows) if over]
    plus = axes.barh([where[k] for k in walking], [rows[k][1] for k in walking], color=PLUS, height=0.72)
    minus = axes.barh(
        [where[k] for k in walking],
        [rows[k][2] for k in walking],
        left=[rows[k][1] for k in walking],
        color=MINUS,
        height=0.72,
    )
    axes.barh([where[k] for k in ended], [rows[k][1] for k in ended], color=GREY, height=0.72)
    for at, (_, first, second, _) in zip(where, rows, strict=True):
        axes.text(1.02, at, share(first + second), fontsize=size * 0.92, va="center", ha="left")
    axes.set_xlim(0, 1)
    axes.set_ylim(where[-1] + 0.6, -0.6)
    axes.set_yticks(where, [fitted(name, left - 0.08, size, 1)[0] for name, *_ in rows])
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("share of walks", fontsize=size, labelpad=2)
    figure.legend(
        [plus[0], minus[0]],
        ["turn of +", "turn of −"],
        loc="lower center",
        ncols=2,
        fontsize=size,
        frameon=False,
        handlelength=1.0,
        borderaxespad=0.2,
        borderpad=0.1,
        columnspacing=1.5,
    )
    figure.text(0.5, 1 - 0.05 / height, heading, fontsize=heading_size, ha="center", va="top", linespacing=1.15)
    return figure
