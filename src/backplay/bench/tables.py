"""Tables as the paper lays them out: blocks of methods, the best of each column, intervals, and the anchor as rival."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import backplay as bp
from backplay.bench import config as configs
from backplay.bench.config import Config, Table
from backplay.bench.metrics import METRICS, Metric
from backplay.bench.plan import ANCHOR, Line, Plan, means_of
from backplay.bench.rows import ERROR, SECONDS, TableCell
from backplay.bench.runs import adopted, fittings
from backplay.bench.statistics import holm, interval, paired
from backplay.bench.store import read
from backplay.methods.registry import FAMILIES

SIGNIFICANT = 0.05

Samples = Mapping[str, Mapping[int, float]]  # by metric and sample


@dataclass
class Entry:
    """One number of a table."""

    value: float  # the mean; of the time per image, the median
    count: int = 0  # samples behind it
    low: float = math.nan  # 95 % bootstrap interval of the mean
    high: float = math.nan
    p: float = math.nan  # that the anchor is as good, paired by sample, adjusted for the rows of the column
    best: bool = False  # in its column
    best_in_block: bool = False
    toggled: float | None = None  # of an ablation: the same with the switch on

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANT


@dataclass
class Row:
    """One line: a method with its parameters."""

    title: str
    line: Line
    block: int
    entries: list[Entry] = field(default_factory=list[Entry])


@dataclass
class Finished:
    """A table with its numbers, ready to be written in any format."""

    title: str
    network: str
    data: str
    split: str
    varied: tuple[str, ...]
    columns: list[Metric]
    rows: list[Row]
    notes: list[str]  # what was skipped, what failed, which methods do not fit


def build(folder: str | Path) -> list[Finished]:
    """Every table of a run, from the rows that are there."""
    folder = Path(folder)
    rows = read(folder)
    config = configs.kept(folder)
    found = _samples(rows)
    means = means_of((c, m, v) for c, by in found.items() for m, values in by.items() for v in values.values())
    means |= adopted(config, folder)
    failures, skipped = _counted(rows)
    return [
        _finish(config, table, Plan(config, fit), means, found, failures, skipped)
        for fit in (fittings(config, folder) if (folder / "networks.json").exists() else [])
        for table in config.tables
    ]


def _samples(rows: Any) -> dict[TableCell, dict[str, dict[int, float]]]:
    found: dict[TableCell, dict[str, dict[int, float]]] = {}
    names = ("model", "data", "split", "method", "params", "index", "metric", "value")
    for *cell, index, metric, value in zip(*(rows.column(n).to_pylist() for n in names), strict=True):
        if value is not None:
            found.setdefault(TableCell(*cell), {}).setdefault(metric, {})[index] = value
    return found


def _counted(rows: Any) -> tuple[dict[TableCell, int], dict[TableCell, dict[str, int]]]:
    """Failed samples of each cell, and skipped values by reason."""
    failures: dict[TableCell, int] = {}
    skipped: dict[TableCell, dict[str, int]] = {}
    names = ("model", "data", "split", "method", "params", "metric", "value", "note")
    for *parts, metric, value, note in zip(*(rows.column(n).to_pylist() for n in names), strict=True):
        if value is None:
            cell = TableCell(*parts)
            if metric == ERROR:
                failures[cell] = failures.get(cell, 0) + 1
            else:
                counts = skipped.setdefault(cell, {})
                counts[f"{METRICS[metric].title}: {note}"] = counts.get(f"{METRICS[metric].title}: {note}", 0) + 1
    return failures, skipped


def _finish(
    config: Config,
    table: Table,
    plan: Plan,
    means: Mapping[TableCell, Mapping[str, float]],
    found: Mapping[TableCell, Samples],
    failures: Mapping[TableCell, int],
    skipped: Mapping[TableCell, Mapping[str, int]],
) -> Finished:
    columns = [METRICS[name] for name in (*table.columns, SECONDS)]
    lines = plan.lines(table, means)
    if table.top is not None:
        lines = _top(lines, means, table.top)
    lines.sort(key=lambda line: _block(line.method))  # stable: methods stay in the config's order
    rows = [Row(bp.methods()[line.method].title, line, _block(line.method)) for line in lines]
    rival = found.get(plan.cell(table.split, ANCHOR, {}), {})
    for row in rows:
        on = found.get(row.line.toggled, {}) if row.line.toggled is not None else None
        row.entries = [_entry(found.get(row.line.cell, {}), on, rival, column.name) for column in columns]
    for k, column in enumerate(columns):
        _mark(rows, k, column)
    shown = [cell for row in rows for cell in (row.line.cell, row.line.toggled) if cell is not None]
    network = plan.fitting.network.name
    notes = _notes(shown, failures, skipped, plan.fitting.refused, table)
    return Finished(
        table.title or config.paper or config.name,
        network, config.data["name"], table.split, table.varied, columns, rows, notes,
    )  # fmt: skip


def _block(method: str) -> int:
    return FAMILIES.index(bp.methods()[method].family)


def _top(lines: Sequence[Line], means: Mapping[TableCell, Mapping[str, float]], top: int) -> list[Line]:
    """So many rows a method, the best by Attribution Localisation; the anchor stays, and stays first."""
    kept: list[Line] = []
    for method in dict.fromkeys(line.method for line in lines):
        own = [line for line in lines if line.method == method]
        ranked = sorted(own, key=lambda line: (not line.anchor, -means.get(line.cell, {}).get("al", -math.inf)))
        kept += ranked[: top + any(line.anchor for line in own)]
    return kept


def _entry(own: Samples, on: Samples | None, rival: Samples, metric: str) -> Entry:
    values = own.get(metric, {})
    if not values:
        return Entry(math.nan, toggled=_mean(on, metric))
    numbers = np.array([values[k] for k in sorted(values)])
    if metric == SECONDS:  # the first map of a process takes longer
        return Entry(float(np.median(numbers)), len(numbers), toggled=_mean(on, metric))
    low, high = interval(numbers)
    return Entry(
        float(numbers.mean()), len(numbers), low, high, _against(values, rival, metric), toggled=_mean(on, metric)
    )


def _against(values: Mapping[int, float], rival: Samples, metric: str) -> float:
    other = rival.get(metric, {})
    both = sorted(set(values) & set(other))
    if values is other or not both:
        return math.nan
    return paired(np.array([values[k] - other[k] for k in both]))


def _mean(samples: Samples | None, metric: str) -> float | None:
    values = list((samples or {}).get(metric, {}).values())
    if not values:
        return None
    return float(np.median(values) if metric == SECONDS else np.mean(values))


def _mark(rows: Sequence[Row], k: int, column: Metric) -> None:
    """The best of a column and of each block in it, and p-values adjusted for its rows."""
    adjusted = holm([row.entries[k].p for row in rows])
    for row, p in zip(rows, adjusted, strict=True):
        row.entries[k].p = p
    for rank, (row, entry) in enumerate((row, row.entries[k]) for row in rows):
        others = [other.entries[k].value for n, other in enumerate(rows) if n != rank]
        block = [o.entries[k].value for n, o in enumerate(rows) if n != rank and o.block == row.block]
        entry.best = _beats(entry.value, others, column)
        entry.best_in_block = _beats(entry.value, block, column)


def _beats(value: float, others: Iterable[float], column: Metric) -> bool:
    sign = 1 if column.better == "higher" else -1
    return not math.isnan(value) and all(math.isnan(o) or sign * value >= sign * o for o in others)


def _notes(
    shown: Iterable[TableCell],
    failures: Mapping[TableCell, int],
    skipped: Mapping[TableCell, Mapping[str, int]],
    refused: Mapping[str, str],
    table: Table,
) -> list[str]:
    notes: list[str] = []
    for cell in dict.fromkeys(shown):
        label = f"{bp.methods()[cell.method].title} {words(cell.given)}".strip()
        if cell in failures:
            notes.append(f"{label}: {failures[cell]} samples failed")
        notes += [f"{label}: {count} samples skipped in {why}" for why, count in skipped.get(cell, {}).items()]
    asked = {entry.method for entry in table.entries}
    notes += [f"{bp.methods()[name].title} is left out: {why}" for name, why in refused.items() if name in asked]
    return notes


SYMBOLS = {
    "tau": "τ",
    "risk": "λ",
    "attention_risk": "λ_sm",
    "entropy_bias": "λ_ent",
    "input_variance": "σ²",
    "epsilon": "ε",
    "gamma": "γ",
    "alpha": "α",
    "beta": "β",
    "n": "N",
    "steps": "N_steps",
    "sigma": "σ",
    "residual_weight": "w_r",
    "max_norm": "mn",
    "segments": "seg",
    "gamma_conv": "γ_conv",
    "gamma_lin": "γ_lin",
    "epsilon_attn": "ε_attn",
}


def words(params: Mapping[str, Any]) -> str:
    """Parameters as the paper writes them: `τ=0.5, λ_sm=-10, σ²=2`."""
    parts: list[str] = []
    for name, value in params.items():
        match name, value:
            case "gate", "noisy":
                parts.append("Φ̃")
            case "low", _ if "high" in params:
                parts.append(f"[{number(value)}, {number(params['high'])}]")
            case "high", _ if "low" in params:
                continue
            case "bias", "absorb":  # every point of the paper's grids has it
                continue
            case "aggregate", _:
                parts.append(str(value))
            case _:
                parts.append(f"{SYMBOLS.get(name, name)}={number(value)}")
    return ", ".join(parts)


def number(value: Any) -> str:
    """A parameter's value, numbers without needless digits."""
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
