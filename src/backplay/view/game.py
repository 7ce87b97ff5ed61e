"""The game graph of a small network: states of both players, policies on the edges, the walk's share of each.

The paper's worked examples (fig:Stopping-Game-illustration, fig:Routing-Game-illustration) and its picture of the
trajectory distribution (fig:game-trajectory-distribution) are made by this.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Wedge

from backplay.errors import InputError
from backplay.view.canvas import COLUMN, Picture, breadth, check_width, fitted, letters, picture
from backplay.view.colours import MINUS, PLUS, number, share
from backplay.view.images import check_sample
from backplay.view.play import check_play
from backplay.view.states import PLAYERS, States, Unit, states

_COLOURS = {1: PLUS, -1: MINUS}
_FAINT, _STOPPED = "0.88", "0.78"
Point = tuple[float, float]


@picture
def game(play: Any, *, sample: int = 0, around: tuple[str, int] | None = None, width: float | None = None) -> Figure:
    """A network of a few units as the board of its game; the walk runs from the output at the right to the input.

    A unit is a circle, its upper half the state in the turn of `+`, the lower that of `−`: the more walks come by, the
    darker; grey where the player stops. Lines are as wide as the share of walks on them, numbers on them are the
    probabilities that players and chance give to a move. `around=("2", 1)` adds the local game of unit 1 of node "2":
    what each choice pays there.

        bp.view.game(bp.StoppingGame(model).play(x), around=("2", 1))
    """
    check_play(play, "game")
    check_sample(sample, len(play.value), "the play")
    if around is not None and (not isinstance(around, tuple) or len(around) != 2 or not isinstance(around[1], int)):
        raise InputError(f"around={around!r}: give the name of a node and the number of a unit, around=('fc', 0).")
    found = states(play, sample)
    centre = None if around is None else found.unit(str(around[0]), around[1])
    width = check_width(width, max(COLUMN, 1.15 * len(found.columns)) * (1 if centre is None else 1.75))
    whole = width if centre is None else 0.55 * width
    size = letters(COLUMN if whole < 4.5 else whole)
    board = Sheet(found, whole, size)
    local = None
    if centre is not None:
        from backplay.view.subgame import Subgame

        local = Subgame(found, centre, width - whole, size)
    height = max(board.height, local.height if local else 0.0)
    figure = Picture(figsize=(width, height))
    board.draw(_inches(figure, 0.0, whole, width, height, board.height))
    if local is not None:
        local.draw(_inches(figure, whole, width - whole, width, height, local.height))
    return figure


def _inches(figure: Figure, x: float, across: float, width: float, height: float, down: float) -> Axes:
    """Axes whose data are inches from their upper left corner, in the middle of the figure's height."""
    top = (height - down) / 2
    axes = figure.add_axes((x / width, 1 - (top + down) / height, across / width, down / height))
    axes.set(xlim=(0, across), ylim=(down, 0))
    axes.set_axis_off()
    return axes


class Labels:
    """Numbers on lines: each is set where it covers no other and no unit."""

    def __init__(self, axes: Axes, size: float) -> None:
        self.axes, self.size = axes, size
        self.taken: list[tuple[float, float, float, float]] = []

    def take(self, x: float, y: float, width: float, height: float) -> None:
        self.taken.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))

    def on_line(self, text: str, start: Point, end: Point, colour: str) -> None:
        """As near to the start of the line as there is room."""
        size = self.size * 0.85
        width, height = breadth(text, size) + 0.02, size * 1.0 / 72
        places = [(0.3 + 0.05 * k) for k in range(10)] + [0.25, 0.2]
        spots = [(start[0] + t * (end[0] - start[0]), start[1] + t * (end[1] - start[1])) for t in places]
        x, y = min(spots, key=lambda spot: (self._covered(*spot, width, height), abs(spots.index(spot))))
        self.take(x, y, width, height)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85}
        self.axes.text(x, y, text, fontsize=size, color=colour, ha="center", va="center", bbox=box, zorder=5)

    def _covered(self, x: float, y: float, width: float, height: float) -> float:
        """How much of a label would lie on others."""
        left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        return sum(
            max(0.0, min(right, r) - max(left, a)) * max(0.0, min(bottom, b) - max(top, t)) for a, t, r, b in self.taken
        )


class Sheet:
    """The whole graph."""

    def __init__(self, found: States, width: float, size: float) -> None:
        self.found, self.width, self.size = found, width, size
        self.line = size * 1.25 / 72
        most = max(column.size for column in found.columns)
        self.radius = min(0.17, max(0.07, 0.9 / most)) * (size / 7)
        self.step = 2 * self.radius + 2.2 * self.line
        self.top = 2.4 * self.line
        self.height = self.top + most * self.step + 1.9 * self.line
        self.left = self.radius + 0.13 + max(breadth(text, size * 0.9) for text in self._inputs().values())
        self.right = self.radius + 0.1 + breadth("value 00", size * 0.9) / 2

    def _inputs(self) -> dict[Unit, str]:
        """What stands beside the input's units: their value and their part of the map."""
        heat = self.found.play.maps()
        found: dict[Unit, str] = {}
        for k, column in enumerate(self.found.columns):
            if column.node in self.found.play.network.inputs:
                place = self.found.play.network.inputs.index(column.node)  # pyright: ignore[reportArgumentType]
                part = heat[place][self.found.sample].flatten().tolist()
                for i in range(column.size):
                    unit = Unit(k, i)
                    found[unit] = f"x = {number(self.found.value(unit))}\nmap {number(part[i])}"
        return found

    def place(self, unit: Unit) -> Point:
        columns = len(self.found.columns)
        across = (self.width - self.left - self.right) / max(1, columns - 1)
        count = self.found.columns[unit.column].size
        middle = self.top + (self.height - self.top - 1.9 * self.line) / 2
        return self.left + unit.column * across, middle + (unit.index - (count - 1) / 2) * self.step

    def draw(self, axes: Axes) -> None:
        found, labels = self.found, Labels(axes, self.size)
        units = [Unit(k, i) for k, column in enumerate(found.columns) for i in range(column.size)]
        for unit in units:
            labels.take(*self.place(unit), 2.3 * self.radius, 2.3 * self.radius)
        self._draw_moves(axes, labels)
        inputs = self._inputs()
        for unit in units:
            x, y = self.place(unit)
            draw_unit(axes, found, unit, (x, y), self.radius)
            if unit in inputs:
                axes.text(x - self.radius - 0.05, y, inputs[unit], fontsize=self.size * 0.9, ha="right", va="center")
            else:
                axes.text(
                    x,
                    y - self.radius - 0.03,
                    number(found.value(unit)),
                    fontsize=self.size * 0.9,
                    ha="center",
                    va="bottom",
                    zorder=6,
                )
            if found.ends(unit) > 1e-9:
                label = f"† {share(found.ends(unit))}"
                axes.text(
                    x,
                    y + self.radius + 0.02,
                    label,
                    fontsize=self.size * 0.85,
                    color="0.4",
                    ha="center",
                    va="top",
                    zorder=6,
                )
        for k, column in enumerate(found.columns):
            name = fitted(column.name, (self.width - self.left) / len(found.columns), self.size, 2)[0]
            axes.text(self.place(Unit(k, 0))[0], 0.06, name, fontsize=self.size, ha="center", va="top", color="0.35")

        legend, small = fitted(
            "upper half: turn of +, lower half: turn of −, grey: stops", self.width - 0.1, self.size * 0.85, 1
        )
        axes.text(self.width / 2, self.height - 0.04, legend, fontsize=small, ha="center", va="bottom", color="0.35")

    def _draw_moves(self, axes: Axes, labels: Labels) -> None:
        drawn: list[tuple[float, str, Point, Point, int]] = []
        for move in self.found.moves:
            if move.kept or move.switched:
                axes.plot(
                    *zip(self.place(move.source), self.place(move.target), strict=True), color=_FAINT, lw=0.5, zorder=0
                )
            for before in PLAYERS:
                for after in PLAYERS:
                    chance = move.chance(before, after)
                    mass = self.found.mass.get((move.source, before), 0.0) * self.found.going_on[move.source] * chance
                    if mass > 1e-9:
                        start, end = self._edge(move.source, before, -1), self._edge(move.target, after, 1)
                        drawn.append((mass, fraction(chance), start, end, before))
        drawn.sort(key=lambda d: -d[0])
        for mass, _, start, end, player in drawn:
            arrow(axes, start, end, _COLOURS[player], 0.5 + 3.0 * mass * self.size / 7, self.radius)
        for _, label, start, end, player in drawn:
            labels.on_line(label, start, end, _COLOURS[player])

    def _edge(self, unit: Unit, player: int, side: int) -> Point:
        """Where lines leave or reach the half of a unit."""
        x, y = self.place(unit)
        return x + side * 0.9 * self.radius, y - player * 0.42 * self.radius


def draw_unit(axes: Axes, found: States, unit: Unit, at: Point, radius: float, only: int = 0) -> None:
    """Both halves; those where the player stops are grey. `only` draws one of them full and leaves the other blank."""
    for player, angles in ((1, (0, 180)), (-1, (180, 360))):
        mass = found.mass.get((unit, player), 0.0)
        colour, alpha = _COLOURS[player], 0.12 + 0.88 * mass**0.5 if mass else 0.0
        if only:
            alpha = 0.85 if player == only else 0.0
        if found.going_on[unit] == 0 and (only == player if only else mass):
            colour, alpha = _STOPPED, 1.0
        face = Wedge(
            at, radius, 360 - angles[1], 360 - angles[0], facecolor=colour, alpha=alpha, edgecolor="none", zorder=3
        )
        axes.add_patch(face)
    axes.add_patch(Circle(at, radius, facecolor="none", edgecolor="0.25", lw=0.7, zorder=4))
    axes.plot([at[0] - radius, at[0] + radius], [at[1], at[1]], color="0.25", lw=0.5, zorder=4)


def arrow(axes: Axes, start: Point, end: Point, colour: str, width: float, radius: float, **options: Any) -> None:
    """A line with a small head."""
    style = f"-|>,head_length={2.4 + 0.3 * width},head_width={1.0 + 0.35 * width}"
    patch = FancyArrowPatch(
        start,
        end,
        arrowstyle=style,
        color=colour,
        lw=width,
        shrinkA=0,
        shrinkB=0,
        mutation_scale=1,
        alpha=options.pop("alpha", 0.75),
        zorder=options.pop("zorder", 2),
        capstyle="butt",
        joinstyle="miter",
        **options,
    )
    axes.add_patch(patch)


def fraction(value: float) -> str:
    """`7/10` where a probability is a simple fraction, else two digits."""
    simple = Fraction(value).limit_denominator(36)
    if abs(float(simple) - value) < 1e-6 and simple > 0:
        return str(simple)
    return number(value)
