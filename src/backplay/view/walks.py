"""Walks over the image: where they end, and the way that they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from backplay.errors import InputError, InputTypeError
from backplay.network import Node
from backplay.trajectory.sampling import Trajectories
from backplay.view.canvas import COLUMN, Tiles, breadth, check_width, fitted, letters, picture, quiet
from backplay.view.colours import MINUS, PLUS, share
from backplay.view.heatmap import draw_image
from backplay.view.images import Shown, check_proportions, check_sample, looks_of, shown_image
from backplay.view.play import arriving, check_pixels

_SPECIAL = 8  # class and register tokens that a network may add to its patches
_LABELS = 14  # layers named beside the side view


@picture
def walks(
    trajectories: Any,
    image: Any = None,
    *,
    sample: int = 0,
    paths: int = 40,
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """Left: the ends of walks on the image, with their last steps. Right: the same walks from the side, layer by layer.

    A step is red in the turn of `+` and blue in that of `−`. At most `paths` walks that reach the input are drawn; how
    many of all do so is written below. Where few do, draw from those alone: `play.sample(n, arriving=True)`.

    >>> bp.view.walks(game.play(x).sample(1000), x)
    """
    if not isinstance(trajectories, Trajectories):
        raise InputTypeError(f"walks takes trajectories, play.sample(n); got {type(trajectories).__name__}.")
    if isinstance(paths, bool) or not isinstance(paths, int) or paths < 1:
        raise InputError(f"paths={paths!r} is out of range: it must be an integer >= 1.")
    play = trajectories.play
    check_pixels(play, "walks")
    check_sample(sample, len(play.value), "the play")
    shown = shown_image(play.x if image is None else image, looks_of(model or play.network, mean, std), sample)
    check_proportions(play.x[sample, 0].cpu().numpy(), shown, "the play's input")
    chosen = (trajectories.ends[sample] == 0).nonzero()[:paths, 0]
    way = Trail(trajectories, sample, chosen, shown)
    return _drawn(way, shown, _note(trajectories, sample, len(chosen)), width)


class Trail:
    """Chosen walks as points in the image.

    `places` (layers, walks, 2) holds row and column, NaN where a walk does not come to a layer or stands at no place
    there (a class token); `turns` (layers, walks) is ±1. Layers run from the output to the input.
    """

    def __init__(self, drawn: Trajectories, sample: int, chosen: Tensor, shown: Shown) -> None:
        size = shown.shape[0], shown.shape[1]
        self.names, places, turns = list[str](), list[NDArray[np.float64]](), list[NDArray[np.int64]]()
        for name, cells in _laid_out(drawn, size).items():
            nobody = torch.full_like(drawn.ends, -1)  # no walk has come to this node
            state = drawn.states.get(name, nobody)[sample, chosen].cpu()
            self.names.insert(0, name)
            places.insert(0, cells.places(state, size))
            turns.insert(0, drawn.players.get(name, nobody)[sample, chosen].cpu().numpy())
        self.places, self.turns = np.stack(places), np.stack(turns)

    def line(self, walk: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Of one walk the layers where it has a place, those places, and whose turn it is."""
        known = np.flatnonzero(~np.isnan(self.places[:, walk, 0]))
        return known, self.places[known, walk], self.turns[known, walk]


@dataclass(frozen=True)
class Cells:
    """How a node's elements lie in the image: `rows` × `columns` cells, each with `inner` elements behind one another.

    The first `special` tokens have no place.
    """

    rows: int
    columns: int
    inner: int = 1
    special: int = 0

    def places(self, state: Tensor, size: tuple[int, int]) -> NDArray[np.float64]:
        """(walks, 2) row and column in the image, NaN for nowhere; `state` is −1 where a walk is absent."""
        token = state // self.inner - self.special
        token = token if self.special or self.inner > 1 else token % (self.rows * self.columns)
        row = (token // self.columns % self.rows + 0.5) * size[0] / self.rows - 0.5
        column = (token % self.columns + 0.5) * size[1] / self.columns - 0.5
        known = (state >= 0) & (token >= 0)
        return torch.where(known[:, None], torch.stack([row, column], 1).double(), torch.nan).numpy()


def _laid_out(drawn: Trajectories, size: tuple[int, int]) -> dict[str, Cells]:
    """The nodes whose elements have a place in the image, from the input on.

    Those are maps with the proportions of the image and, behind the first tokens that are cut from such a map, tokens.
    """
    found: dict[str, Cells] = {}
    last, tokens = Cells(*size), False
    for node in drawn.play.network.nodes:
        if (node.name not in drawn.states and node is not drawn.play.network.input) or node.layout.dim != 0:
            continue
        cells = _tokens(node, last) if len(node.shape) == 3 else None if tokens else _map(node, size)
        if cells is not None:
            found[node.name] = cells
            tokens = tokens or len(node.shape) == 3
            last = last if len(node.shape) == 3 else cells
    return found


def _map(node: Node, size: tuple[int, int]) -> Cells | None:
    """Channels first, or last."""
    if len(node.shape) != 4:
        return None
    _, first, second, third = node.shape
    if second * size[1] == third * size[0]:
        return Cells(second, third)
    return Cells(first, second, inner=third) if first * size[1] == second * size[0] else None


def _tokens(node: Node, last: Cells) -> Cells | None:
    """(B, tokens, width): patches in their order, behind a few special tokens; or still (B, width, patches)."""
    _, tokens, width = node.shape
    patches = last.rows * last.columns
    if 0 <= tokens - patches <= _SPECIAL:
        return Cells(last.rows, last.columns, inner=width, special=tokens - patches)
    return Cells(last.rows, last.columns) if width == patches else None


def _note(drawn: Trajectories, sample: int, count: int) -> str:
    """How many are drawn, and the share of all walks that arrive."""
    given = getattr(drawn, "share", None)
    arrive = float((arriving(drawn.play) if given is None else given)[sample])
    walks = f"{count} walk{'s' * (count != 1)} of {drawn.n}" if count else f"none of {drawn.n} walks arrives"
    return f"{walks}; {share(arrive)} of all walks arrive"


def _drawn(way: Trail, shown: Shown, note: str, width: float | None) -> Figure:
    width = check_width(width, 1.5 * COLUMN)
    size = letters(width)
    side = min(0.3 * width, max(breadth(name, size * 0.9) for name in way.names) + 0.1)
    key = breadth("● turn of −", size)
    text, small = fitted(note, width - 2 * key - 0.4, size, 2)
    bottom = 0.1 + (text.count("\n") + 1) * small * 1.2 / 72
    tiles = Tiles(
        [shown.shape[0] / shown.shape[1]],
        2,
        width,
        left=0.05,
        right=0.08,
        top=0.05 + size * 1.4 / 72,
        bottom=bottom,
        gap=side + 0.08,
    )
    names = _labels(way.names, int(tiles.heights[0] / (size * 1.25 / 72)))
    image, depth = tiles.tile(0, 0), tiles.tile(0, 1)
    draw_image(image, shown, fade=0.45)
    _draw_ends(image, way, shown)
    _draw_side(depth, way, shown, names, size)
    tiles.titles(0, {0: "where walks end", 1: "the same walks from the side"}, 1)
    tiles.write(0.06, tiles.height - 0.05, text, fontsize=small, ha="left", va="bottom", linespacing=1.15)
    for k, (name, colour) in enumerate((("turn of +", PLUS), ("turn of −", MINUS))):
        tiles.write(
            width - 0.08 - (1 - k) * (key + 0.08),
            tiles.height - 0.05,
            f"● {name}",
            color=colour,
            fontsize=small,
            ha="right",
            va="bottom",
        )
    return tiles.figure


def _draw_ends(axes: Axes, way: Trail, shown: Shown) -> None:
    """The last steps of each walk, fading in towards its end: all steps of all walks would be a tangle."""
    for walk in range(way.places.shape[1]):
        _, places, turns = way.line(walk)
        moved = np.abs(np.diff(places, axis=0)).sum(1) > 0.5
        for k in np.flatnonzero(moved)[-3:]:
            fade = 0.25 + 0.5 * (k + 1) / len(places)
            axes.plot(
                *places[k : k + 2].T[::-1], color=_colour(turns[k + 1]), lw=0.7, alpha=fade, solid_capstyle="round"
            )
    ends, turns = way.places[-1], way.turns[-1]
    axes.scatter(
        ends[:, 1], ends[:, 0], s=12, c=[_colour(t) for t in turns], edgecolors="white", linewidths=0.4, zorder=3
    )
    axes.set_xlim(-0.5, shown.shape[1] - 0.5)
    axes.set_ylim(shown.shape[0] - 0.5, -0.5)


def _draw_side(axes: Axes, way: Trail, shown: Shown, names: list[str], size: float) -> None:
    """Columns of the image to the right, layers down; a step has the colour of the player who made it."""
    axes.set_axis_on()
    axes.set_aspect("auto")
    for walk in range(way.places.shape[1]):
        layers, places, turns = way.line(walk)
        points = np.stack([places[:, 1], layers], 1)
        steps = np.stack([points[:-1], points[1:]], 1)
        axes.add_collection(LineCollection(list(steps), colors=[_colour(t) for t in turns[1:]], lw=0.6, alpha=0.55))
    ends = way.places[-1, :, 1]
    axes.scatter(
        ends,
        [len(names) - 1] * len(ends),
        s=9,
        c=[_colour(t) for t in way.turns[-1]],
        edgecolors="white",
        linewidths=0.3,
        zorder=3,
        clip_on=False,
    )
    quiet(axes, size * 0.9)
    axes.set_xlim(-0.5, shown.shape[1] - 0.5)
    axes.set_ylim(len(names) - 0.7, -0.3)
    places = [k for k, name in enumerate(names) if name]
    axes.set_yticks(places, [names[k] for k in places])
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for name in ("left", "bottom"):
        axes.spines[name].set(color="0.8")


def _labels(names: list[str], room: int) -> list[str]:
    """The layers that there is room to name: the input, and some before it."""
    step = -(-len(names) // max(1, min(room, _LABELS)))
    return [name if (len(names) - 1 - k) % step == 0 else "" for k, name in enumerate(names)]


def _colour(turn: Any) -> str:
    return PLUS if turn > 0 else MINUS
