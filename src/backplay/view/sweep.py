"""A sweep: the maps of one image while one or two keywords of the game change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from backplay.errors import InputError, InputTypeError
from backplay.view.canvas import COLUMN, Tiles, check_width, fitted, letters, picture
from backplay.view.colours import Plane, bar_room, scale_of
from backplay.view.heatmap import draw_image, draw_map
from backplay.view.images import check_proportions, check_sample, count_of, looks_of, planes, shown_image

_SYMBOLS = {"tau": "τ", "alpha": "α", "beta": "β", "epsilon": "ε", "risk": "λ", "input_variance": "σ²"}
_PANEL = 1.0
_IN_A_ROW = 8


@picture
def sweep(
    maps: Mapping[Any, Any],
    image: Any = None,
    *,
    sample: int = 0,
    over: bool = False,
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """Maps of one image side by side, on one scale: what `bp.sweep` returned, or any dict of maps by name.

    With two keywords the first runs down and the second to the right; with more, points stand in their order.

    >>> bp.view.sweep(bp.sweep(game, x, tau=[0.5, 1.0, 2.0]), x, model=model)
    """
    if not isinstance(maps, Mapping):
        raise InputTypeError(
            f"sweep takes the dict that bp.sweep returns, or one of maps by name; got {type(maps).__name__}."
        )
    if not maps:
        raise InputError("sweep has no maps to draw: give at least one.")
    image = getattr(maps, "x", None) if image is None else image
    model = getattr(maps, "model", None) if model is None else model
    shown = None if image is None else shown_image(image, looks_of(model, mean, std), sample)
    points = {point: _plane(point, given, image, sample) for point, given in maps.items()}
    for point, plane in points.items():
        if shown is not None:
            check_proportions(plane, shown, f"the map of {_words(point)}")
    return _drawn(points, shown, over, width)


def _plane(point: Any, given: Any, image: Any, sample: int) -> Plane:
    found = planes(given, count_of(image), f"the map of {_words(point)}")
    check_sample(sample, len(found), f"the map of {_words(point)}")
    return found[sample]


def _drawn(points: dict[Any, Plane], shown: Any, over: bool, width: float | None) -> Figure:
    """The image at the left of the first row, then the points as a table, or in lines of eight."""
    first = 0 if shown is None else 1
    table = _table(list(points))
    if table is None:
        across = min(len(points), _IN_A_ROW)
        places = {point: divmod(k, across) for k, point in enumerate(points)}
        titles = {point: _words(point) for point in points}
        down, rows = -(-len(points) // across), list[str]()
    else:
        names, columns, places = table
        across, down, rows = len(columns), len(names), names
        titles = {point: columns[places[point][1]] for point in points if places[point][0] == 0}
    width = check_width(width, max(COLUMN, min(13.0, _PANEL * (across + first))))
    size = letters(width)
    left = 0.04 + (size * 1.3 / 72 + 0.03 if rows and not first else 0)
    lead = size * 1.3 / 72 + 0.03 if rows and first else 0.0
    room = (width - left - lead - 0.04) / (across + first) - 0.05
    lines = max(fitted(t, room, size, 3)[0].count("\n") + 1 for t in titles.values())
    heading = 0.06 + lines * size * 1.2 / 72
    plane = next(iter(points.values()))
    tiles = Tiles(
        [plane.shape[0] / plane.shape[1]] * down,
        across + first,
        width,
        left=left,
        right=0.04,
        top=heading,
        bottom=0.05 + bar_room(size),
        gap=0.05,
        lead=lead,
        between=heading if table is None else 0.05,
    )
    if shown is not None:
        draw_image(tiles.tile(0, 0), shown)
    scale, drawn = scale_of(points.values()), list[Any]()
    for point, (row, column) in places.items():
        drawn.append(draw_map(tiles.tile(row, column + first), points[point], scale, shown, over))
    for row in range(down):
        named = {places[p][1] + first: title for p, title in titles.items() if places[p][0] == row}
        if named:
            tiles.titles(row, named | ({0: "image"} if first and row == 0 else {}), 3)
    for row, name in enumerate(rows):
        x = tiles.x(first) - 0.04
        y = tiles.y(row) + tiles.heights[row] / 2
        shown_name, small = fitted(name, tiles.heights[row], size, 1)
        tiles.write(x, y, shown_name, ha="right", va="center", rotation=90, fontsize=small)
    end = tiles.x(across + first - 1) + tiles.panel
    scale.bar(tiles, drawn[0], tiles.x(first), tiles.foot + 0.05, end - tiles.x(first))
    return tiles.figure


def _table(points: list[Any]) -> tuple[list[str], list[str], dict[Any, tuple[int, int]]] | None:
    """Rows, columns and the place of each point where two keywords change; None for any other dict."""
    if not all(_is_point(point) and len(point) == 2 for point in points):
        return None
    rows = list(dict.fromkeys(point[0] for point in points))
    columns = list(dict.fromkeys(point[1] for point in points))
    if len(rows) * len(columns) != len(points) or len(rows) == 1 or len(columns) == 1:
        return None
    places = {point: (rows.index(point[0]), columns.index(point[1])) for point in points}
    return [_words((row,)) for row in rows], [_words((column,)) for column in columns], places


def _is_point(point: Any) -> bool:
    """A key of `bp.sweep`: (keyword, value) pairs."""
    return isinstance(point, tuple) and all(
        isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in point
    )


def _words(point: Any) -> str:
    """`τ = 0.5, λ = −1` for a key of `bp.sweep`; any other key as it is."""
    if not _is_point(point):
        return str(point)
    return ", ".join(f"{_SYMBOLS.get(name, name)}\u00a0=\u00a0{_value(value)}" for name, value in point)


def _value(value: Any) -> str:
    return (
        f"{value:g}".replace("-", "−")
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else str(value)
    )
