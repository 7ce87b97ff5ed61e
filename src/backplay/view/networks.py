"""Networks beside each other: matrices of the distances between their walks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from backplay.view.canvas import Picture, fitted, picture, quiet
from backplay.view.colours import GREY

SIZE = 7.0  # points of letters
Distances = Mapping[str, Tensor]  # game -> (n, n, B)


@picture
def networks(names: Sequence[str], distance: Distances, permuted: Distances | None = None) -> Figure:
    """Means over the inputs: a panel for each game, and below it the same up to the order of channels.

    What `bp.sanity.network_distances(…)` finds, whose `.plot()` this is.
    """
    rows = {"H": distance} | ({"H_perm": permuted} if permuted else {})
    figure, axes = matrix_panels(len(names), len(rows), len(distance))
    for row, (title, by_game) in enumerate(rows.items()):
        for column, (game, values) in enumerate(by_game.items()):
            draw_matrix(axes[row][column], values.mean(-1).cpu().numpy(), names, f"{game.upper()} {title}")
    return figure


def matrix_panels(networks: int, rows: int, columns: int) -> tuple[Figure, Any]:
    """A grid of panels, each large enough for a matrix of so many networks."""
    side = max(1.6, 0.42 * networks)
    figure = Picture(figsize=((side + 1.3) * columns, (side + 1.2) * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def draw_matrix(axes: Axes, values: Any, names: Sequence[str], title: str) -> None:
    """Distances from 0 to 1 as shades and as numbers; NaN is a dash."""
    shown = [fitted(str(name), 1.0, SIZE * 0.9, 1)[0] for name in names]
    axes.imshow(values, cmap="Purples", vmin=0, vmax=1)
    axes.set_title(title, fontsize=SIZE)
    axes.set_xticks(range(len(names)), shown, rotation=90)
    axes.set_yticks(range(len(names)), shown)
    quiet(axes, SIZE * 0.9)
    for (i, j), value in np.ndenumerate(values):
        colour = GREY if math.isnan(value) else "white" if value > 0.6 else "black"
        text = "–" if math.isnan(value) else f"{value:.2f}"
        axes.text(j, i, text, ha="center", va="center", fontsize=SIZE * 0.8, color=colour)
