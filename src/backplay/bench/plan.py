"""The protocol: which cells a run needs, stage by stage (sec:experiments).

Stage 1 plays the grid of every method on the validation split; the single winner of each method, by the sum of its
ranks in Attribution Localisation, Pointing Game and Top-k Intersection, goes on to stage 2, the test split. Points that
are frozen go there without selection. The Routing anchor (α, β, ε, τ) = (2, 1, 0.5, 1) is always there, and beside the
equivariant Routing Game its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import backplay as bp
from backplay.bench.config import Config, Entry, Table
from backplay.bench.metrics import LOCALISATION, METRICS
from backplay.bench.rows import Job, TableCell, canonical
from backplay.bench.sources import Contender, Params

ANCHOR = "rg"  # at its defaults
ANCHORED = ("rg", "rg_eq")  # methods whose anchor stands beside their winner
ON_VALIDATION = "validation"
TOGETHER = 8  # samples that are worked off cell by cell

Means = Mapping[TableCell, Mapping[str, float]]  # of every metric, over the samples of a cell


@dataclass(frozen=True)
class Line:
    """A line of a table: what is shown, and which cell holds its values."""

    method: str
    params: Params
    cell: TableCell
    toggled: TableCell | None = None  # of an ablation: the same with the switch on
    anchor: bool = False


@dataclass(frozen=True)
class Fitting:
    """A network of the run with the methods that fit it; `refused` says why the others do not."""

    network: Contender
    fits: Mapping[str, bp.MethodInfo]
    refused: Mapping[str, str]
    attention: bool  # λ_sm is for attention: points that set it are left out elsewhere

    def points(self, method: str, grid: Iterable[Params]) -> list[Params]:
        """The points of a grid that are for this network."""
        return [point for point in grid if self.attention or not point.get("attention_risk")]


class Plan:
    """What a config asks for on one network."""

    def __init__(self, config: Config, fitting: Fitting) -> None:
        self.config, self.fitting = config, fitting

    def cell(self, split: str, method: str, params: Params) -> TableCell:
        """Parameters at their defaults are left out, so that the anchor is one cell however it is written."""
        defaults = bp.methods()[method].params
        given = {k: v for k, v in params.items() if v != defaults[k].default}
        return TableCell(self.fitting.network.name, self.config.data["name"], split, method, canonical(given))

    def first(self) -> list[TableCell]:
        """Stage 1: every grid that a winner is chosen from; nothing where another run has chosen."""
        if self.config.winners is not None:
            return []
        found = [cell for table in self.config.tables if table.kind == "main" for cell in self._grids(table)]
        return list(dict.fromkeys(found))

    def second(self, means: Means) -> list[TableCell]:
        """Stage 2: every cell that a table shows."""
        lines = [line for table in self.config.tables for line in self.lines(table, means)]
        shown = [cell for line in lines for cell in (line.cell, line.toggled) if cell is not None]
        return list(dict.fromkeys(shown))

    def lines(self, table: Table, means: Means) -> list[Line]:
        """The lines of a table, in the order of the paper's blocks; the anchor comes first in its block."""
        found = [line for entry in self._fitting(table) for line in self._of(table, entry, means)]
        if not any(line.anchor and line.method == ANCHOR for line in found):
            found.insert(0, self._anchor(table, ANCHOR))
        return found

    def _of(self, table: Table, entry: Entry, means: Means) -> list[Line]:
        points = self.fitting.points(entry.method, (*entry.frozen, *(entry.grid if table.kind == "every" else ())))
        if table.kind == "main" and entry.grid:
            winner = self.winner(table, entry, means)
            points += [] if winner is None or winner in points else [winner]
        lines = [self._line(table, entry.method, point) for point in points]
        if entry.method in ANCHORED and table.kind in ("main", "every"):
            anchor = self._anchor(table, entry.method)
            lines = [anchor, *(line for line in lines if line.cell != anchor.cell)]
        return lines

    def _line(self, table: Table, method: str, params: Params) -> Line:
        cell = self.cell(table.split, method, params)
        toggled = None
        if table.kind == "ablation":
            known = bp.methods()[method].params
            switched = {k: v for k, v in table.toggle.items() if k in known}
            toggled = self.cell(table.split, method, {**params, **switched})
        anchor = method in ANCHORED and cell.params == "{}"
        return Line(method, params, cell, toggled, anchor)

    def _anchor(self, table: Table, method: str) -> Line:
        return self._line(table, method, {})

    def winner(self, table: Table, entry: Entry, means: Means) -> Params | None:
        """The point with the best rank-sum on validation; None if none of them has been measured."""
        points = self.fitting.points(entry.method, entry.grid)
        cells = [self.cell(ON_VALIDATION, entry.method, point) for point in points]
        measured = [(p, means[c]) for p, c in zip(points, cells, strict=True) if c in means]
        if not measured:
            return None
        best = best_by_ranks([[m.get(name, np.nan) for name in LOCALISATION] for _, m in measured])
        return measured[best][0]

    def _grids(self, table: Table) -> list[TableCell]:
        return [
            self.cell(ON_VALIDATION, entry.method, point)
            for entry in self._fitting(table)
            for point in self.fitting.points(entry.method, entry.grid)
        ]

    def _fitting(self, table: Table) -> list[Entry]:
        return [entry for entry in table.entries if entry.method in self.fitting.fits]

    def jobs(self, cells: Iterable[TableCell], sizes: Mapping[str, int]) -> list[Job]:
        """Every sample of every cell, some samples of all cells before the next ones.

        So a worker keeps a method for a while, and a run that is stopped has every row of its tables, on the same first
        samples.
        """
        cells = list(cells)
        return [
            Job(cell, index, self.config.wanted(cell.split, index))
            for begin in range(0, max((sizes[cell.split] for cell in cells), default=0), TOGETHER)
            for cell in cells
            for index in range(begin, min(begin + TOGETHER, sizes[cell.split]))
        ]


def best_by_ranks(scores: Sequence[Sequence[float]]) -> int:
    """The row whose ranks, 1 for the highest value of a column and the mean rank for equal ones, have the least sum.

    NaN ranks last. Of equal sums the row with the higher first column wins, then the earlier one.
    """
    table = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-np.inf)
    sums = np.stack([_ranks(column) for column in table.T]).sum(0)
    return min(range(len(table)), key=lambda row: (sums[row], -table[row, 0], row))


def _ranks(column: np.ndarray) -> np.ndarray:
    """Ranks from 1 for the highest; equal values share the mean of theirs."""
    above = (column[None, :] > column[:, None]).sum(1)
    equal = (column[None, :] == column[:, None]).sum(1)
    return above + (equal + 1) / 2


def fitting(network: Contender, captured: bp.Network) -> Fitting:
    """Which methods fit a network."""
    refusals = {name: info.refusal(captured) for name, info in bp.methods().items()}
    fits = {name: info for name, info in bp.methods().items() if refusals[name] is None}
    refused = {name: why for name, why in refusals.items() if why is not None}
    attention = any("attention" in bp.methods()[name].needs for name in fits)
    return Fitting(network, fits, refused, attention)


def means_of(rows: Iterable[tuple[TableCell, str, float | None]]) -> dict[TableCell, dict[str, float]]:
    """The mean of every metric in every cell; skipped samples do not count.

    Sums are exact, so that two cells with the same values tie in whatever order their rows were written: the winner of
    a grid must not hang on a last digit.
    """
    totals: dict[TableCell, dict[str, list[float]]] = {}
    for cell, metric, value in rows:
        if value is not None and metric in METRICS:
            totals.setdefault(cell, {}).setdefault(metric, []).append(value)
    return {cell: {m: math.fsum(v) / len(v) for m, v in found.items()} for cell, found in totals.items()}
