"""One image and its maps: what the command line writes for each photograph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from backplay.errors import InputError, InputTypeError
from backplay.view.canvas import COLUMN, Picture, check_width, fitted, letters, picture
from backplay.view.colours import Plane, Scale, bar_height, number, scale_of
from backplay.view.images import Shown, check_proportions, check_sample, count_of, looks_of, planes, shown_image

_ACROSS = 6  # panels in a row
_PANEL = 1.35  # inches, where no width is asked for
_GAP = 0.08


@picture
def panels(
    image: Any,
    maps: Mapping[str, Any],
    *,
    notes: Mapping[str, str] | None = None,
    title: str = "",
    sample: int = 0,
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """An image, then its maps by name, in rows of six: below each its own scale, and a note where there is one.

    It is drawn faster than a `grid` of one row: one pair of axes holds everything, measured in inches.

    >>> bp.view.panels(x, {"RG": game.attribute(x)}, notes={"RG": "12 % of walks arrive"}, title="cat, value 9.2")
    """
    if not isinstance(maps, Mapping):
        raise InputTypeError(f"panels takes a dict of maps by name, {{'RG': map}}; got {type(maps).__name__}.")
    if not maps:
        raise InputError("panels has no maps to draw: give at least one, {'RG': map}.")
    shown = shown_image(image, looks_of(model, mean, std), sample)
    found: dict[str, Plane] = {}
    for name, given in maps.items():
        several = planes(given, count_of(image), f"maps[{name!r}]")
        check_sample(sample, len(several), f"maps[{name!r}]")
        found[str(name)] = several[sample]
        check_proportions(found[str(name)], shown, f"maps[{name!r}]")
    across = min(len(found) + 1, _ACROSS)
    width = check_width(width, max(COLUMN, _PANEL * across))
    return _Sheet(width, across, shown, found, dict(notes or {}), title).figure


class _Sheet:
    """The figure: one pair of axes, in inches from its upper left corner."""

    def __init__(
        self, width: float, across: int, shown: Shown, maps: dict[str, Plane], notes: dict[str, str], title: str
    ) -> None:
        self.size = letters(width)
        self.line = self.size * 1.25 / 72
        self.panel = (width - _GAP * (across + 1)) / across
        self.tall = self.panel * shown.shape[0] / shown.shape[1]
        names = ["image", *maps]
        small = min(fitted(name, self.panel, self.size, 2)[1] for name in names)
        titles = [fitted(name, self.panel, small, 2)[0] for name in names]
        self.head = max(t.count("\n") + 1 for t in titles) * small * 1.25 / 72 + 0.05
        self.foot = bar_height(self.size) + self.line * (2.2 if notes else 1.1) + 0.06
        heading, large = fitted(title, width - 0.2, self.size, 2) if title else ("", self.size)
        top = 0.06 + (heading.count("\n") + 1) * large * 1.25 / 72 + 0.04 if title else 0.04
        rows = -(-len(names) // across)
        height = top + rows * (self.head + self.tall + self.foot)
        self.figure = Picture(figsize=(width, height))
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()
        if title:
            self._write(width / 2, 0.06, heading, large, va="top")
        for k, name in enumerate(names):
            x = _GAP + (k % across) * (self.panel + _GAP)
            y = top + (k // across) * (self.head + self.tall + self.foot) + self.head
            self._write(x + self.panel / 2, y - 0.03, titles[k], small, va="bottom")
            if k == 0:
                self._lay(shown, x, y, self.panel, self.tall, cmap="gray", vmin=0, vmax=1)
            else:
                self._map(maps[name], x, y)
                if name in notes:
                    self._note(notes[name], x, y)
        self.axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")

    def _lay(self, array: Any, x: float, y: float, width: float, height: float, **options: Any) -> None:
        self.axes.imshow(array, extent=(x, x + width, y + height, y), aspect="auto", **options)

    def _map(self, plane: Plane, x: float, y: float) -> None:
        scale = scale_of([plane])
        colours: dict[str, Any] = {"cmap": scale.palette, "norm": scale.limits}
        self._lay(np.where(np.isfinite(plane), plane, np.nan), x, y, self.panel, self.tall, **colours)
        corners = np.array([[x, y], [x + self.panel, y + self.tall]])
        self.axes.plot(*_outline(corners), color="0.6", lw=0.4)
        self._bar(scale, x, y + self.tall + 0.04, colours)

    def _bar(self, scale: Scale, x: float, y: float, colours: dict[str, Any]) -> None:
        """The colours from end to end, with the numbers that they stand for; beyond them lies more where it says so."""
        low = -scale.reach if scale.signed else 0.0
        height = bar_height(self.size)
        self._lay(np.linspace(low, scale.reach, 64)[None], x, y, self.panel, height, **colours)
        self.axes.plot(*_outline(np.array([[x, y], [x + self.panel, y + height]])), color="0.3", lw=0.4)
        more, below = ("≥ ", "≤ ") if scale.clipped else ("", "")
        ends = [f"{below}−{number(scale.reach)}" if scale.signed else "0", f"{more}{number(scale.reach)}"]
        room = 0.5 * self.panel
        small = min(fitted(text, room, self.size * 0.85, 1)[1] for text in ends)
        for text, place, side in zip(ends, (x, x + self.panel), ("left", "right"), strict=True):
            self._write(place, y + height + 0.02, text, small, ha=side, va="top")

    def _note(self, note: str, x: float, y: float) -> None:
        text, small = fitted(note, self.panel - 0.06, self.size * 0.85, 1)
        below = y + self.tall + 0.04 + bar_height(self.size) + self.line
        self._write(x + self.panel / 2, below, text, small, va="top")

    def _write(self, x: float, y: float, text: str, size: float, ha: str = "center", va: str = "top") -> None:
        escaped = text.replace("$", r"\$")
        self.axes.text(x, y, escaped, fontsize=size, ha=ha, va=va, linespacing=1.1)  # pyright: ignore[reportArgumentType]


def _outline(corners: Any) -> tuple[list[float], list[float]]:
    (left, top), (right, bottom) = corners
    return [left, right, right, left, left], [top, top, bottom, bottom, top]
