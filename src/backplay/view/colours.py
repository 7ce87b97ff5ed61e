"""Colours that everybody can tell apart, and the scales that say what they mean.

Red speaks for the class and belongs to the player `+`, blue speaks against it and belongs to `−`; white is zero. What
has no sign goes from white to dark purple. All are ColorBrewer palettes that colour-blind readers can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from backplay.view.canvas import Tiles, breadth

Plane = NDArray[np.float64]  # (H, W)

PLUS, MINUS, GREY, PURPLE = "#b2182b", "#2166ac", "#8c8c8c", "#54278f"
QUANTILE = 0.995  # of the absolute values: a few pixels may be far beyond all the others


@dataclass(frozen=True)
class Scale:
    """What colours stand for: from `−reach` to `reach`, or from 0 where nothing is negative, times `10 ** power`."""

    reach: float
    signed: bool = True
    clipped: bool = False  # whether some values lie beyond
    name: str = ""  # of the palette, where it is not the usual one
    power: int = 0

    @property
    def palette(self) -> Colormap:
        found = colormaps[self.name or ("RdBu_r" if self.signed else "Purples")]
        return found.with_extremes(bad="0.75")  # NaN

    @property
    def limits(self) -> Normalize:
        return Normalize(-self.reach if self.signed else 0.0, self.reach)

    def draw(self, axes: Axes, plane: Plane, **options: Any) -> AxesImage:
        """The plane in this scale's colours."""
        shown = np.where(np.isfinite(plane), plane, np.nan)
        return axes.imshow(shown, cmap=self.palette, norm=self.limits, **options)

    def over(self, axes: Axes, plane: Plane, **options: Any) -> AxesImage:
        """The plane as a veil over what is drawn already: nothing where it is 0, opaque where it is large."""
        depth = np.abs(np.nan_to_num(plane)) / self.reach
        return self.draw(axes, plane, alpha=np.clip(depth, 0, 1) ** 0.7 * 0.75, **options)

    def bar(self, tiles: Tiles, image: AxesImage, x: float, y: float, width: float) -> Axes:
        """A horizontal bar under the panels with its numbers: both ends and 0, or `±` the end where room is short."""
        axes = tiles.box(x, y, width, bar_height(tiles.size))
        extend = "neither" if not self.clipped else "both" if self.signed else "max"
        bar = tiles.figure.colorbar(
            image, cax=axes, orientation="horizontal", extend=extend, extendfrac=_tip(tiles, width)
        )
        bar.outline.set_linewidth(0.4)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        size, reach = tiles.size * 0.88, number(self.reach, self.power)
        ends = [f"−{reach}", "0", reach] if self.signed else ["0", reach]
        if 2 * max(breadth(end, size) for end in ends) + 0.3 <= (1 - 2 * _tip(tiles, width)) * width:
            bar.set_ticks([-self.reach, 0, self.reach] if self.signed else [0, self.reach], labels=ends)
            sides: tuple[Any, ...] = ("left", "center", "right") if self.signed else ("left", "right")
            for text, side in zip(axes.get_xticklabels(), sides, strict=True):
                text.set_horizontalalignment(side)
        else:
            middle = f"±{reach}" if self.signed else f"0…{reach}"
            size = max(4.5, min(size, size * width * 1.1 / breadth(middle, size)))
            bar.set_ticks([0 if self.signed else self.reach / 2], labels=[middle])
        axes.tick_params(labelsize=size, length=0, pad=1.5, labelcolor="0.1")
        return axes


def _tip(tiles: Tiles, width: float) -> float:
    """Length of the pointed ends that say that some values lie beyond, as a share of the bar."""
    return min(0.08, 0.8 * bar_height(tiles.size) / width)


def bar_height(size: float) -> float:
    """Inches."""
    return 0.009 * size


def bar_room(size: float) -> float:
    """Inches that a bar and its numbers take."""
    return bar_height(size) + size / 72 * 1.35 + 0.04


def scale_of(planes: Iterable[Plane], name: str = "", signed: bool | None = None, power: int = 0) -> Scale:
    """One scale for some planes: zero-centred as soon as anything is negative, dark at the 99.5 % quantile."""
    parts = [p[np.isfinite(p)].ravel() for p in planes]
    values = np.concatenate(parts) if parts else np.zeros(0)
    sizes = np.abs(values)
    largest = float(sizes.max(initial=0.0))
    reach = float(np.quantile(sizes, QUANTILE)) if len(sizes) else 0.0
    if reach < 0.05 * largest:  # a few elements hold nearly everything: show them, not the rest
        reach = largest
    negative = bool((values < 0).any()) if signed is None else signed
    return Scale(reach or 1.0, negative, clipped=largest > reach * (1 + 1e-9), name=name, power=power)


def number(value: float, power: int = 0) -> str:
    """A number in two or three digits, with `×10ᵏ` where it would be long."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = math.floor(math.log10(abs(value))) + power
    mantissa = value / 10 ** (exponent - power)
    if f"{abs(mantissa):.1f}" == "10.0":
        exponent, mantissa = exponent + 1, mantissa / 10
    if -3 <= exponent < 4:
        return _plain(f"{value * 10**power:.{max(0, 1 - exponent)}f}")
    return f"{_plain(f'{mantissa:.1f}')}e{exponent}".replace("-", "−")


def _plain(digits: str) -> str:
    """Without zeros that say nothing, with a minus sign that is one."""
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits).replace("-", "−")


def share(value: float) -> str:
    """A share of walks in per cent: never rounded to all or to nothing."""
    if value <= 0:
        return "0\u00a0%"
    if value >= 1:
        return "100\u00a0%"
    if value > 0.9995:
        return "> 99.9\u00a0%"
    percent = 100 * value
    digits = 0 if 10 <= percent < 99.5 else 1
    return f"{percent:.{digits}f}\u00a0%" if percent >= 0.1 else f"{number(percent)}\u00a0%"
