"""What a run has measured, out of its folder: values by network, experiment, cell and metric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backplay.bench.rows import ERROR, SECONDS, TableCell
from backplay.bench.store import read
from backplay.sanity.baselines import PAIRS
from backplay.sanity.config import SanityConfig, Trial, load


@dataclass(frozen=True)
class Spread:
    """The values of a cell, taken together."""

    mean: float
    std: float  # over the samples
    count: int


class Results:
    """The rows of a run, found by what they are about."""

    def __init__(self, folder: str | Path) -> None:
        table = read(folder)  # says so where there is no run
        self.config: SanityConfig = load(Path(folder) / "config.yaml")
        self._values: dict[TableCell, dict[str, dict[int, float]]] = {}
        self.failed: dict[TableCell, int] = {}
        names = ("model", "data", "split", "method", "params", "index", "metric", "value")
        for *cell, index, metric, value in zip(*(table.column(n).to_pylist() for n in names), strict=True):
            key = TableCell(*cell)
            if metric == ERROR:
                self.failed[key] = self.failed.get(key, 0) + 1
            elif metric != SECONDS and value is not None:
                self._values.setdefault(key, {}).setdefault(metric, {})[index] = value

    def trials(self, *kinds: str) -> list[Trial]:
        """The experiments of some kinds that have rows."""
        known = {cell.method for cell in self._values}
        return [trial for trial in self.config.trials if trial.kind in kinds and trial.name in known]

    def networks(self, trial: Trial) -> list[str]:
        """The networks that an experiment has rows of."""
        known = {cell.model for cell in self._values if cell.method == trial.name}
        return [network.name for network in self.config.networks if network.name in known]

    def cells(self, trial: Trial, network: str) -> list[TableCell]:
        """The cells of an experiment on a network, in the order in which they are shown."""
        found = [cell for cell in self._values if cell.method == trial.name and cell.model == network]
        return sorted(found, key=_place)

    def samples(self, cell: TableCell, metric: str) -> dict[int, float]:
        return self._values.get(cell, {}).get(metric, {})

    def spread(self, cells: TableCell | Iterable[TableCell], metric: str) -> Spread | None:
        """Mean and deviation over the samples; None where nothing was measured."""
        several = [cells] if isinstance(cells, TableCell) else list(cells)
        values = np.array([v for cell in several for v in self.samples(cell, metric).values()])
        return Spread(float(values.mean()), float(values.std()), len(values)) if len(values) else None

    def measured(self, trial: Trial, readout: str) -> bool:
        """Whether an experiment has rows of a readout."""
        names = {f"{game}.{readout}" for game in trial.games}
        return any(cell.method == trial.name and not names.isdisjoint(v) for cell, v in self._values.items())

    def notes(self, trial: Trial) -> list[str]:
        """What failed."""
        failed = [(c, n) for c, n in self.failed.items() if c.method == trial.name]
        return [f"{cell.model}, {label_of(cell)}: {count} samples failed" for cell, count in sorted(failed)]


def _place(cell: TableCell) -> tuple[Any, ...]:
    given = cell.given
    pair = PAIRS.index(given["pair"]) if given.get("pair") in PAIRS else 0
    return given.get("step", 0), given.get("sigma", 0.0), pair, given.get("other", "")


def label_of(cell: TableCell) -> str:
    """A cell in words: its step, its σ, its kind of pair or the other network."""
    given = cell.given
    match given:
        case {"step": 0}:
            return "0 nothing"
        case {"step": step, "layer": layer}:
            return f"{step} {layer}"
        case {"sigma": sigma}:
            return f"σ = {sigma:g}"
        case {"pair": pair}:
            return str(pair)
        case {"other": other}:
            return str(other)
        case _:
            return "both random"
