"""What the tables of the paper cost in processor hours, from the measured time per map: a part of docs/benchmark.md.

    python benchmarks/cost.py measure [NETWORK …]    # time passes and maps, into benchmarks/results/maps.json
    python benchmarks/cost.py                        # write the table between its marks in docs/benchmark.md anew

Times are processor seconds of one image, one thread, random weights. A map is counted in forward passes of its network:
it takes as many on ViT-B/16 as on ViT-Ti/16, and as many on VGG-16 as on ResNet-50. A method that was timed with so
many draws costs as much a draw with more.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate

import backplay as bp
from backplay import bench
from backplay.bench.config import Config, Entry
from backplay.bench.metrics import LOCALISATION, METRICS
from backplay.bench.plan import Fitting, Plan, fitting
from backplay.bench.rows import TableCell
from backplay.bench.sources import Contender
from store import machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmark.md"
TIMES = ROOT / "benchmarks" / "results" / "maps.json"
BEGIN, END = "<!-- cost -->\n", "<!-- end -->"

FLIPS, PATCHES = 96, 784  # forward passes of pixel flipping and of Selectivity, a map of 224 × 224
FEW = 50  # samples that robustness could be measured on instead
# samples of validation and test, as the paper has them
SIZES = {"imagenet-s": (50, 566), "voc": (570, 2849)}
# the network of a config, and the one that its maps are timed on
NETWORKS = {
    "vit_b_16": ("ViT-B/16", "ViT-Ti/16"),
    "vgg16": ("VGG-16", "ResNet-50"),
    "resnet50": ("ResNet-50", "ResNet-50"),
}
MAPPED = ("ViT-Ti/16", "ResNet-50")  # networks that maps are timed on; of the others forward passes alone
DRAWS = ("n", "steps")  # parameters that a map's time is proportional to
# parameters that make a map of a game longer, the least important first
LONGER = ("entropy_bias", "tau", "risk", "attention_risk")
ONE = torch.tensor([0])  # the class that is explained
# what is timed: defaults, unless it says otherwise
POINTS: dict[str, list[dict[str, Any]]] = {
    "rg": [
        {},
        {"tau": 0.5},
        {"risk": -1, "input_variance": 2},
        {"tau": 0.5, "attention_risk": -10, "input_variance": 2},
    ],
    "sg": [{}, {"risk": -2, "input_variance": 1, "gate": "noisy"}],
    "smoothgrad": [{"n": 5}],
    "integrated_gradients": [{"steps": 5}],
    "dave": [{"n": 5}],
    "rg_eq": [{"n": 5}],
    "lime": [{"n": 25}],
    "kernel_shap": [{"n": 25}],
    "deeplift": [{}, {"rule": "gamma"}],
}


def measure(chosen: list[str]) -> None:
    """Time forward passes and maps of some networks; what was timed of others stays."""
    from networks import subject

    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(TIMES.read_text()) if TIMES.exists() else {"seconds": {}, "maps": {}, "fits": {}}
    for name in chosen or [*MAPPED, "VGG-16", "ViT-B/16"]:
        asked = subject(name)
        picture = interpolate(asked.x[:, :, :14, :14], asked.x.shape[2:], mode="bicubic")  # noise has no superpixels
        with torch.no_grad():
            found["seconds"][name] = _seconds(asked.logits, 5)
        if name in MAPPED:
            fits = fitting(Contender(name, name), bp.capture(asked.model, torch.zeros(2, 3, 224, 224)))
            found["fits"][name] = {"fits": [*fits.fits], "refused": {**fits.refused}, "attention": fits.attention}
            found["maps"][name] = [
                [method, params, _seconds(bp.Explainer(asked.model, method, **params).attribute, 1, picture, ONE)]
                for method in fits.fits
                for params in fits.points(method, POINTS.get(method, [{}]))
            ]
        found["machine"] = machine() | {"threads": 1}
        TIMES.write_text(json.dumps(found, indent=1) + "\n")


def _seconds(function: Callable[..., Any], times: int, *args: Any) -> float:
    """Processor seconds of a call, the median, after one call that is not counted: it prepares weights."""
    function(*args)
    found: list[float] = []
    for _ in range(times):
        begin = time.process_time()
        function(*args)
        found.append(time.process_time() - begin)
    return statistics.median(found)


@cache
def kept() -> dict[str, Any]:
    return json.loads(TIMES.read_text())


@cache
def passes() -> dict[tuple[str, str], list[tuple[dict[str, Any], float]]]:
    """By network and method: parameters and how many forward passes a map takes."""
    found: dict[tuple[str, str], list[tuple[dict[str, Any], float]]] = {}
    for name, maps in kept()["maps"].items():
        for method, params, seconds in maps:
            found.setdefault((name, method), []).append((params, seconds / kept()["seconds"][name]))
    return found


def map_passes(real: str, method: str, params: dict[str, Any]) -> float:
    """Forward passes that a map takes: of the timed point that is most alike, draws in proportion."""
    found = passes()
    if (real, method) in found:
        return _alike(found[real, method], method, params)
    others = [_alike(points, method, params) for (_, name), points in found.items() if name == method]
    if not others:
        raise SystemExit(f"no map of {method} was timed on any network: python benchmarks/cost.py measure")
    return statistics.median(others)


def _alike(points: list[tuple[dict[str, Any], float]], method: str, params: dict[str, Any]) -> float:
    defaults = {name: param.default for name, param in bp.methods()[method].params.items()}
    asked = defaults | params

    def set_in(point: dict[str, Any], name: str) -> bool:
        return point.get(name) != defaults.get(name)

    def unlike(point: tuple[dict[str, Any], float]) -> tuple[float, float]:
        other = defaults | point[0]
        far = sum(2**k for k, name in enumerate(LONGER) if set_in(asked, name) != set_in(other, name))
        return far, -point[1]

    nearest, count = min(points, key=unlike)
    for name in DRAWS:
        if name in defaults:
            count *= asked[name] / (defaults | nearest)[name]
    return count


@dataclass
class Bill:
    """What a config asks for."""

    points: int = 0  # grid points on validation
    cells: int = 0  # rows on the test, both sides of an ablation
    maps: float = 0.0
    passes: float = 0.0  # forward passes that all of it takes
    seconds: float = 0.0

    def add(self, other: Bill) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def bill(config: Config, robust: int | None = None) -> Bill:
    """The cost of a config, winners counted as the mean of the points that they are chosen from.

    `robust` limits the samples that robustness is measured on.
    """
    network = config.networks[0]
    timed, real = NETWORKS[network.load.rpartition(":")[2]]
    plan = Plan(config, _fitting(config, real))
    first = plan.first()
    even = {cell: dict.fromkeys(LOCALISATION, 0.5) for cell in first}  # every point as good as the next
    sizes = dict(zip(("validation", "test"), SIZES[config.data["kind"]], strict=True))
    found = Bill(points=len(first))
    for cell in first:
        found.add(_samples(sizes["validation"], real, [cell], config.validation_metrics, config.draws, robust))
    for cell in plan.second(even):
        choice = _choice(config, plan, cell) or [cell]
        found.add(_samples(sizes[cell.split], real, choice, config.metrics, config.draws, robust))
        found.cells += 1
    found.seconds = found.passes * kept()["seconds"][timed]
    return found


def _samples(
    count: int, real: str, choice: list[TableCell], metrics: Iterable[str], draws: int, robust: int | None
) -> Bill:
    """Of one cell: a map a sample, more for sensitivity, forward passes for faithfulness."""
    a_map = statistics.fmean(map_passes(real, cell.method, cell.given) for cell in choice)
    groups = {METRICS[name].group for name in metrics}
    tried = count if robust is None else min(count, robust)
    maps = count + (draws * tried if "robustness" in groups else 0)
    more = FLIPS * any(name in metrics for name in ("pf5", "pf20", "pf100")) + PATCHES * ("sel" in metrics)
    return Bill(maps=maps, passes=maps * a_map + count * more)


def _choice(config: Config, plan: Plan, cell: TableCell) -> list[TableCell]:
    """The points that a winner on the test is chosen from; none where a cell is not a winner."""
    for table in config.tables:
        for entry in table.entries:
            points = plan.fitting.points(entry.method, entry.grid) if table.kind == "main" else []
            own = [plan.cell(cell.split, entry.method, point) for point in points]
            if own and own[0] == cell and not _frozen(plan, entry, cell):
                return own
    return []


def _frozen(plan: Plan, entry: Entry, cell: TableCell) -> bool:
    return any(plan.cell(cell.split, entry.method, point) == cell for point in entry.frozen)


def _fitting(config: Config, real: str) -> Fitting:
    """Which methods fit: as on the network that maps are timed on."""
    found, known = kept()["fits"][real], bp.methods()
    return Fitting(config.networks[0], {n: known[n] for n in found["fits"]}, found["refused"], found["attention"])


def table() -> str:
    """The part of the page, in Markdown."""
    os.environ |= {"IMAGENET_S": "imagenet-s", "VOC2012": "voc"}  # no file of theirs is looked at
    one = ", ".join(f"{name} {value:.3g}" for name, value in kept()["seconds"].items())
    here = kept()["machine"]
    lines = [
        f"Measured on {here['processor']}, one thread, torch {here['torch']}.",
        f"Processor seconds of a forward pass: {one}.",
        "A map takes, in forward passes (draws or steps in brackets):",
        "",
        *_maps(),
        "",
        f"| config | points on validation | cells on test | maps | hours | hours, robustness on {FEW} |",
        "|---|---|---|---|---|---|",
    ]
    total, limited = Bill(), Bill()
    for path in sorted((ROOT / "configs").glob("tab-*.yaml")):
        config = bench.load(path)
        found, less = bill(config), bill(config, FEW)
        total.add(found)
        limited.add(less)
        lines.append(_line(path.stem, found, less))
    lines.append(_line("together", total, limited))
    return "\n".join([*lines, ""])


def _line(name: str, found: Bill, less: Bill) -> str:
    hours = f"{found.seconds / 3600:,.0f} | {less.seconds / 3600:,.0f}"
    return f"| {name} | {found.points or '–'} | {found.cells} | {found.maps:,.0f} | {hours} |"


def _maps() -> list[str]:
    reals = list(dict.fromkeys(model for model, _ in passes()))
    lines = [f"| method | {' | '.join(reals)} |", f"|---{'|---' * len(reals)}|"]
    for method, info in bp.methods().items():
        cells = [_span(passes().get((real, method), []), info) for real in reals]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {_escaped(info.title)} | {' | '.join(cells)} |")
    return lines


def _escaped(title: str) -> str:
    """`LRP-|z|` in a table's cell."""
    return title.replace("|", "\\|")


def _span(points: list[tuple[dict[str, Any], float]], info: bp.MethodInfo) -> str:
    """The cheapest and the dearest timed point."""
    if not points:
        return "–"
    name = next((name for name in DRAWS if name in info.params), None)
    low, high = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
    draws = f" ({low[0].get(name, info.params[name].default)})" if name else ""
    return f"{low[1]:.1f}{draws}" if high[1] < 1.15 * low[1] else f"{low[1]:.1f} to {high[1]:.1f}{draws}"


def main(words: list[str]) -> None:
    if words[:1] == ["measure"]:
        measure(words[1:])
        return
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    assert pattern.search(text), f"{PAGE} has no {BEGIN.strip()}"
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}{table()}{END}", text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
