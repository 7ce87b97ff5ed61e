"""One row of the store: what was measured, on what, and by which program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ERROR = "error"  # the metric of a row that stands for a sample that failed; its note says how
SECONDS = "seconds"  # the metric of the time that one map took
CPU = "cpu"  # processor seconds of that map: what it costs, where a machine has other work too; no table shows them


@dataclass(frozen=True, order=True)
class TableCell:
    """What a line of a table is about: one method with its parameters on one network and one part of the data."""

    model: str
    data: str
    split: str
    method: str
    params: str = "{}"  # JSON with sorted keys: equal parameters are equal strings

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that are not at their defaults."""
        return json.loads(self.params)


def canonical(params: Mapping[str, Any]) -> str:
    """Parameters as the string that stands for them: sorted, numbers that are equal written alike."""
    return json.dumps({k: _plain(v) for k, v in sorted(params.items())}, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class Job:
    """One sample of a cell, and the metrics that are wanted of it; every engine takes a list of these."""

    cell: TableCell
    index: int  # of the sample, from 0 on
    metrics: tuple[str, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return self.cell, self.index


Portion = tuple[Job, ...]  # jobs that one worker is given at once


@dataclass(frozen=True)
class Outcome:
    """What became of a job: values by metric, or an error."""

    job: Job
    sample: str = ""  # its name in the data set
    values: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])  # None: skipped, see notes
    notes: Mapping[str, str] = field(default_factory=dict[str, str])  # why a metric was skipped
    error: str | None = None
    worker: str = ""  # host and process
    attempt: int = 1
    busy: float = 0.0  # seconds spent inside the method and the metrics


@dataclass(frozen=True)
class Session:
    """One start of a run: what its rows were made with."""

    number: int
    run: str
    version: str
    commit: str
    config: str  # hash of the config's content
    seed: int
    hardware: str
    started: str


# name and Arrow type of every column, in the order of the table
COLUMNS: tuple[tuple[str, str], ...] = (
    *((name, "string") for name in ("run", "model", "data", "split", "method", "params", "sample")),
    ("index", "int32"),
    ("metric", "string"),
    ("value", "float64"),
    ("note", "string"),
    ("attempt", "int32"),
    ("worker", "string"),
    ("session", "int32"),
    *((name, "string") for name in ("version", "commit", "config")),
    ("seed", "int64"),
    ("hardware", "string"),
    ("started", "string"),
)


def record(outcome: Outcome, session: int) -> dict[str, Any]:
    """An outcome as the journal keeps it."""
    kept = asdict(outcome.job.cell) | {
        "kind": "sample",
        "index": outcome.job.index,
        "sample": outcome.sample,
        "session": session,
        "worker": outcome.worker,
        "attempt": outcome.attempt,
    }
    if outcome.error is not None:
        return kept | {"error": outcome.error}
    return kept | {"values": dict(outcome.values), "notes": dict(outcome.notes)}


def spread(kept: Mapping[str, Any], sessions: Mapping[int, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of one record: one for each metric, or one for its error."""
    common = {name: kept[name] for name, _ in COLUMNS if name in kept}
    common |= {k: v for k, v in sessions[kept["session"]].items() if k not in ("kind", "number")}
    if "error" in kept:
        yield common | {"metric": ERROR, "value": None, "note": kept["error"]}
        return
    for metric, value in kept["values"].items():
        yield common | {"metric": metric, "value": value, "note": kept["notes"].get(metric)}
