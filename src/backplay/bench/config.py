"""The config of a run: which networks, data, metrics and tables (docs/benchmark.md lists the keys)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import backplay as bp
from backplay.bench import metrics
from backplay.bench.data import SPLITS
from backplay.bench.reading import Item
from backplay.bench.sources import (
    COMMON,
    KEYS,
    Params,
    RunConfig,
    check_params,
    common,
    method_of,
    opened,
    path_of,
    whole,
)

TABLES = ("main", "every", "sweep", "ablation")


@dataclass(frozen=True)
class Entry:
    """A method of a table: the points of its grid, or points that are frozen and not selected from."""

    method: str
    grid: tuple[Params, ...] = ()
    frozen: tuple[Params, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the run, made once for each network."""

    kind: str  # one of TABLES
    title: str
    split: str
    columns: tuple[str, ...]  # metrics; the time per image comes last
    entries: tuple[Entry, ...] = ()  # of "main", "every" and "sweep"
    varied: tuple[str, ...] = ()  # of "sweep": the parameters that are shown
    toggle: Params = field(default_factory=dict[str, Any])  # of "ablation": what is switched on beside each row
    top: int | None = None  # of "every": so many rows a method, the best by Attribution Localisation


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """A run of the benchmark, checked."""

    draws: int
    metrics: tuple[str, ...]  # of the test
    validation_metrics: tuple[str, ...]
    limits: dict[str, int]  # by metric: only so many samples of each split
    tables: tuple[Table, ...]
    winners: str | None  # the folder of a run whose winners are taken; None: they are selected here

    def wanted(self, split: str, index: int) -> tuple[str, ...]:
        """The metrics of a sample."""
        named = self.metrics if split == "test" or self._shows(split) else self.validation_metrics
        return tuple(name for name in named if index < self.limits.get(name, index + 1))

    def _shows(self, split: str) -> bool:
        """Whether a table shows this split, so that all metrics are wanted of it."""
        return any(table.split == split for table in self.tables)


def load(path: str | Path, zoo: bool = False, limits: Mapping[str, int] | None = None) -> Config:
    """A config from a file; `zoo` puts the bundled networks and pictures in place of its own.

    `limits` says how many samples of the validation and test split are kept.
    """
    path = Path(path)
    top = opened(path)
    keys = top.mapping(KEYS["bench"], (*COMMON, "draws", "metrics", "validation_metrics", "limits", "winners"))
    wanted = _metrics(keys["metrics"]) if "metrics" in keys else metrics.names(metrics.GROUPS)
    selected = _metrics(keys["validation_metrics"]) if "validation_metrics" in keys else metrics.LOCALISATION
    lacking = [name for name in metrics.LOCALISATION if name not in selected]
    if lacking:
        raise keys["validation_metrics"].error(f"lacks {lacking[0]}, which configurations are selected by.")
    winners = path_of(keys["winners"], path.parent) if "winners" in keys else None
    looked_up = {} if winners is None else {"winners": winners}
    return Config(
        **common(path, top, keys, zoo, limits or {}, **looked_up),
        draws=whole(keys, "draws", 1, metrics.DRAWS),
        metrics=wanted,
        validation_metrics=selected,
        limits=_limits(keys["limits"]) if "limits" in keys else {},
        tables=tuple(_table(item, wanted) for item in keys["tables"].items()),
        winners=winners,
    )


def kept(folder: Path) -> Config:
    """The config that a run was started with, out of its folder."""
    return load(folder / "config.yaml")


def _metrics(item: Item) -> tuple[str, ...]:
    return item.checked(lambda: metrics.names(inner.text() for inner in item.items()))


def _limits(item: Item) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, inner in item.mapping(optional=[*metrics.GROUPS, *metrics.METRICS]).items():
        count = inner.whole(0)
        found |= dict.fromkeys(metrics.names([name]), count)
    return found


def _table(item: Item, wanted: tuple[str, ...]) -> Table:
    kind = item.mapping(("kind",), None)["kind"].choice(TABLES)
    own = {
        "main": (("methods",), ("points",)),
        "every": (("methods",), ("top", "points")),
        "sweep": (("method", "vary"), ("base",)),
        "ablation": (("rows", "toggle"), ()),
    }
    required, optional = own[kind]
    keys = item.mapping(("kind", *required), ("title", "split", "columns", *optional))
    columns = _metrics(keys["columns"]) if "columns" in keys else wanted
    strange = [name for name in columns if name not in wanted]
    if strange:
        raise keys["columns"].error(f"shows {strange[0]}, which is not among the metrics of the run.")
    common: dict[str, Any] = {
        "kind": kind,
        "title": keys["title"].text() if "title" in keys else "",
        "split": keys["split"].choice(SPLITS) if "split" in keys else "test",
        "columns": columns,
    }
    match kind:
        case "sweep":
            return Table(**common, entries=(_swept(keys),), varied=tuple(_varied(keys["vary"])))
        case "ablation":
            toggle = dict(keys["toggle"].mapping(optional=None))
            rows = tuple(_row(row, toggle) for row in keys["rows"].items())
            return Table(**common, entries=rows, toggle={name: inner.plain for name, inner in toggle.items()})
        case _:
            points = keys["points"].whole(1) if "points" in keys else None
            top = keys["top"].whole(1) if "top" in keys else None
            return Table(**common, entries=_entries(keys["methods"], points), top=top)


def _entries(item: Item, points: int | None) -> tuple[Entry, ...]:
    """The methods of a table: `all`, or a list in which `rest` stands for every method that it does not name."""
    if item.node.id == "scalar":
        item.choice(("all",))
        return _others((), points)
    listed = item.items()
    named = [inner for inner in listed if not _rest(inner)]
    found = [_entry(inner, points) for inner in named]
    names = [entry.method for entry in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise item.error(f"names {twice[0]} twice; give each method once, with all points of its grid.")
    return (*found, *(_others(names, points) if len(named) < len(listed) else ()))


def _rest(item: Item) -> bool:
    return item.node.id == "scalar" and item.plain == "rest"


def _others(named: Sequence[str], points: int | None) -> tuple[Entry, ...]:
    return tuple(Entry(name, _spread(info.grid, points)) for name, info in bp.methods().items() if name not in named)


def _entry(item: Item, points: int | None) -> Entry:
    if item.node.id == "scalar":
        name = method_of(item)
        return Entry(name, _spread(bp.methods()[name].grid, points))
    keys = item.mapping(("method",), ("grid", "frozen"))
    name = method_of(keys["method"])
    if "grid" not in keys and "frozen" not in keys:
        return Entry(name, _spread(bp.methods()[name].grid, points))
    grid = _grid(keys["grid"], name) if "grid" in keys else ()
    return Entry(name, grid, _grid(keys["frozen"], name) if "frozen" in keys else ())


def _grid(item: Item, method: str) -> tuple[Params, ...]:
    """The points of a grid: a list of mappings, of which each stands for the product of the lists in it."""
    if item.node.id == "scalar":
        item.choice(("paper",))
        return bp.methods()[method].grid
    found: list[Params] = []
    for inner in item.items():
        found += [point for point in _product(inner, method) if point not in found]
    return tuple(found)


def _product(item: Item, method: str) -> list[Params]:
    keys = item.mapping(optional=None)
    lists = [inner.plain if isinstance(inner.plain, list) else [inner.plain] for inner in keys.values()]
    made = [dict(zip(keys, values, strict=True)) for values in product(*lists)]
    for point in made:
        check_params(item, keys, method, point)
    return list(made)


def _spread(grid: Sequence[Params], points: int | None) -> tuple[Params, ...]:
    """At most so many points, evenly spread over the grid, first and last included."""
    if points is None or len(grid) <= points:
        return tuple(grid)
    if points == 1:
        return (grid[0],)
    return tuple(grid[round(k * (len(grid) - 1) / (points - 1))] for k in range(points))


def _varied(item: Item) -> list[str]:
    """The parameters that a sweep varies: those of a mapping, or of all mappings in a list."""
    parts = [item] if item.node.id == "mapping" else item.items()
    return list(dict.fromkeys(name for part in parts for name in part.mapping(optional=None)))


def _swept(keys: dict[str, Item]) -> Entry:
    """A sweep: `vary` around `base`; one parameter with its values, or a list of points."""
    name = method_of(keys["method"])
    base = keys["base"].mapping(optional=None) if "base" in keys else {}
    fixed = {key: inner.plain for key, inner in base.items()}
    if base:
        check_params(keys["base"], base, name, fixed)
    item = keys["vary"]
    parts = [item] if item.node.id == "mapping" else item.items()
    points = [point for part in parts for point in _product(part, name)]
    return Entry(name, frozen=tuple(fixed | dict(point) for point in points))


def _row(item: Item, toggle: Mapping[str, Item]) -> Entry:
    """A row of an ablation: a method with its parameters, which the toggle is set beside."""
    keys = item.mapping(("method",), ("params",))
    name = method_of(keys["method"])
    params = keys["params"].mapping(optional=None) if "params" in keys else {}
    given = {key: inner.plain for key, inner in params.items()}
    check_params(item, params, name, given)
    if set(toggle) <= set(bp.methods()[name].params):  # the Stopping Game has no such switch: its rows stay as they are
        check_params(item, toggle, name, {key: inner.plain for key, inner in toggle.items()})
    return Entry(name, frozen=(given,))
