"""One map: alone, beside its image, or over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from backplay.errors import InputError
from backplay.view.canvas import COLUMN, Tiles, check_width, fitted, letters, picture
from backplay.view.colours import Plane, Scale, bar_room, scale_of
from backplay.view.images import (
    Shown,
    check_proportions,
    check_sample,
    count_of,
    extent_of,
    looks_of,
    planes,
    shown_image,
)


@picture
def heatmap(
    map: Any,  # noqa: A002
    image: Any = None,
    *,
    sample: int = 0,
    over: bool = False,
    title: str = "",
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """A map with its scale; beside its image if there is one, or over it with `over=True`.

    Red speaks for the class, blue against it, white is zero; the bar says how much. `map` is a tensor like the image
    (channels are summed), or a play. Images are shown by the `mean` and `std` of `model`, or by those given.

    >>> bp.view.heatmap(game.attribute(x), x, model=model).savefig("map.svg")
    """
    if image is None and over:
        raise InputError("over=True draws the map over its image: give the image too, heatmap(map, image, over=True).")
    found = planes(map, count_of(image))
    check_sample(sample, len(found), "the map")
    plane = found[sample]
    shown = None if image is None else shown_image(image, looks_of(model, mean, std), sample)
    if shown is not None:
        check_proportions(plane, shown)
    panels = 1 if shown is None or over else 2
    width = check_width(width, COLUMN if panels == 2 else COLUMN / 1.5)
    size = letters(width)
    heading = fitted(title, width - 0.1, size, 3)
    top = 0.05 + (heading[0].count("\n") + 1) * heading[1] * 1.25 / 72 if title else 0.03
    tiles = Tiles(
        [plane.shape[0] / plane.shape[1]], panels, width, top=top, bottom=0.05 + bar_room(size), left=0.04, right=0.04
    )
    if title:
        tiles.write(width / 2, 0.03, heading[0], fontsize=heading[1], ha="center", va="top", linespacing=1.15)
    scale = scale_of([plane])
    if shown is not None and not over:
        draw_image(tiles.tile(0, 0), shown)
    axes = tiles.tile(0, panels - 1)
    drawn = draw_map(axes, plane, scale, shown, over)
    scale.bar(tiles, drawn, tiles.x(panels - 1), tiles.foot + 0.05, tiles.panel)
    return tiles.figure


def draw_image(axes: Axes, shown: Shown, fade: float = 0.0) -> None:
    """An image; `fade` of it gives way to white, so that what is drawn over it stands out."""
    axes.imshow(shown * (1 - fade) + fade, cmap="gray", vmin=0, vmax=1)


def draw_map(axes: Axes, plane: Plane, scale: Scale, shown: Shown | None = None, over: bool = False) -> Any:
    """A map with a hair-line frame; over its image, that is shown in grey below it."""
    if over and shown is not None:
        grey = shown if shown.ndim == 2 else shown @ np.array([0.299, 0.587, 0.114])
        draw_image(axes, grey, fade=0.35)
        return scale.over(axes, plane, extent=extent_of(shown))
    drawn = scale.draw(axes, plane)
    frame(axes)
    return drawn


def frame(axes: Axes) -> None:
    """A thin line around a panel: a white map on white paper has an edge."""
    axes.set_axis_on()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4, color="0.6")
