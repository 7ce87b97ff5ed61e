"""A circuit: layers as columns, groups as boxes, the walks between them as bands."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from backplay.circuits.circuit import Circuit
from backplay.circuits.geometry import Band, Box, arrange, hue
from backplay.errors import InputTypeError
from backplay.view.canvas import COLUMN, Picture, breadth, check_width, fitted, letters, picture

_BOX = 0.08  # inches


@picture
def circuit(graph: Any, *, width: float | None = None) -> Figure:
    """Layers from left to right; the height of a box and the thickness of a band are shares of the walks there.

    Red where the player + is ahead, blue where − is, grey where discounts are not followed. Below the name of a layer
    stands how many of all walks come there by way of what was kept, and how many of those end in † before the next.

    >>> bp.view.circuit(bp.circuit(play, nodes=["features.0", "features.2"]))
    """
    if not isinstance(graph, Circuit):
        raise InputTypeError(f"circuit draws what bp.circuit(play, nodes) returns; got {type(graph).__name__}.")
    geometry = arrange(graph)
    count = len(geometry.columns)
    width = check_width(width, max(COLUMN, 1.7 * count))
    size = letters(width)
    last = [breadth(box.label, size) + _BOX for box in geometry.boxes if box.x == 1]
    last += [breadth(text, size) for c in geometry.columns if c.x == 1 for text in (c.name, c.note)]
    left, right, small = 0.08, min(max(last, default=0.0) + 0.1, 0.4 * width), 0.05 + size * 1.5 / 72
    top, bottom, high = size * 3.4 / 72 + 0.08, size * 1.8 / 72 + 0.06, 0.62 * width
    height = top + high + bottom
    figure = Picture(figsize=(width, height))
    room = width - left - right
    axes = figure.add_axes((left / width, bottom / height, (width - left) / width, high / height))
    axes.set_axis_off()
    axes.set_xlim(0, width - left)
    axes.set_ylim(1, 0)
    for band in geometry.bands:
        _draw_band(axes, band, room)
    for box in geometry.boxes:
        _draw_box(axes, box, room, size)
    between = room / max(1, count - 1) - 0.08
    for column in geometry.columns:
        x, free = (left + column.x * room) / width, between if column.x < 1 else right - 0.04
        for text, y, ink, big in ((column.name, 0.05, "black", size), (column.note, small, "0.3", size * 0.85)):
            shown, fits = fitted(text, free, big, 1)
            figure.text(x, 1 - y / height, shown, fontsize=fits, va="top", ha="left", color=ink)
    foot = f"red: + ahead, blue: − ahead; {graph.left_out:.1%} of all walks left out (keep={graph.keep:g})"
    foot, fits = fitted(foot, width - 0.1, size, 1)
    figure.text(0.5, 0.04 / height, foot, fontsize=fits, ha="center", va="bottom")
    return figure


def _draw_band(axes: Axes, band: Band, room: float) -> None:
    """A ribbon whose edges are two like curves."""
    x0, x1 = band.x[0] * room + _BOX, band.x[1] * room
    (y0, y1), thick, middle = band.y, max(band.thickness, 0.0015), (x0 + x1) / 2
    corners = [(x0, y0), (middle, y0), (middle, y1), (x1, y1), (x1, y1 + thick)]
    corners += [(middle, y1 + thick), (middle, y0 + thick), (x0, y0 + thick), (x0, y0)]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    colour, strength = hue(band.tone)
    axes.add_patch(PathPatch(Path(corners, codes), facecolor=colour, alpha=strength, linewidth=0))


def _draw_box(axes: Axes, box: Box, room: float, size: float) -> None:
    colour, _ = hue(box.tone)
    x = box.x * room
    axes.add_patch(Rectangle((x, box.y), _BOX, box.height, facecolor=colour, linewidth=0))
    axes.text(x + _BOX + 0.03, box.y + box.height / 2, box.label, fontsize=size * 0.85, va="center", ha="left")
