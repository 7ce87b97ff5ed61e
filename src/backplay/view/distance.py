"""A distance between two plays: where they differ, and how the difference grows from layer to layer."""

from __future__ import annotations

from typing import Any, Literal

from matplotlib.figure import Figure
from torch import Tensor

from backplay.errors import InputTypeError
from backplay.trajectory.hellinger import Hellinger
from backplay.view.canvas import COLUMN, Tiles, breadth, check_width, fitted, letters, picture, quiet
from backplay.view.colours import PURPLE, bar_room, number, scale_of
from backplay.view.heatmap import draw_image, draw_map
from backplay.view.images import check_proportions, check_sample, looks_of, planes, shown_image

_LABELS = 12  # layers that are named


@picture
def distance(
    h: Any,
    image: Any = None,
    *,
    sample: int = 0,
    kind: Literal["trajectory", "marginal", "fraction"] = "trajectory",
    conditioned: bool = False,
    title: str = "",
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """The input, or both where they differ, the map of disagreement, and the distance `√(1 − BC)` by layer.

    `kind` and `conditioned` choose the map as `h.map` does; a `title` stands before the distance in the heading. The
    curve follows the walk from the output to the input: at each layer stands the distance of all that has happened so
    far, so the last point is `H` itself.

    >>> bp.view.distance(bp.hellinger(game.play(x), other.play(x)))
    """
    if not isinstance(h, Hellinger):
        raise InputTypeError(f"distance takes what bp.hellinger(play_a, play_b) returns; got {type(h).__name__}.")
    check_sample(sample, len(h.distance), "the distance")
    names = [name for name, _ in h.by_layer]
    curve = [float((1 - bc[sample]).clamp(min=0).sqrt()) for _, bc in h.by_layer]
    panels = _images(h, image, sample, model, mean, std)
    plane = None
    if panels:
        plane = planes(h.map(kind, conditioned), len(h.distance))[sample]
        plane = (
            plane / h.a.x.shape[1] if kind == "fraction" else plane
        )  # a share: the mean over channels, not their sum
        check_proportions(plane, panels[0][1])
    found = f"H = {float(h.distance[sample]):.3f}, given survival {_shown(h.surviving[sample])}"
    return _drawn(panels, plane, names, curve, f"{title}: {found}" if title else found, width)


def _shown(value: Tensor) -> str:
    return "unknown" if bool(value.isnan()) else f"{float(value):.3f}"


def _images(h: Hellinger, image: Any, sample: int, model: Any, mean: Any, std: Any) -> list[tuple[str, Any]]:
    """The images of both plays, one where they are the same; none where inputs are no images."""
    plays = [p for p in (h.a, h.b) if len(p.network.inputs) == 1 and p.x.ndim == 4]
    if len(plays) < 2:
        return []
    looks = [looks_of(model or p.network, mean, std) for p in plays]
    if image is not None:
        return [("image", shown_image(image, looks[0], sample))]
    same = h.a.x.shape == h.b.x.shape and bool((h.a.x[sample] == h.b.x[sample]).all())
    if same:
        return [("image", shown_image(h.a.x, looks[0], sample))]
    return [(f"image {side}", shown_image(p.x, look, sample)) for side, p, look in zip("AB", plays, looks, strict=True)]


def _drawn(
    panels: list[tuple[str, Any]],
    plane: Any,
    names: list[str],
    curve: list[float],
    title: str,
    width: float | None,
) -> Figure:
    """Images and the map in a row; below them the curve, as wide as the figure."""
    width = check_width(width, COLUMN)
    size = letters(width)
    line = size * 1.3 / 72
    places = _labelled(names)
    room = max(breadth(names[k], size * 0.85) for k in places)
    columns = len(panels) + 1 if panels else 1
    chart = 0.36 * width
    below = chart + min(room, 0.6 * width) + 0.2
    ratio = panels[0][1].shape[0] / panels[0][1].shape[1] if panels else 0.0
    tiles = Tiles(
        [ratio],
        columns,
        width,
        left=0.05,
        right=0.05,
        top=0.08 + line + (line if panels else 0.0),
        bottom=below + (bar_room(size) + 0.05 if panels else 0.0),
        widest=1.6 * width / 3.3,
    )
    heading, small = fitted(title, width - 0.1, size, 1)
    tiles.write(width / 2, 0.04, heading, ha="center", va="top", fontsize=small)
    if panels:
        for column, (_, shown) in enumerate(panels):
            draw_image(tiles.tile(0, column), shown)
        scale = scale_of([plane], signed=False)
        drawn = draw_map(tiles.tile(0, columns - 1), plane, scale)
        scale.bar(tiles, drawn, tiles.x(columns - 1), tiles.foot + 0.05, tiles.panel)
        tiles.titles(0, {**{k: name for k, (name, _) in enumerate(panels)}, columns - 1: "where they differ"}, 1)
    left = 0.1 + breadth("0.0", size) + line
    axes = quiet(tiles.box(left, tiles.height - below + 0.03, width - left - 0.1, chart), size * 0.9)
    axes.plot(range(len(curve)), curve, color=PURPLE, marker="o", ms=2.2, lw=1.1)
    largest = max(curve)
    axes.set_ylim(0, 1.1 * largest if 1e-6 < largest < 0.3 else 1.02)
    axes.set_xlim(-0.5, len(curve) - 0.5)
    axes.set_xticks(places, [fitted(names[k], 0.6 * width, size * 0.85, 1)[0] for k in places], rotation=90)
    axes.tick_params(axis="x", labelsize=size * 0.85)
    axes.set_ylabel("distance so far", fontsize=size, labelpad=2)
    axes.grid(axis="y", color="0.9", lw=0.5)
    axes.set_axisbelow(True)
    axes.annotate(
        number(curve[-1]),
        (len(curve) - 1, curve[-1]),
        (-3, 4),
        textcoords="offset points",
        ha="right",
        fontsize=size * 0.9,
    )
    return tiles.figure


def _labelled(names: list[str]) -> list[int]:
    """Which layers are named: the last, and as many others as there is room for."""
    step = -(-len(names) // _LABELS)
    return [k for k in range(len(names)) if (len(names) - 1 - k) % step == 0]
