"""Images by how a network calculates them: a plane in which near ones are alike, and the tree that joins them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from backplay.errors import InputError, InputTypeError, KeywordError
from backplay.trajectory.matrix import HellingerMatrix
from backplay.view.canvas import COLUMN, Picture, check_width, letters, picture, quiet
from backplay.view.colours import share
from backplay.view.heatmap import draw_image, frame
from backplay.view.images import Shown, looks_of, shown_images

# of groups; ColorBrewer's, which colour-blind readers can tell apart
COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#e08214", "#54278f", "#01665e", "#8c510a", "#404040")
_SMALLEST = 0.09  # inches: a thumbnail or a number below this shows nothing


@picture
def clusters(
    matrix: Any,
    images: Any = None,
    *,
    groups: int = 2,
    surviving: bool = False,
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """Items in a plane, as far apart as their walks as nearly as it allows, and below it the tree that joins them.

    `matrix` is what `bp.hellinger_matrix(plays)` returns for one list of plays. `images` has a thumbnail for each of
    them; without, items are numbers. Frames have the colours of `groups` medoids. `surviving` draws the distances of
    the walks that arrive.
    """
    if not isinstance(matrix, HellingerMatrix):
        raise InputTypeError(f"clusters takes what bp.hellinger_matrix(plays) returns; got {type(matrix).__name__}.")
    if isinstance(groups, bool) or not isinstance(groups, int) or not 1 <= groups <= len(COLOURS):
        raise KeywordError(f"groups={groups!r} is out of range: it must be a whole number from 1 to {len(COLOURS)}.")
    if len(matrix.distance) < 2:
        raise InputError("one play alone has no neighbours to be drawn with; give hellinger_matrix two plays or more.")
    found, joins = matrix.embedding(2, surviving=surviving), matrix.dendrogram(surviving=surviving)
    count = len(found.points)
    shown = None if images is None else shown_images(images, looks_of(model, mean, std))
    if shown is not None and len(shown) != count:
        raise InputError(f"there are {len(shown)} images for {count} plays; give one for each of them.")
    colours = [COLOURS[int(k)] for k in matrix.medoids(min(groups, count), surviving=surviving).labels]
    sheet = _Sheet(check_width(width, COLUMN), _Items(shown, colours))
    sheet.plane(found.points.numpy(), found.explained)
    sheet.tree(joins)
    return sheet.figure


@dataclass(frozen=True)
class _Items:
    """What stands for each play: its image, or its number, in the colour of its group."""

    images: list[Shown] | None
    colours: list[str]

    def __len__(self) -> int:
        return len(self.colours)

    def draw(self, axes: Axes, item: int, size: float) -> None:
        """One item, filling its axes; letters of `size` points."""
        if self.images is None:
            axes.set_axis_off()
            axes.text(0.5, 0.5, str(item), ha="center", va="center", fontsize=size, color=self.colours[item])
            return
        draw_image(axes, self.images[item])
        frame(axes)
        for spine in axes.spines.values():
            spine.set(linewidth=1.2, color=self.colours[item])


class _Sheet:
    """The plane above, the tree below, measured in inches."""

    def __init__(self, width: float, items: _Items) -> None:
        self.width, self.items, self.size = width, items, letters(width)
        self.line = self.size * 1.4 / 72
        self.left = 0.1 + 3.2 * self.size / 72
        leaf = (width - self.left - 0.1) / len(items)
        self.leaf = min(leaf * 0.92, 0.16 * width) if leaf >= _SMALLEST else 0.0
        self.branches = 0.42 * width
        self.ground = 0.08 + self.leaf + 0.04  # where the tree stands, from below
        self.top = self.ground + self.branches + 0.5 * self.line  # where the plane's frame ends, from below
        self.side = width - 0.2
        self.height = self.top + self.line + self.side + 1.5 * self.line
        self.figure = Picture(figsize=(width, self.height))

    def box(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes anywhere, `y` from below."""
        return self.figure.add_axes((x / self.width, y / self.height, width / self.width, height / self.height))

    def plane(self, points: NDArray[np.float64], explained: float) -> None:
        """Every item where it belongs; the axes have one scale, and no meaning of their own."""
        thumb = min(0.17 * self.side, 0.6 * self.side / len(points) ** 0.5)
        if self.items.images is None:
            thumb = min(thumb, 1.4 * self.line)
        low = self.top + self.line
        ground = self.box(0.1, low, self.side, self.side)
        frame(ground)
        ground.set(xlim=(0, self.side), ylim=(0, self.side))
        middle = (points.max(0) + points.min(0)) / 2
        extent = float(np.ptp(points, axis=0).max()) or 1.0
        places = (points - middle) / extent * (self.side - 1.15 * thumb) + self.side / 2
        for item, (place, (x, y)) in enumerate(zip(places, _apart(places, thumb, self.side), strict=True)):
            if self.items.images is not None and np.hypot(*(place - (x, y))) > 0.1 * thumb:
                ground.plot((place[0], x), (place[1], y), color="0.6", lw=0.6)
            self.items.draw(self.box(0.1 + x - thumb / 2, low + y - thumb / 2, thumb, thumb), item, self.size)
        said = f"this plane shows {share(explained)} of the spread"
        self.figure.text(0.5, 1 - 0.25 * self.line / self.height, said, ha="center", va="top", fontsize=self.size)

    def tree(self, joins: Tensor) -> None:
        """Average linkage: branches meet at the mean distance of what they hold."""
        order, count = _leaves(joins), len(self.items)
        axes = quiet(self.box(self.left, self.ground, self.width - self.left - 0.1, self.branches), 0.9 * self.size)
        place = {item: float(k) for k, item in enumerate(order)}
        heights = [float(h) for h in joins[:, 2]]
        spread = (heights[-1] - heights[0]) or 0.1 * heights[-1] or 1.0
        floor = max(0.0, heights[0] - 0.25 * spread)
        foot = dict.fromkeys(order, floor)
        held = {item: self.items.colours[item] for item in order}
        for step, (left, right, height, _) in enumerate(joins.tolist()):
            one, other, new = int(left), int(right), count + step
            same = held[one] if held[one] == held[other] else "0.35"
            x, y = (place[one], place[one], place[other], place[other]), (foot[one], height, height, foot[other])
            axes.plot(x, y, color=same, lw=1.0, solid_capstyle="round")
            place[new], foot[new], held[new] = (place[one] + place[other]) / 2, height, same
        axes.set(xlim=(-0.5, count - 0.5), ylim=(floor, heights[-1] + 0.06 * spread), xticks=[])
        axes.spines["bottom"].set_visible(False)
        axes.set_ylabel("distance", fontsize=self.size, labelpad=2)
        if self.leaf:
            pitch = (self.width - self.left - 0.1) / count
            for k, item in enumerate(order):
                x = self.left + (k + 0.5) * pitch - self.leaf / 2
                self.items.draw(self.box(x, 0.06, self.leaf, self.leaf), item, min(self.size, self.leaf * 72 * 0.6))


def _apart(places: NDArray[np.float64], size: float, side: float) -> NDArray[np.float64]:
    """Centres of squares of some size, moved as little as keeps them from lying on each other, inside of the frame."""
    found = places + 1e-4 * size * np.stack([np.cos(np.arange(len(places))), np.sin(np.arange(len(places)))], 1)
    for _ in range(300):
        away = found[:, None] - found[None]
        overlap = size - np.abs(away)
        overlap[(overlap <= 0).any(2)] = 0.0
        np.einsum("iid->id", overlap)[:] = 0.0
        if not overlap.any():
            break
        smaller = overlap <= overlap[..., ::-1]  # along the axis on which less is to be moved
        push = np.where(smaller, np.sign(away) * overlap, 0.0).sum(1) / 2
        found = np.clip(found + 0.5 * push, size / 2, side - size / 2)
    return found


def _leaves(joins: Tensor) -> list[int]:
    """Items from left to right, so that no two branches of the tree cross."""
    count = len(joins) + 1
    found: list[int] = []
    waiting = [2 * count - 2]
    while waiting:
        name = waiting.pop()
        if name < count:
            found.append(name)
        else:
            left, right = joins[name - count, :2].tolist()
            waiting += [int(right), int(left)]
    return found
