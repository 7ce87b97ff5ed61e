"""The config of a run: which networks, data, metrics and tables (docs/benchmark.md lists the keys)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import backplay as bp
from backplay.bench import metrics
from backplay.bench.data import KINDS, SPLITS
from backplay.bench.reading import ConfigError, Item, compose, yaml
from backplay.errors import MissingFileError, suggestion

TABLES = ("main", "every", "sweep", "ablation")
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """A network of the run: its name in tables, and how it is loaded."""

    name: str
    load: str
    weights: str | None = None


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


@dataclass(frozen=True)
class Config:
    """A run, checked."""

    name: str
    paper: str  # the label of the table that it reproduces, or nothing
    seed: int
    threads: int
    retries: int
    draws: int
    networks: tuple[Contender, ...]
    data: dict[str, Any]
    metrics: tuple[str, ...]  # of the test
    validation_metrics: tuple[str, ...]
    limits: dict[str, int]  # by metric: only so many samples of each split
    tables: tuple[Table, ...]
    winners: str | None  # the folder of a run whose winners are taken; None: they are selected here
    text: str  # what the run is known by: equal texts are equal runs

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def wanted(self, split: str, index: int) -> tuple[str, ...]:
        """The metrics of a sample."""
        named = self.metrics if split == "test" or self._shows(split) else self.validation_metrics
        return tuple(name for name in named if index < self.limits.get(name, index + 1))

    def _shows(self, split: str) -> bool:
        """Whether a table shows this split, so that all metrics are wanted of it."""
        return any(table.split == split for table in self.tables)


_REQUIRED = ("models", "data", "tables")
_OPTIONAL = (
    *("name", "paper", "seed", "threads", "retries", "draws", "metrics", "validation_metrics", "limits", "winners"),
)


def load(path: str | Path, zoo: bool = False, limits: Mapping[str, int] | None = None) -> Config:
    """A config from a file; `zoo` puts the bundled networks and pictures in place of its own.

    `limits` says how many samples of the validation and test split are kept.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist; give the path of a config, configs/quick.yaml for one.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}.") from error
    top = compose(text, str(path))
    keys = top.mapping(_REQUIRED, _OPTIONAL)
    wanted = _metrics(keys["metrics"]) if "metrics" in keys else metrics.names(metrics.GROUPS)
    selected = _metrics(keys["validation_metrics"]) if "validation_metrics" in keys else metrics.LOCALISATION
    lacking = [name for name in metrics.LOCALISATION if name not in selected]
    if lacking:
        raise keys["validation_metrics"].error(f"lacks {lacking[0]}, which configurations are selected by.")
    settings = {"kind": "zoo", "name": "zoo"} if zoo else _data(keys["data"], path.parent)
    settings |= dict(limits or {})
    networks = _networks(keys["models"], path.parent)
    networks = relatives(networks) if zoo else networks
    winners = _path(keys["winners"], path.parent) if "winners" in keys else None
    name = keys["name"].text() if "name" in keys else path.stem
    looked_up = {"name": name} | ({"winners": winners} if winners is not None else {})
    return Config(
        name=name,
        paper=keys["paper"].text() if "paper" in keys else "",
        seed=_whole(keys, "seed", 0, 0),
        threads=_whole(keys, "threads", 1, 1),
        retries=_whole(keys, "retries", 0, 2),
        draws=_whole(keys, "draws", 1, metrics.DRAWS),
        networks=networks,
        data=settings,
        metrics=wanted,
        validation_metrics=selected,
        limits=_limits(keys["limits"]) if "limits" in keys else {},
        tables=tuple(_table(item, wanted) for item in keys["tables"].items()),
        winners=winners,
        text=_text(top.plain | looked_up, networks, settings),
    )


def kept(folder: Path) -> Config:
    """The config that a run was started with, out of its folder."""
    return load(folder / "config.yaml")


def _text(plain: dict[str, Any], networks: Sequence[Contender], data: dict[str, Any]) -> str:
    """The config with everything that was replaced or looked up, in one spelling."""
    models = [{k: v for k, v in asdict(network).items() if v is not None} for network in networks]
    return yaml().safe_dump(plain | {"models": models, "data": data}, sort_keys=True, allow_unicode=True)


def _whole(keys: dict[str, Item], name: str, least: int, default: int) -> int:
    return keys[name].whole(least) if name in keys else default


def _metrics(item: Item) -> tuple[str, ...]:
    return item.checked(lambda: metrics.names(inner.text() for inner in item.items()))


def _limits(item: Item) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, inner in item.mapping(optional=[*metrics.GROUPS, *metrics.METRICS]).items():
        count = inner.whole(0)
        found |= dict.fromkeys(metrics.names([name]), count)
    return found


# the bundled network that is built like the named one; a plain convolutional one where none is
FAMILIES = {"vgg": "zoo:vgg", "resnet": "zoo:resnet", "vit": "zoo:vit", "deit": "zoo:vit"}


def relatives(networks: Sequence[Contender]) -> tuple[Contender, ...]:
    """The zoo's relatives of some networks: any config can be tried without a download."""
    names = [f"{network.name} {network.load}".lower() for network in networks]
    found = [next((ours for word, ours in FAMILIES.items() if word in name), "zoo:vgg") for name in names]
    return tuple(Contender(name, name) for name in dict.fromkeys(found))


def _networks(item: Item, home: Path) -> tuple[Contender, ...]:
    found: list[Contender] = []
    for inner in item.items():
        if inner.node.id == "scalar":
            name = inner.text()
            found.append(Contender(name, _found(name, home)))
            continue
        keys = inner.mapping(("name", "load"), ("weights",))
        weights = _path(keys["weights"], home) if "weights" in keys else None
        found.append(Contender(keys["name"].text(), _found(keys["load"].text(), home), weights))
    names = [network.name for network in found]
    if len(set(names)) < len(names):
        raise item.error("names a network twice; each name once.")
    return tuple(found)


def _found(name: str, home: Path) -> str:
    """A model's name; a `path.py:factory` is looked for beside the config."""
    file, colon, function = name.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{(home / os.path.expandvars(file)).resolve()}:{function}"
    return name


def _path(item: Item, home: Path) -> str:
    """A path, from the config's folder on; variables of the environment stand for themselves."""
    written = item.text()
    expanded = os.path.expandvars(os.path.expanduser(written))
    if "$" in expanded:
        raise item.error(f"{written!r} names a variable of the environment that is not set; set it or write the path.")
    return str((home / expanded).resolve())


_DATA_KEYS = {
    "zoo": ("seed",),
    "imagenet-s": ("root", "classes", "resize"),
    "voc": ("root", "resize"),
    "pets": ("root", "targets", "resize"),
    "folder": ("root", "resize"),
}


def _data(item: Item, home: Path) -> dict[str, Any]:
    kind = item.mapping(("kind",), None)["kind"].choice(KINDS)
    needed = [key for key in _DATA_KEYS[kind] if key in ("root", "classes")]
    keys = item.mapping(("kind", *needed), ("name", "validation", "test", *_DATA_KEYS[kind]))
    found: dict[str, Any] = {"kind": kind, "name": keys["name"].text() if "name" in keys else kind}
    for name in ("validation", "test", "resize"):
        if name in keys:
            found[name] = keys[name].whole(1)
    if "seed" in keys:
        found["seed"] = keys["seed"].whole(0)
    if "targets" in keys:
        found["targets"] = keys["targets"].choice(("breeds", "imagenet"))
    return found | {name: _path(keys[name], home) for name in needed}


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
        name = _method(item)
        return Entry(name, _spread(bp.methods()[name].grid, points))
    keys = item.mapping(("method",), ("grid", "frozen"))
    name = _method(keys["method"])
    if "grid" not in keys and "frozen" not in keys:
        return Entry(name, _spread(bp.methods()[name].grid, points))
    grid = _grid(keys["grid"], name) if "grid" in keys else ()
    return Entry(name, grid, _grid(keys["frozen"], name) if "frozen" in keys else ())


def _method(item: Item) -> str:
    name, known = item.text(), bp.methods()
    if name not in known:
        raise item.error(f"no method named {name!r}{suggestion(name, known)}; there are {', '.join(known)}.")
    return name


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
        _check(item, keys, method, point)
    return list(made)


def _check(item: Item, keys: Mapping[str, Item], method: str, params: Params) -> None:
    """Refuse parameters that the method does not take, at the line of the one that is wrong."""
    info = bp.methods()[method]
    for name, value in params.items():
        place = keys.get(name, item)
        place.checked(lambda name=name, value=value: info.check({name: value}))


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
    name = _method(keys["method"])
    base = keys["base"].mapping(optional=None) if "base" in keys else {}
    fixed = {key: inner.plain for key, inner in base.items()}
    if base:
        _check(keys["base"], base, name, fixed)
    item = keys["vary"]
    parts = [item] if item.node.id == "mapping" else item.items()
    points = [point for part in parts for point in _product(part, name)]
    return Entry(name, frozen=tuple(fixed | dict(point) for point in points))


def _row(item: Item, toggle: Mapping[str, Item]) -> Entry:
    """A row of an ablation: a method with its parameters, which the toggle is set beside."""
    keys = item.mapping(("method",), ("params",))
    name = _method(keys["method"])
    params = keys["params"].mapping(optional=None) if "params" in keys else {}
    given = {key: inner.plain for key, inner in params.items()}
    _check(item, params, name, given)
    if set(toggle) <= set(bp.methods()[name].params):  # the Stopping Game has no such switch: its rows stay as they are
        _check(item, toggle, name, {key: inner.plain for key, inner in toggle.items()})
    return Entry(name, frozen=(given,))
