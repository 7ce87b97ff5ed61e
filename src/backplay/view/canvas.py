"""The paper that pictures are drawn on: figures that notebooks show, letters that fit, tiles laid out in inches."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from backplay.entry import entry
from backplay.errors import InputError

P = ParamSpec("P")

COLUMN = 3.3  # inches: one column of a paper
WIDEST = 40.0  # inches
DOTS = 144  # an inch, where pictures are written as PNG files
SMALLEST = 5.0  # points: letters below this cannot be read
POINT = 1 / 72  # inches

# what a user has set for other plots must not turn these pictures black or their letters tiny
STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "0.3",
    "axes.labelcolor": "black",
    "axes.grid": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "text.color": "black",
    "text.usetex": False,
    "xtick.color": "0.2",
    "ytick.color": "0.2",
    "lines.linewidth": 1.2,
    "image.interpolation": "auto",  # nearest where pixels are enlarged, smoothed where there are too many of them
    "image.origin": "upper",
    "image.aspect": "equal",
    "patch.linewidth": 0.6,
}


class Picture(Figure):
    """A figure that belongs to no window; notebooks show it whether pyplot has been imported or not."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure, dpi: float = DOTS) -> bytes:
    """The figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def picture(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A public drawing function: the style is set around it, and every error leaves as a `BackplayError`."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return entry(styled)


def check_width(width: float | None, natural: float) -> float:
    """The width of a figure in inches, `natural` where none was asked for."""
    if width is None:
        return natural
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 1 <= width <= WIDEST:
        raise InputError(f"width={width!r}: a figure's width is a number of inches from 1 to {WIDEST:g}.")
    return float(width)


def letters(width: float) -> float:
    """Size of the letters, in points, for a figure of some width: 7 in a paper's column, 14 on a slide."""
    return min(14.0, max(6.5, 7.0 + 0.75 * (width - COLUMN)))


@functools.lru_cache(4096)  # the same titles stand over the maps of many photographs
def _ems(text: str, family: tuple[str, ...]) -> float:
    """How wide the widest line of a text is, in sizes of its letters."""
    renderer, prop = RendererAgg(1, 1, 72), FontProperties(family=list(family), size=100)
    return max(renderer.get_text_width_height_descent(line, prop, False)[0] for line in text.split("\n")) / 100


def breadth(text: str, size: float) -> float:
    """How wide the widest line of a text is, in inches."""
    return _ems(text, tuple(matplotlib.rcParams["font.family"])) * size * POINT if text.strip() else 0.0


def fitted(text: str, room: float, size: float, lines: int = 2) -> tuple[str, float]:
    """The text broken into at most `lines` lines, and letters small enough, to fit `room` inches."""
    best = text, breadth(text, size)
    if best[1] > room and lines > 1:
        broken = [(b, breadth(b, size)) for b in _breaks(text, lines)]
        best = min([best, *broken], key=lambda option: option[1])
    small = max(SMALLEST, min(size, size * room / best[1])) if best[1] else size
    return _cut(best[0], room, small), small


def _breaks(text: str, lines: int) -> list[str]:
    """The text with line ends behind some of its spaces, underscores and hyphens."""
    found: list[str] = []
    for k, letter in enumerate(text):
        if letter in " _-" and 0 < k < len(text) - 1:
            head, tail = text[: k + 1].rstrip(" "), text[k + 1 :]
            tails = [tail, *(_breaks(tail, lines - 1) if lines > 2 else [])]
            found += [f"{head}\n{rest}" for rest in tails]
    return found


def _cut(text: str, room: float, size: float) -> str:
    """What does not fit even so ends in an ellipsis."""
    lines: list[str] = []
    for line in text.split("\n"):
        cut = line
        while len(cut) > 2 and breadth(cut, size) > 1.02 * room:
            cut = f"{cut[:-2]}…"
        lines.append(cut)
    return "\n".join(lines)


def quiet(axes: Axes, size: float) -> Axes:
    """Thin ticks, letters of one size."""
    axes.tick_params(labelsize=size, width=0.6, length=2.5, colors="0.2", labelcolor="0.1", pad=2)
    return axes


class Tiles:
    """Panels in rows and columns, measured in inches: every panel has the shape of what it shows, no room is lost."""

    def __init__(
        self,
        ratios: Sequence[float],  # height over width of the panels of each row
        columns: int,
        width: float,
        *,
        left: float = 0.02,
        right: float = 0.02,
        top: float = 0.02,
        bottom: float = 0.02,
        gap: float = 0.05,
        between: float | None = None,  # rows, where that is more than the gap between columns
        lead: float = 0.0,  # more room behind the first column
        widest: float | None = None,  # no panel is wider
    ) -> None:
        self.size = letters(width)
        self.gap, self.between, self.lead = gap, gap if between is None else between, lead
        room = (width - left - right - lead - gap * (columns - 1)) / columns
        self.panel = room if widest is None else min(room, widest)
        if self.panel < 0.12:
            raise InputError(
                f"{columns} panels do not fit into {width:g} inches; give width={0.4 * columns + left:.1f} or more."
            )
        self.heights = [self.panel * ratio for ratio in ratios]
        used = left + right + lead + self.panel * columns + gap * (columns - 1)
        self.left = left + (width - used) / 2
        self.top, self.width = top, width
        self.height = top + sum(self.heights) + self.between * (len(ratios) - 1) + bottom
        self.figure = Picture(figsize=(width, self.height))

    def tile(self, row: int, column: int) -> Axes:
        """The panel in a row and column, without ticks or frame."""
        axes = self.box(self.x(column), self.y(row), self.panel, self.heights[row])
        axes.set_axis_off()
        return axes

    def x(self, column: int) -> float:
        return self.left + column * (self.panel + self.gap) + (self.lead if column else 0.0)

    def y(self, row: int) -> float:
        return self.top + sum(self.heights[:row]) + row * self.between

    @property
    def foot(self) -> float:
        """Where the last row ends, from above."""
        return self.y(len(self.heights) - 1) + self.heights[-1]

    def box(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes anywhere: `x` from the left, `y` from above."""
        total = self.height
        return self.figure.add_axes((x / self.width, 1 - (y + height) / total, width / self.width, height / total))

    def write(self, x: float, y: float, text: str, **options: Any) -> None:
        """Letters anywhere."""
        options.setdefault("fontsize", self.size)
        self.figure.text(x / self.width, 1 - y / self.height, text, **options)

    def titles(self, row: int, names: Mapping[int, str], lines: int = 2) -> None:
        """Titles over the panels of a row, by column: letters of one size, small enough for the longest of them."""
        room = self.panel + min(0.5 * self.gap, 0.04)
        size = min(fitted(name, room, self.size, lines)[1] for name in names.values())
        for column, name in names.items():
            x = self.x(column) + self.panel / 2
            shown = fitted(name, room, size, lines)[0]
            self.write(x, self.y(row) - 0.03, shown, ha="center", va="bottom", fontsize=size, linespacing=1.05)

    def name_row(self, row: int, text: str) -> None:
        """A name at the left of a row, turned to read upward; as many lines as the text has."""
        parts = [fitted(line, self.heights[row] * 1.02, self.size, 1) for line in text.split("\n")]
        size = min(s for _, s in parts)
        y = self.y(row) + self.heights[row] / 2
        shown = "\n".join(line for line, _ in parts)
        self.write(self.x(0) - 0.04, y, shown, ha="right", va="center", rotation=90, fontsize=size, linespacing=1.1)
