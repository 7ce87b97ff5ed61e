"""Images × methods: one row an image, one column a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from backplay.errors import InputError, InputTypeError
from backplay.view.canvas import COLUMN, Tiles, check_width, fitted, letters, picture
from backplay.view.colours import Plane, Scale, bar_room, number, scale_of
from backplay.view.heatmap import draw_image, draw_map
from backplay.view.images import Looks, Shown, check_proportions, extent_of, looks_of, planes, shown_images
from backplay.view.play import aim_words

SCALES = ("method", "map", "all")
_PANEL = 0.95  # inches, where no width is asked for


@picture
def grid(
    images: Any,
    maps: Mapping[str, Any],
    labels: Any = None,
    masks: Any = None,
    *,
    values: Any = None,
    over: bool = False,
    scale: Literal["method", "map", "all"] = "method",
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """Images in the first column, then one column of maps for each method, each with its scale below it.

    `maps` holds, by name, the maps of all images, or a play of them. `labels` are names or class numbers, one an image,
    and `values` the logits that are explained; a play among the maps brings both. `masks` (B, H, W) are outlined in the
    images; in the maps all that lies outside is shaded.
    Methods differ in their units, so a method has one scale for all its maps; `scale="all"` shares one among all
    methods, `scale="map"` gives each map its own.

    >>> bp.view.grid(x, {"RG": rg.attribute(x), "SG": sg.attribute(x)}, labels=["cat"], model=model)
    """
    if scale not in SCALES:
        raise InputError(f"scale={scale!r} is out of range: it must be one of {', '.join(map(repr, SCALES))}.")
    play = next((m for m in maps.values() if hasattr(m, "attribution")), None) if isinstance(maps, Mapping) else None
    looks = looks_of(model if model is not None or play is None else play.network, mean, std)
    shown = shown_images(images, looks)
    columns = _columns(maps, shown)
    rows = _row_names(len(shown), labels, values, play, looks)
    outlines = _masks(masks, shown)
    return _drawn(shown, columns, rows, outlines, over, scale, width)


def _columns(maps: Any, shown: Sequence[Shown]) -> dict[str, list[Plane]]:
    """The planes of each method; each must fit its image."""
    if not isinstance(maps, Mapping):
        raise InputTypeError(f"grid takes a dict of maps by name, {{'RG': maps}}; got {type(maps).__name__}.")
    if not maps:
        raise InputError("grid has no maps to draw: give at least one method, {'RG': maps}.")
    found: dict[str, list[Plane]] = {}
    for name, given in maps.items():
        found[str(name)] = planes(given, len(shown), f"maps[{name!r}]")
        if len(found[str(name)]) != len(shown):
            raise InputError(f"maps[{name!r}] holds {len(found[str(name)])} maps for {len(shown)} images.")
        for plane, image in zip(found[str(name)], shown, strict=True):
            check_proportions(plane, image, f"maps[{name!r}]")
    return found


def _row_names(count: int, labels: Any, values: Any, play: Any, looks: Looks) -> list[str]:
    """`zebra` and, in a second line, the value that is explained."""
    if play is not None:
        if labels is None and len(play.value) == count:
            labels = [aim_words(play.aim, k, looks) for k in range(count)]
        values = play.value if values is None else values
    names = [""] * count if labels is None else _named(labels, looks)
    amounts = [""] * count if values is None else [number(float(v)) for v in _flat("values", values)]
    for name, given in (("labels", names), ("values", amounts)):
        if len(given) != count:
            raise InputError(f"{name} has {len(given)} entries for {count} images.")
    return ["\n".join(part for part in parts if part) for parts in zip(names, amounts, strict=True)]


def _named(labels: Any, looks: Looks) -> list[str]:
    found = _flat("labels", labels)
    return [looks.class_name(int(v)) if isinstance(v, (int, np.integer)) else str(v) for v in found]


def _flat(name: str, given: Any) -> list[Any]:
    if isinstance(given, (Tensor, np.ndarray)):
        return given.detach().flatten().tolist() if isinstance(given, Tensor) else given.ravel().tolist()
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputTypeError(f"{name} takes a list with one entry for each image, got {given!r}.")
    return list(given)


def _masks(masks: Any, shown: Sequence[Shown]) -> list[NDArray[np.bool_] | None]:
    """(H, W) of each image; nothing where there are none."""
    if masks is None:
        return [None] * len(shown)
    found: list[NDArray[np.bool_] | None] = [p > 0.5 for p in planes(masks, len(shown), "masks")]
    if len(found) != len(shown):
        raise InputError(f"masks holds {len(found)} masks for {len(shown)} images.")
    for mask, image in zip(found, shown, strict=True):
        if mask is not None and mask.shape != image.shape[:2]:
            raise InputError(
                f"a mask is {mask.shape[0]} × {mask.shape[1]}, its image {image.shape[0]} × {image.shape[1]}."
            )
    return found


def outline(axes: Axes, mask: NDArray[np.bool_] | None) -> None:
    """The edge of a mask over its image: black on white, to be seen on any ground."""
    if mask is None or not mask.any() or mask.all():
        return
    limits = axes.get_xlim(), axes.get_ylim()
    rows, columns = (np.arange(-1, n + 1) for n in mask.shape)
    for colour, line in (("white", 1.3), ("black", 0.6)):
        axes.contour(columns, rows, np.pad(mask, 1).astype(float), levels=[0.5], colors=colour, linewidths=line)
    axes.set(xlim=limits[0], ylim=limits[1])


def shade(axes: Axes, mask: NDArray[np.bool_] | None, plane: Plane) -> None:
    """A light shadow on all that is not in the mask: a line would hide what a map shows at an object's edge."""
    if mask is not None and mask.any():
        veil = np.zeros((*mask.shape, 4))
        veil[..., 3] = np.where(mask, 0.0, 0.07)
        axes.imshow(veil, extent=extent_of(plane), interpolation="nearest")


def _drawn(
    shown: Sequence[Shown],
    columns: Mapping[str, list[Plane]],
    rows: Sequence[str],
    masks: Sequence[NDArray[np.bool_] | None],
    over: bool,
    scale: str,
    width: float | None,
) -> Figure:
    number_of = len(columns) + 1
    width = check_width(width, max(COLUMN, min(13.0, _PANEL * number_of)))
    size = letters(width)
    lines = max(row.count("\n") + 1 if row else 0 for row in rows)
    left = 0.04 + lines * size * 1.25 / 72 + (0.03 if lines else 0)
    room = (width - left - 0.04) / number_of - 0.05
    titles = [fitted(name, room, size)[0] for name in ("image", *columns)]
    top = 0.06 + max(t.count("\n") + 1 for t in titles) * size * 1.2 / 72
    between = bar_room(size) + 0.06 if scale == "map" else 0.04
    tiles = Tiles(
        [s.shape[0] / s.shape[1] for s in shown],
        number_of,
        width,
        left=left,
        right=0.04,
        top=top,
        bottom=0.05 + bar_room(size),
        gap=0.05,
        between=between,
    )
    tiles.titles(0, dict(enumerate(("image", *columns))))
    scales = _scales(columns, scale)
    for row, image in enumerate(shown):
        axes = tiles.tile(row, 0)
        draw_image(axes, image)
        outline(axes, masks[row])
        tiles.name_row(row, rows[row])
        for column, (name, maps) in enumerate(columns.items(), 1):
            own = scale_of([maps[row]]) if scale == "map" else scales[name]
            axes = tiles.tile(row, column)
            drawn = draw_map(axes, maps[row], own, image, over)
            outline(axes, masks[row]) if over else shade(axes, masks[row], maps[row])
            if scale == "map":
                own.bar(tiles, drawn, tiles.x(column), tiles.y(row) + tiles.heights[row] + 0.04, tiles.panel)
            elif row == 0 and scale == "method":
                own.bar(tiles, drawn, tiles.x(column), tiles.foot + 0.05, tiles.panel)
            elif row == 0 and column == 1:
                own.bar(tiles, drawn, tiles.x(1), tiles.foot + 0.05, tiles.x(number_of - 1) + tiles.panel - tiles.x(1))
    return tiles.figure


def _scales(columns: Mapping[str, list[Plane]], scale: str) -> dict[str, Scale]:
    if scale == "all":
        common = scale_of([plane for maps in columns.values() for plane in maps])
        return dict.fromkeys(columns, common)
    return {name: scale_of(maps) for name, maps in columns.items()}
