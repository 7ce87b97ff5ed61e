"""Concepts: the part of a map that comes through each channel, and the images in which the channel is strongest."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from backplay.circuits.concepts import Concepts
from backplay.errors import InputTypeError
from backplay.view.canvas import COLUMN, Tiles, check_width, letters, picture
from backplay.view.colours import Scale, bar_room, number, scale_of
from backplay.view.heatmap import draw_image, draw_map
from backplay.view.images import check_sample, looks_of, planes, shown_image, shown_images
from backplay.view.play import check_pixels

_COLUMNS = 5  # panels in a row, where no references are shown


@picture
def concepts(
    found: Any,
    *,
    sample: int = 0,
    over: bool = True,
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """The image, then for each channel its number, the relevance that passes through it and its part of the map.

    With references each channel has a row: its map, and beside it the images in which it is strongest. All maps of the
    image share one scale, and those of the references another one.

    >>> bp.view.concepts(bp.concepts(play, "features.2", references=x))
    """
    if not isinstance(found, Concepts):
        raise InputTypeError(f"concepts draws what bp.concepts(play, node) returns; got {type(found).__name__}.")
    check_pixels(found.play, "concepts")
    check_sample(sample, len(found.index), "the play")
    looks = looks_of(model or found.play.network, mean, std)
    image = shown_image(found.play.x, looks, sample)
    maps = [planes(_one(m), len(found.index))[sample] for m in found.maps]
    titles = [
        f"{found.by} {int(i)}: {number(float(r))}"
        for i, r in zip(found.index[sample], found.relevance[sample], strict=True)
    ]
    rows: list[list[tuple[str, Any, Any]]] = []  # title, image, map
    if found.strongest:
        for title, plane, index in zip(titles, maps, found.index[sample].tolist(), strict=True):
            best = found.strongest[index]
            parts = zip(shown_images(best.x, looks), planes(best.maps, len(best.x)), best.relevance, strict=True)
            rows.append([(title, image, plane), *((number(float(r)), x, p) for x, p, r in parts)])
    else:
        panels = [(found.layer, image, None), *((t, image, p) for t, p in zip(titles, maps, strict=True))]
        rows = [panels[k : k + _COLUMNS] for k in range(0, len(panels), _COLUMNS)]
    others = [p for best in found.strongest.values() for p in planes(best.maps, len(best.x))]
    return _drawn(rows, scale_of(maps), scale_of(others) if others else None, over, width)


def _one(maps: Any) -> Any:
    """The map of the one input, however it was given."""
    return next(iter(maps.values())) if isinstance(maps, dict) else maps[0] if isinstance(maps, tuple) else maps


def _drawn(
    rows: list[list[tuple[str, Any, Any]]], scale: Scale, other: Scale | None, over: bool, width: float | None
) -> Figure:
    columns = max(map(len, rows))
    width = check_width(width, max(COLUMN, 1.1 * columns))
    size = letters(width)
    line = size * 1.35 / 72
    ratio = rows[0][0][1].shape[0] / rows[0][0][1].shape[1]
    bottom = 0.05 + bar_room(size)
    tiles = Tiles(
        [ratio] * len(rows), columns, width, top=line + 0.05, bottom=bottom, gap=0.06, between=line + 0.06, left=0.04,
        right=0.04, lead=0.1 if other else 0.0,
    )  # fmt: skip
    bars: dict[int, Any] = {}
    for r, row in enumerate(rows):
        tiles.titles(r, {c: title for c, (title, _, _) in enumerate(row)}, lines=1)
        for c, (_, image, plane) in enumerate(row):
            axes = tiles.tile(r, c)
            if plane is None:
                draw_image(axes, image)
                continue
            second = other is not None and c > 0
            bars[int(second)] = draw_map(axes, plane, other if second and other else scale, image, over)
    ends = tiles.x(columns - 1) + tiles.panel
    if other is None:
        scale.bar(tiles, bars[0], tiles.x(0), tiles.foot + 0.05, ends - tiles.x(0))
    else:
        scale.bar(tiles, bars[0], tiles.x(0), tiles.foot + 0.05, tiles.panel)
        other.bar(tiles, bars[1], tiles.x(1), tiles.foot + 0.05, ends - tiles.x(1))
    return tiles.figure
