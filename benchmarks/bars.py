"""Bars: what the project promises of its speed, beside what was measured. They inform; nothing fails on a time."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Cases = dict[str, dict[str, Any]]  # by key, as they are stored
LARGE = ("VGG-16", "ResNet-50", "ViT-B/16")
MAPS: dict[str, dict[str, float]] = {
    "Stopping map": {**dict.fromkeys(LARGE, 1.10), "SqueezeNet": 1.25, "ViT-Ti/16": 1.25},
    "Routing anchor": {"VGG-16": 2.10, "ResNet-50": 2.10, "ViT-B/16": 2.25, "SqueezeNet": 2.5, "ViT-Ti/16": 2.5},
    "τ = 0.5": dict.fromkeys(LARGE, 2.5),
    "risk": dict.fromkeys(LARGE, 3.5),
    "hellinger": dict.fromkeys(LARGE, 2.5),
    "hellinger and its maps": dict.fromkeys(LARGE, 5.0),
}


@dataclass(frozen=True)
class Bar:
    """One promise of one network; `found` is None where it was not measured."""

    promise: str
    network: str
    bar: float
    found: float | None
    least: bool = False  # the bar is a lower one

    @property
    def holds(self) -> bool:
        assert self.found is not None
        return self.found >= self.bar if self.least else self.found <= self.bar

    @property
    def limit(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bar:g}"


def bars(cases: Cases) -> list[Bar]:
    """The promises that were measured."""
    return [bar for bar in (*_speeds(cases), *_growth(cases), *_memory(cases)) if bar.found is not None]


def _speeds(cases: Cases) -> Iterator[Bar]:
    for what, wanted in MAPS.items():
        for name, bar in wanted.items():
            yield Bar(what, name, bar, _figure(cases, f"games: {name}, batch 1", what))
    for name in LARGE:
        shared = _quotient(cases, f"games: {name}, batch 1", "sweep of six τ", "six maps, one for each τ")
        yield Bar("sweep of six τ beside six maps", name, 1.0, shared)
    for name in ("VGG-16", "ResNet-50"):
        slower = _quotient(cases, f"peers: {name}, batch 1", "zennit AlphaBeta(2, 1)", "Routing anchor")
        yield Bar("zennit AlphaBeta(2, 1) beside the anchor", name, 3.3, slower, least=True)
    for key, case in cases.items():
        if case["section"] == "capture":
            yield Bar("capture beside torch.export", case["network"], 2.0, _figure(cases, key, "capture"))


def _growth(cases: Cases) -> Iterator[Bar]:
    for what in ("Stopping map", "Routing anchor"):
        many, some = (_figure(cases, f"growth: ResNet-50, batch {n}", what) for n in (32, 8))
        drift = None if many is None or some is None else abs(many / some - 1)
        yield Bar(f"{what}: change of the ratio from batch 8 to 32", "ResNet-50", 0.1, drift)


def _memory(cases: Cases) -> Iterator[Bar]:
    for name in LARGE:
        for what, batch in itertools.product(("Stopping map", "Routing anchor"), (1, 8)):
            promise = f"{what}: working memory beside the gradient's, batch {batch}"
            yield Bar(promise, name, 1.0, _figure(cases, f"memory: {name}, batch {batch}", what))
        key = f"memory: {name}, batch 1"
        prepared, own = (_figure(cases, key, "Routing anchor", f) for f in ("prepared MB", "parameters MB"))
        yield Bar("prepared weights beside the parameters", name, 2.0, prepared / own if prepared and own else None)


def _figure(cases: Cases, key: str, what: str, figure: str = "ratio") -> float | None:
    """A figure of a row; None where it was not measured."""
    rows = cases.get(key, {}).get("rows", [])
    return next((r.get(figure) for r in rows if r["what"] == what), None)


def _quotient(cases: Cases, key: str, over: str, under: str) -> float | None:
    a, b = (_figure(cases, key, what) for what in (over, under))
    return None if a is None or not b else a / b
