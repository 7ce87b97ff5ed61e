"""Tables as the paper lays them out: tab:double-random-hellinger, tab:hellinger-input-random, tab:sanity-check,
tab:per-image-corr, and the numbers behind the figures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backplay.bench.formats import barred, tex
from backplay.bench.rows import TableCell
from backplay.errors import KeywordError, instead
from backplay.sanity.config import MAP_READOUTS, Trial
from backplay.sanity.results import Results, label_of
from backplay.sanity.similarity import rank_correlations

TITLES = {
    "distance": "H",
    "surviving": "H_surv",
    "permuted": "H_perm",
    "ordinary": "BC_ord",
    "bound": "bound of BC_ord",
    "floor": "H of the floor",
    "spearman": "Spear. |ρ|",
    "hog": "HOG r",
}


@dataclass
class Shown:
    """One entry: a mean with its deviation, or a correlation."""

    value: float
    std: float | None = None
    count: int = 0
    best: bool = False

    def text(self, between: str = "±") -> str:
        if math.isnan(self.value):
            return "–"
        if self.std is None:
            return f"{self.value:+.2f}"
        small = 0 < abs(self.value) < 5e-4
        shown = f"{self.value:.1e}" if small else f"{self.value:.3f}"
        return f"{shown} {between} {self.std:.1e}" if small else f"{shown} {between} {self.std:.3f}"


@dataclass
class SanityTable:
    """A table with its numbers, ready to be written in any format."""

    title: str
    first: tuple[str, ...]  # heads of the columns that name a row
    columns: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], list[Shown]]] = field(default_factory=list["tuple[tuple[str, ...], list[Shown]]"])
    notes: list[str] = field(default_factory=list[str])


def build(folder: str | Path) -> list[SanityTable]:
    """Every table of a run, from the rows that are there."""
    results = Results(folder)
    found: list[SanityTable] = []
    for trial in results.trials("cascade"):
        found += [_maps(results, trial)] if trial.methods else []
        found.append(_walks(results, trial, "Step"))
    for trial in results.trials("correlation"):
        found.append(_correlations(results, trial))
    heads = {"double-random": "Networks", "input-noise": "Noise", "separability": "Baseline"}
    for trial in results.trials(*heads):
        found.append(_walks(results, trial, heads[trial.kind]))
    for trial in results.trials("distances"):
        found += _matrices(results, trial)
    return found


def _titled(results: Results, trial: Trial, what: str) -> str:
    config = results.config
    return f"{config.paper or config.name}: {what} ({trial.name}) on {config.data['name']}"


def _metric_title(metric: str) -> str:
    label, _, readout = metric.rpartition(".")
    return f"{label.upper() if label in ('sg', 'rg') else label} {TITLES[readout]}"


def _number(results: Results, cell: TableCell, metric: str) -> Shown:
    found = results.spread(cell, metric)
    return Shown(math.nan, 0.0) if found is None else Shown(found.mean, found.std, found.count)


def _walks(results: Results, trial: Trial, head: str) -> SanityTable:
    """Mean and deviation of every readout of the walks, line by line."""
    metrics = trial.walks()
    table = SanityTable(
        _titled(results, trial, "walks"),
        ("Network", head),
        tuple(map(_metric_title, metrics)),
        [],
        results.notes(trial),
    )
    for network in results.networks(trial):
        for cell in results.cells(trial, network):
            table.rows.append(((network, label_of(cell)), [_number(results, cell, m) for m in metrics]))
    return table


def _maps(results: Results, trial: Trial) -> SanityTable:
    """Similarity of maps at the last step; the lowest of each network is the best (tab:sanity-check)."""
    columns = tuple(f"{TITLES[name]} ↓" for name in MAP_READOUTS)
    table = SanityTable(_titled(results, trial, "maps at the last step"), ("Network", "Method"), columns)
    for network in results.networks(trial):
        last = results.cells(trial, network)[-1]
        rows = [[_number(results, last, f"{label}.{name}") for name in MAP_READOUTS] for label in trial.methods]
        for column in zip(*rows, strict=True):
            known = [number for number in column if not math.isnan(number.value)]
            for number in known:
                number.best = number.value == min(other.value for other in known)
        table.rows += [((network, label), row) for label, row in zip(trial.methods, rows, strict=True)]
        table.notes.append(f"{network}: step {label_of(last)}")
    return table


def _correlations(results: Results, trial: Trial) -> SanityTable:
    """Whether walks and maps rank images alike (tab:per-image-corr)."""
    walks = [f"{game}.{name}" for game in reversed(trial.games) for name in ("distance", "surviving")]
    metrics = [*walks, *(f"{label}.{name}" for label in trial.methods for name in MAP_READOUTS)]
    titles = tuple(map(_metric_title, metrics))
    table = SanityTable(
        _titled(results, trial, "Spearman correlations across images"), ("Network", "Step", "Readout"), titles
    )
    for network in results.networks(trial):
        for cell in results.cells(trial, network):
            found = {metric: results.samples(cell, metric) for metric in metrics}
            images = sorted(set[int]().union(*found.values()))
            columns = {metric: [values.get(k, math.nan) for k in images] for metric, values in found.items()}
            matrix = rank_correlations(columns).tolist()
            for k, name in enumerate(titles[: len(walks)]):
                row = [Shown(math.nan if j == k else value, count=len(images)) for j, value in enumerate(matrix[k])]
                table.rows.append(((network, label_of(cell), name), row))
            table.notes.append(f"{network}, step {label_of(cell)}: {len(images)} images")
    return table


def _matrices(results: Results, trial: Trial) -> list[SanityTable]:
    """Networks beside each other, a table for each game and readout."""
    names = [network.name for network in results.config.networks]
    found: list[SanityTable] = []
    for metric in trial.walks():
        table = SanityTable(_titled(results, trial, _metric_title(metric)), ("Network",), tuple(names))
        entries = matrix_of(results, trial, metric)
        table.rows = [
            ((name,), [entries.get((name, other), Shown(math.nan, 0.0)) for other in names]) for name in names
        ]
        found.append(table)
    return found


def matrix_of(results: Results, trial: Trial, metric: str) -> dict[tuple[str, str], Shown]:
    """Both halves of a matrix of distances; a network from itself is not measured."""
    found: dict[tuple[str, str], Shown] = {}
    for network in results.networks(trial):
        for cell in results.cells(trial, network):
            other = str(cell.given["other"])
            found[network, other] = found[other, network] = _number(results, cell, metric)
    return found


# -------------------------------------------------------------------- formats


def write(tables: Sequence[SanityTable], form: str) -> str:
    """All tables in a format."""
    if form not in FORMATS:
        raise KeywordError(f"no format named {form!r}{instead(form, FORMATS)}.")
    return FORMATS[form](tables)


def _markdown(tables: Sequence[SanityTable]) -> str:
    parts: list[str] = []
    for table in tables:
        head = [*table.first, *table.columns]
        lines = [f"### {table.title}", "", barred(head), barred(["---"] * len(head))]
        for labels, numbers in table.rows:
            texts = [f"**{n.text()}**" if n.best else n.text() for n in numbers]
            lines.append(barred([*labels, *texts]))
        parts.append("\n".join([*lines, "", *(f"- {note}" for note in table.notes), ""]))
    return "\n".join(parts)


def _latex(tables: Sequence[SanityTable]) -> str:
    parts: list[str] = []
    for table in tables:
        head = [*map(tex, table.first), *map(tex, table.columns)]
        lines = [
            "\\begin{table}[t]", "\\centering", f"\\caption{{{tex(table.title)}}}", "\\resizebox{\\textwidth}{!}{%",
            f"\\begin{{tabular}}{{@{{}}{'l' * len(table.first)} {'c' * len(table.columns)}@{{}}}}", "\\toprule",
            f"{' & '.join(head)} \\\\", "\\midrule",
        ]  # fmt: skip
        before = table.rows[0][0][0] if table.rows else ""
        for labels, numbers in table.rows:
            if labels[0] != before and len(table.first) > 1:
                lines.append("\\midrule")
            before = labels[0]
            lines.append(f"{' & '.join([*map(tex, labels), *map(_latex_number, numbers)])} \\\\")
        parts.append("\n".join([*lines, "\\bottomrule", "\\end{tabular}", "}%", "\\end{table}"]))
    return "\n\n".join(parts) + "\n"


def _latex_number(number: Shown) -> str:
    text = number.text("\\pm")
    return "--" if text == "–" else f"$\\mathbf{{{text}}}$" if number.best else f"${text}$"


def _comma_separated(tables: Sequence[SanityTable]) -> str:
    """One line an entry, with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(RECORD)
    for record in records(tables):
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in record.values()])
    return out.getvalue()


RECORD = ("table", "row", "column", "value", "std", "samples")


def records(tables: Sequence[SanityTable]) -> list[dict[str, Any]]:
    """One record an entry that is there, by the names in RECORD; a correlation has no deviation."""
    return [
        dict(zip(RECORD, (table.title, " / ".join(labels), column, n.value, n.std, n.count), strict=True))
        for table in tables
        for labels, numbers in table.rows
        for column, n in zip(table.columns, numbers, strict=True)
        if not math.isnan(n.value)
    ]


FORMATS: dict[str, Callable[[Sequence[SanityTable]], str]] = {
    "md": _markdown,
    "latex": _latex,
    "csv": _comma_separated,
}
