"""The local game around one unit: what the player in turn may do there, and what it pays."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes

from backplay.network.nodes import Input
from backplay.values.decomposition import decompose
from backplay.view.canvas import breadth, fitted
from backplay.view.colours import MINUS, PLUS, number
from backplay.view.game import Labels, Point, arrow, draw_unit, fraction
from backplay.view.states import PLAYERS, Move, States, Unit, weights

_SIGN = {1: "⁺", -1: "⁻"}
_COLOURS = {1: PLUS, -1: MINUS}


class Subgame:
    """One state at the right, `†` below it, the states that it may move to at the left; lines carry policies.

    In the Stopping Game the numbers at the left are the payoffs `R±` of going on from there, and `V`, their difference
    for the player in turn: who cannot win stops. In the Routing Game chance first chooses a stream, then the player a
    predecessor, each with its payoff `log |w|` and its value `log a`.
    """

    def __init__(self, found: States, centre: Unit, width: float, size: float) -> None:
        self.found, self.centre, self.width, self.size = found, centre, width, size
        self.routing = hasattr(found.play.game.modes, "epsilon")
        self.line = size * 1.25 / 72
        self.player = max(PLAYERS, key=lambda q: (found.mass.get((centre, q), 0.0), q))
        self.moves = [m for m in found.moves if m.source == centre]
        self.rows = self._rows()
        self.radius = 0.13 * size / 7
        self.step = max(2 * self.radius + 0.8 * self.line, (4.2 if not self.routing else 3.4) * self.line)
        self.top = 3.0 * self.line
        self.height = self.top + max(len(self.rows), 3) * self.step + 2.4 * self.line

    def _rows(self) -> list[tuple[Move, int, int]]:
        """(move, stream, player afterwards) of each state that can be reached, streams together."""
        weight = weights(self.found, self.centre)
        rows: list[tuple[Move, int, int]] = []
        for stream in PLAYERS:
            for move in self.moves:
                linked = weight is not None and self._sign(move.target, weight) == stream
                if (move.kept if stream > 0 else move.switched) > 0 or (self.routing and linked):
                    rows.append((move, stream, self.player * stream))
        return rows

    def _sign(self, unit: Unit, weight: list[float]) -> float:
        """Of a predecessor's contribution, or of its weight where it contributes nothing."""
        value = self.found.value(unit) or 1.0
        return math.copysign(1, weight[unit.index] * value) if weight[unit.index] else 0.0

    def draw(self, axes: Axes) -> None:
        focus = self.width - self.radius - 0.1, self.top + (self.height - self.top - 2.4 * self.line) / 2
        text = max(breadth(line, self.size * 0.85) for row in self.rows for line in self._told(*row).split("\n"))
        x = min(0.5 * self.width, text + 0.12) + self.radius
        spots = [(x, self.top + (k + 0.5) * self.step) for k in range(len(self.rows))]
        labels = Labels(axes, self.size)
        for spot in spots:
            labels.take(*spot, 2.2 * self.radius, 2.2 * self.radius)
        labels.take(*focus, 2.2 * self.radius, 2.2 * self.radius)
        if self.routing:
            self._draw_streams(axes, labels, focus, spots)
        else:
            self._draw_transitions(axes, labels, focus, spots)
        for spot, row in zip(spots, self.rows, strict=True):
            draw_unit(axes, self.found, row[0].target, spot, self.radius, only=row[2])
            axes.text(
                spot[0] - self.radius - 0.05,
                spot[1],
                self._told(*row),
                fontsize=self.size * 0.85,
                ha="right",
                va="center",
                linespacing=1.1,
            )
        draw_unit(axes, self.found, self.centre, focus, self.radius, only=self.player)
        self._draw_stop(axes, focus)
        column = self.found.columns[self.centre.column]
        title = f"unit {self.centre.index} of “{column.node.name}”, turn of {'+' if self.player > 0 else '−'}"
        shown, small = fitted(title, self.width - 0.1, self.size, 2)
        axes.text(self.width / 2, 0.06, shown, fontsize=small, ha="center", va="top", color="0.35")

    def _draw_stop(self, axes: Axes, focus: Point) -> None:
        """The choice between going on and †; the one that is made is drawn in full."""
        goes = self.found.going_on[self.centre] > 0
        stop = focus[0], self.height - 0.7 * self.line
        arrow(
            axes,
            (focus[0], focus[1] + self.radius),
            (stop[0], stop[1] - 0.6 * self.line),
            "0.75" if goes else "0.2",
            0.7,
            self.radius,
            linestyle=":" if goes else "-",
        )
        axes.text(
            *stop,
            "stop: †",
            fontsize=self.size * 0.9,
            color="0.55" if goes else "black",
            ha="right" if self.width - stop[0] < 0.3 else "center",
            va="center",
        )
        value = self.found.value(self.centre)
        pays = _log(max(value, 0.0)) if self.routing else number(self._payoff(self.centre, self.player)[2])
        axes.text(
            self.width - 0.04,
            focus[1] - self.radius - 0.04,
            f"V{_SIGN[self.player]} = {pays}",
            fontsize=self.size * 0.9,
            ha="right",
            va="bottom",
        )

    def _draw_transitions(self, axes: Axes, labels: Labels, focus: Point, spots: list[Point]) -> None:
        goes = self.found.going_on[self.centre] > 0
        for spot, (move, stream, _) in zip(spots, self.rows, strict=True):
            chance = move.kept if stream > 0 else move.switched
            start, end = (focus[0] - self.radius, focus[1]), (spot[0] + self.radius, spot[1])
            colour = _COLOURS[self.player] if goes else "0.7"
            arrow(axes, start, end, colour, 0.5 + 3 * chance, self.radius)
            labels.on_line(fraction(chance), start, end, colour)

    def _draw_streams(self, axes: Axes, labels: Labels, focus: Point, spots: list[Point]) -> None:
        """Chance chooses a stream (½ each, unless the other is empty), then the player in turn a predecessor."""
        x = (focus[0] + spots[0][0]) / 2 + 0.08 * self.width
        for stream, y in zip(PLAYERS, self._stream_heights(spots), strict=True):
            entry, after = self._entry(stream), self.player * stream
            text = f"turn of {'+' if after > 0 else '−'}\nstream {'+' if stream > 0 else '−'}"
            half = breadth(text, self.size * 0.85) / 2 + 0.04
            if entry:
                start, end = (focus[0] - self.radius, focus[1]), (x + half, y)
                arrow(axes, start, end, _COLOURS[self.player], 0.5 + 3 * entry, self.radius)
                labels.on_line(fraction(entry), start, end, _COLOURS[self.player])
            labels.take(x, y, 2 * half, 2 * self.line)
            box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": _COLOURS[after], "lw": 0.8}
            size = self.size * 0.85
            axes.text(x, y, text, fontsize=size, color=_COLOURS[after], ha="center", va="center", bbox=box, zorder=5)
            for spot, (move, of, _) in zip(spots, self.rows, strict=True):
                if of == stream:
                    chance = (move.kept if stream > 0 else move.switched) / entry if entry else 0.0
                    self._draw_choice(axes, labels, chance, (x - half, y), (spot[0] + self.radius, spot[1]), after)

    def _draw_choice(self, axes: Axes, labels: Labels, chance: float, start: Point, end: Point, player: int) -> None:
        """From a stream to a predecessor; dotted where nobody goes."""
        if chance:
            arrow(axes, start, end, _COLOURS[player], 0.5 + 3 * chance, self.radius)
            labels.on_line(fraction(chance), start, end, _COLOURS[player])
        else:
            axes.plot(*zip(start, end, strict=True), color="0.8", lw=0.7, ls=":", zorder=1)
            labels.on_line("0", start, end, "0.5")

    def _stream_heights(self, spots: list[Point]) -> tuple[float, float]:
        """Each stream stands before the middle of its predecessors, and off the other; an empty one at its end."""
        heights: list[float] = []
        for stream, empty in ((1, 0.3), (-1, max(len(self.rows), 3) - 0.3)):
            own = [spot[1] for spot, row in zip(spots, self.rows, strict=True) if row[1] == stream]
            heights.append(sum(own) / len(own) if own else self.top + empty * self.step)
        near = max(0.0, 3.4 * self.line - (heights[1] - heights[0])) / 2
        return heights[0] - near, heights[1] + near

    def _entry(self, stream: int) -> float:
        """Probability of a stream: a half, or all of it where an empty one is rerouted (S16)."""
        chances = {s: sum(m.kept if s > 0 else m.switched for m in self.moves) for s in PLAYERS}
        modes = self.found.play.game.modes.at(self.found.columns[self.centre.column].node)
        if getattr(modes, "empty_stream", "") == "reroute" and chances[-stream] == 0:
            return 1.0
        return 0.5

    def _told(self, move: Move, stream: int, after: int) -> str:
        """What stands at the left of a state."""
        if self.routing:
            weight, value = weights(self.found, self.centre), abs(self.found.value(move.target))
            if weight is not None and isinstance(self.found.columns[move.target.column].node, Input):
                return f"pays {_log(value * abs(weight[move.target.index]))}"
            paid = "" if weight is None else f"pays {_log(abs(weight[move.target.index]))}\n"
            return f"{paid}V{_SIGN[after]} = {_log(value)}"
        plus, minus, value = self._payoff(move.target, after)
        stops = ", stops" if self.found.going_on[move.target] == 0 else ""
        return f"R⁺ = {number(plus)}, R⁻ = {number(minus)}\nV{_SIGN[after]} = {number(value)}{stops}"

    def _payoff(self, unit: Unit, player: int) -> tuple[float, float, float]:
        """(R⁺, R⁻, V) of going on from the state of a unit in a player's turn (eq:adf-q-cont)."""
        play, node = self.found.play, self.found.columns[unit.column].node
        if isinstance(node, Input):
            value = self.found.value(unit)
            own, other = max(value, 0.0), max(-value, 0.0)
        else:
            pair: Any = decompose(play.network, play.inputs.pack([play.inputs[key] for key in play.network.keys]))[node]
            scale = math.exp(float(pair.log_scale[self.found.sample]))
            own, other = (float(t[self.found.sample].flatten()[unit.index]) * scale for t in (pair.plus, pair.minus))
        plus, minus = (own, other) if player > 0 else (other, own)
        return plus, minus, own - other


def _log(value: float) -> str:
    """`log 7`, `−∞` of nothing."""
    return f"log {number(value)}" if value > 0 else "−∞"
