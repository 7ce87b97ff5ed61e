"""One image and its maps: what the command line writes for each photograph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text

from backplay.errors import InputError, InputTypeError
from backplay.view.canvas import COLUMN, DOTS, Picture, check_width, fitted, letters, picture
from backplay.view.colours import Plane, Scale, bar_height, number, scale_of
from backplay.view.images import Looks, Shown, check_proportions, check_sample, count_of, looks_of, planes, shown_image

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
    content = Content.read(image, maps, notes, title, sample, looks_of(model, mean, std), width)
    return Sheet(content.plan).fill(content).figure


@dataclass(frozen=True)
class SheetPlan:
    """What the places on a sheet depend on; sheets of one layout differ in numbers and colours alone."""

    width: float  # inches
    shape: tuple[int, int]  # of the image
    names: tuple[str, ...]  # of the maps
    signed: tuple[bool, ...]  # whether the map of that name has two colours
    noted: bool
    lines: int  # of the title

    @property
    def across(self) -> int:
        return min(len(self.names) + 1, _ACROSS)


@dataclass(frozen=True)
class Content:
    """What is drawn on a sheet."""

    shown: Shown
    maps: dict[str, Plane]
    scales: dict[str, Scale]
    notes: dict[str, str]
    title: str  # in lines that fit
    size: float  # of the title's letters
    plan: SheetPlan

    @staticmethod
    def read(
        image: Any,
        maps: Mapping[str, Any],
        notes: Mapping[str, str] | None,
        title: str,
        sample: int,
        looks: Looks,
        width: float | None,
    ) -> Content:
        """What was given, checked."""
        if not isinstance(maps, Mapping):
            raise InputTypeError(f"panels takes a dict of maps by name, {{'RG': map}}; got {type(maps).__name__}.")
        if not maps:
            raise InputError("panels has no maps to draw: give at least one, {'RG': map}.")
        shown = shown_image(image, looks, sample)
        found: dict[str, Plane] = {}
        for name, given in maps.items():
            several = planes(given, count_of(image), f"maps[{name!r}]")
            check_sample(sample, len(several), f"maps[{name!r}]")
            found[str(name)] = several[sample]
            check_proportions(found[str(name)], shown, f"maps[{name!r}]")
        scales = {name: scale_of([plane]) for name, plane in found.items()}
        width = check_width(width, _natural(min(len(found) + 1, _ACROSS), shown.shape[1]))
        heading, size = fitted(title, width - 0.2, letters(width), 2) if title else ("", letters(width))
        plan = SheetPlan(
            width,
            (shown.shape[0], shown.shape[1]),
            tuple(found),
            tuple(scale.signed for scale in scales.values()),
            bool(notes),
            heading.count("\n") + 1 if title else 0,
        )
        return Content(shown, found, scales, dict(notes or {}), heading, size, plan)


def _natural(across: int, pixels: int) -> float:
    """Inches that so many panels of an image take, so that each of its pixels is a whole number of dots in a PNG file.

    Nothing is blurred there, and nothing has to be resampled, which is most of the work of drawing. Images for which
    the panels would have to be much larger or smaller than usual take the usual width.
    """
    usual = max(COLUMN, _PANEL * across)
    dots = DOTS * (usual - _GAP * (across + 1)) / across
    whole = round(dots / pixels) * pixels
    return across * whole / DOTS + _GAP * (across + 1) if 0.8 <= whole / dots <= 1.25 else usual


@dataclass(frozen=True)
class _Panel:
    """The places of one map that are filled anew for each image."""

    map: AxesImage
    ends: tuple[Text, Text]  # of its scale
    note: Text | None


class Sheet:
    """The figure: one pair of axes, in inches from its upper left corner; places that `fill` fills."""

    def __init__(self, plan: SheetPlan) -> None:
        self.plan = plan
        self.size = letters(plan.width)
        self.line = self.size * 1.25 / 72
        self.panel = (plan.width - _GAP * (plan.across + 1)) / plan.across
        self.tall = self.panel * plan.shape[0] / plan.shape[1]
        self._texts: list[Text] = []
        self._images: list[AxesImage] = []
        self._frames: list[Artist] = []
        self._lay_out()

    @property
    def changing(self) -> list[Artist]:
        """What `fill` changes and what lies over it, in the order of drawing; all else is the same for every image."""
        return [*self._images, *self._frames, *self._texts]

    def _lay_out(self) -> None:
        plan, names = self.plan, ["image", *self.plan.names]
        small = min(fitted(name, self.panel, self.size, 2)[1] for name in names)
        titles = [fitted(name, self.panel, small, 2)[0] for name in names]
        head = max(t.count("\n") + 1 for t in titles) * small * 1.25 / 72 + 0.05
        foot = bar_height(self.size) + self.line * (2.2 if plan.noted else 1.1) + 0.06
        top = 0.06 + plan.lines * self.line + 0.04 if plan.lines else 0.04
        height = top + -(-len(names) // plan.across) * (head + self.tall + foot)
        self.figure = _SheetFigure(self, figsize=(plan.width, height))
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, plan.width), ylim=(height, 0))
        self.axes.set_axis_off()
        self._title = self._place(plan.width / 2, 0.06)
        self._panels: dict[str, _Panel] = {}
        for k, shown in enumerate(titles):
            x = _GAP + (k % plan.across) * (self.panel + _GAP)
            y = top + (k // plan.across) * (head + self.tall + foot) + head
            self._write(x + self.panel / 2, y - 0.03, shown, small, va="bottom")
            if k == 0:
                self._image = self._lay(np.zeros(plan.shape), x, y, self.tall, cmap="gray", vmin=0, vmax=1)
                self._images.append(self._image)
            else:
                self._panels[plan.names[k - 1]] = self._map(plan.signed[k - 1], x, y)
        self.axes.set(xlim=(0, plan.width), ylim=(height, 0), aspect="auto")

    def fill(self, content: Content) -> Sheet:
        """The image, its maps and their numbers, in place of those that are there."""
        self._image.set_data(content.shown)
        self._say(self._title, content.title, content.size)
        for name, found in self._panels.items():
            plane, scale = content.maps[name], content.scales[name]
            found.map.set_data(np.where(np.isfinite(plane), plane, np.nan))
            found.map.set_norm(scale.limits)
            more, below = ("≥ ", "≤ ") if scale.clipped else ("", "")
            labels = [f"{below}−{number(scale.reach)}" if scale.signed else "0", f"{more}{number(scale.reach)}"]
            small = min(fitted(text, 0.5 * self.panel, self.size * 0.85, 1)[1] for text in labels)
            for end, text in zip(found.ends, labels, strict=True):
                self._say(end, text, small)
            if found.note is not None:
                self._say(found.note, *fitted(content.notes.get(name, ""), self.panel - 0.06, self.size * 0.85, 1))
        return self

    def sharpen(self, dpi: float) -> None:
        """Show pixels that are whole dots at this resolution as they are; others as matplotlib finds best."""
        for place in self._images:
            size = self.panel * dpi / place.get_size()[1]
            place.set_interpolation("nearest" if abs(size - round(size)) < 1e-6 and size > 0.5 else "auto")

    def _map(self, signed: bool, x: float, y: float) -> _Panel:
        """Places for a map, for the numbers at both ends of its bar, and for a note; the bar itself stays."""
        plain = Scale(1.0, signed)
        colours: dict[str, Any] = {"cmap": plain.palette, "norm": plain.limits}
        drawn = self._lay(np.zeros(self.plan.shape), x, y, self.tall, **colours)
        self._images.append(drawn)
        self._frames.append(self._frame(x, y, self.tall, "0.6"))
        below, height = y + self.tall + 0.04, bar_height(self.size)
        self._lay(np.linspace(-1.0 if signed else 0.0, 1.0, 64)[None], x, below, height, **colours)
        self._frame(x, below, height, "0.3")
        ends = (
            self._place(x, below + height + 0.02, ha="left"),
            self._place(x + self.panel, below + height + 0.02, ha="right"),
        )
        noted = self.plan.noted
        return _Panel(drawn, ends, self._place(x + self.panel / 2, below + height + self.line) if noted else None)

    def _lay(self, array: Any, x: float, y: float, height: float, **options: Any) -> AxesImage:
        return self.axes.imshow(array, extent=(x, x + self.panel, y + height, y), aspect="auto", **options)

    def _frame(self, x: float, y: float, height: float, color: str) -> Artist:
        right, bottom = x + self.panel, y + height
        return self.axes.plot([x, right, right, x, x], [y, y, bottom, bottom, y], color=color, lw=0.4)[0]

    def _place(self, x: float, y: float, ha: str = "center") -> Text:
        """An empty place for letters."""
        self._texts.append(self._write(x, y, "", self.size, ha))
        return self._texts[-1]

    def _write(self, x: float, y: float, text: str, size: float, ha: str = "center", va: str = "top") -> Text:
        return self.axes.text(
            x,
            y,
            _literally(text),
            fontsize=size,
            ha=ha,
            va=va,
            linespacing=1.1,  # pyright: ignore[reportArgumentType]
        )

    def _say(self, place: Text, text: str, size: float) -> None:
        place.set_text(_literally(text))
        place.set_fontsize(size)


class _SheetFigure(Picture):
    """The figure of a sheet, which learns only when it is drawn how many dots it has."""

    def __init__(self, sheet: Sheet, **options: Any) -> None:
        super().__init__(**options)
        self._sheet = sheet

    def draw(self, renderer: Any) -> None:
        self._sheet.sharpen(self.dpi)
        super().draw(renderer)


def _literally(text: str) -> str:
    """A dollar is a dollar, and begins no formula."""
    return text.replace("$", r"\$")
