"""The config of a run of experiments: which networks and inputs, and what is tried on them (docs/sanity.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from backplay.bench.reading import Item
from backplay.bench.sources import COMMON, KEYS, Params, RunConfig, check_params, common, method_of, opened, whole
from backplay.bench.tables import words
from backplay.sanity.baselines import SIGMAS
from backplay.sanity.randomise import Which
from backplay.sanity.walks import GAMES, READOUTS, USUAL

KINDS = ("cascade", "correlation", "double-random", "input-noise", "separability", "distances")
MAP_READOUTS = ("spearman", "hog")
_OWN = {  # keys of a kind beside those that all have
    "cascade": ("images", "steps", "which", "methods"),
    "correlation": ("images", "steps", "which", "methods"),
    "double-random": ("rounds", "which"),
    "input-noise": ("images", "sigmas"),
    "separability": ("pairs",),
    "distances": ("images",),
}


@dataclass(frozen=True)
class Trial:
    """One experiment of a run."""

    kind: str  # one of KINDS
    name: str  # what its rows are found by: the column `method`
    games: tuple[str, ...] = tuple(GAMES)
    readouts: tuple[str, ...] = USUAL  # of the walks of every game
    limits: Mapping[str, int] = field(default_factory=dict[str, int])  # by readout: only so many samples
    methods: Mapping[str, tuple[str, Params]] = field(default_factory=dict[str, "tuple[str, Params]"])  # by label
    which: Which = "all"
    steps: tuple[int | str, ...] | None = None  # numbers or layers; None: all; −1: the last one
    count: int = 0  # rounds or pairs
    images: int | None = None  # only so many, the first ones; None: all of the split
    sigmas: tuple[float, ...] = ()

    def walks(self) -> list[str]:
        """What walks are asked: `sg.distance`, …; the floor is of the Stopping Game alone (rem:adf-cemetery-floor)."""
        return [f"{game}.{name}" for game in self.games for name in self.readouts if name != "floor" or game == "sg"]

    def metrics(self, index: int, fitting: Sequence[str]) -> tuple[str, ...]:
        """What is measured of a sample: `sg.distance`, `gradient.spearman`, …; maps of the methods that fit alone."""
        walks = [m for m in self.walks() if index < self.limits.get(m.rpartition(".")[2], index + 1)]
        return (*walks, *(f"{label}.{name}" for label in self.methods if label in fitting for name in MAP_READOUTS))


@dataclass(frozen=True, kw_only=True)
class SanityConfig(RunConfig):
    """A run of experiments, checked."""

    trials: tuple[Trial, ...]


def load(path: str | Path, zoo: bool = False, images: int | None = None) -> SanityConfig:
    """A config from a file; `zoo` puts the bundled networks and pictures in place of its own.

    `images` says how many of the test split are kept.
    """
    path = Path(path)
    top = opened(path, "sanity")
    keys = top.mapping(KEYS["sanity"], COMMON)
    shared = common(path, top, keys, zoo, {} if images is None else {"test": images})
    trials = tuple(_trial(item) for item in keys["experiments"].items())
    names = [trial.name for trial in trials]
    if len(set(names)) < len(names):
        raise keys["experiments"].error("has two experiments of one name; give each a name: of its own.")
    if len(shared["networks"]) < 2 and any(trial.kind == "distances" for trial in trials):
        raise keys["models"].error("names one network; distances compares two or more.")
    return SanityConfig(**shared, trials=trials)


def _trial(item: Item) -> Trial:
    kind = item.mapping(("kind",), None)["kind"].choice(KINDS)
    keys = item.mapping(("kind",), ("name", "games", "further", "limits", *_OWN[kind]))
    further = _several(keys, "further", [name for name in READOUTS if name not in USUAL])
    which = keys["which"].choice(("all", "weights")) if "which" in keys else _WHICH.get(kind, "all")
    return Trial(
        kind=kind,
        name=_name(keys["name"]) if "name" in keys else kind,
        games=_several(keys, "games", list(GAMES)) or tuple(GAMES),
        readouts=(*USUAL, *further),
        limits=_limits(keys["limits"]) if "limits" in keys else {},
        methods=_methods(keys["methods"]) if "methods" in keys else {},
        which=cast("Which", which),
        steps=_steps(keys["steps"]) if "steps" in keys else ((-1,) if kind == "correlation" else None),
        count=whole(keys, "rounds", 1, 500) if kind == "double-random" else whole(keys, "pairs", 1, 200),
        images=keys["images"].whole(1) if "images" in keys else None,
        sigmas=_sigmas(keys["sigmas"]) if "sigmas" in keys else SIGMAS,
    )


def _name(item: Item) -> str:
    found = item.text()
    if not re.fullmatch(r"[\w.-]+", found):
        raise item.error(f"{found!r} is no name of a file; use letters, digits, '-', '_' and '.'.")
    return found


_WHICH = {"double-random": "weights"}  # as the paper has it


def _several(keys: Mapping[str, Item], name: str, known: list[str]) -> tuple[str, ...]:
    found = [inner.choice(known) for inner in keys[name].items()] if name in keys else []
    return tuple(dict.fromkeys(found))


def _limits(item: Item) -> dict[str, int]:
    return {name: inner.whole(0) for name, inner in item.mapping(optional=list(READOUTS)).items()}


def _methods(item: Item) -> dict[str, tuple[str, Params]]:
    """Methods by the label that tables have: the name, behind it the parameters that are given."""
    found: dict[str, tuple[str, Params]] = {}
    for inner in item.items():
        if inner.node.id == "scalar":
            name, params = method_of(inner), {}
        else:
            keys = inner.mapping(("method",), ("params",))
            name, own = method_of(keys["method"]), keys["params"].mapping(optional=None) if "params" in keys else {}
            params = {key: value.plain for key, value in own.items()}
            check_params(inner, own, name, params)
        label = f"{name} {words(params)}".strip()
        if label in found:
            raise inner.error(f"names {label} for the second time; give each once.")
        found[label] = name, params
    return found


def _steps(item: Item) -> tuple[int | str, ...] | None:
    if item.node.id == "scalar":
        return {"all": None, "last": (-1,)}[item.choice(("all", "last"))]
    found: list[int | str] = []
    for inner in item.items():
        named = isinstance(inner.plain, str)
        found.append((-1 if inner.plain == "last" else inner.text()) if named else inner.whole(0))
    return tuple(found)


def _sigmas(item: Item) -> tuple[float, ...]:
    found: list[float] = []
    for inner in item.items():
        value = inner.plain
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise inner.error(f"expected a number above 0, found {value!r}.")
        found.append(float(value))
    return tuple(found)
