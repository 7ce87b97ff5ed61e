"""What the benchmark's harness costs beside the methods and metrics that it calls, and what it holds in memory.

    python benchmarks/harness.py overhead    # processor time outside methods and metrics, beside the time inside them
    python benchmarks/harness.py memory      # resident megabytes over 10,000 rows, with a picture

Both write into benchmarks/results/harness.json. Overhead is that of configs/quick.yaml with its cheapest metrics alone,
localisation, on two samples a split: the harness does the same for all metrics. It is counted in one process, without
the loading and capturing of networks before the first sample; everything else that is not inside a method or a metric
counts, the making of pictures, the store and the progress among it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import backplay as bp
from backplay import bench
from backplay.bench import runs
from backplay.bench.metrics import Meter
from backplay.bench.rows import Outcome
from backplay.bench.store import Store
from backplay.bench.work import MapWorker
from memory import resident
from store import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FILE = RESULTS / "harness.json"
ROWS = 10_000


class Clock:
    """Processor seconds inside some functions; a call inside a call counts once, one inside `other`'s not at all."""

    def __init__(self, other: Clock | None = None) -> None:
        self.seconds, self.depth, self.other = 0.0, 0, other

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            begin = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0 and (self.other is None or self.other.depth == 0):
                    self.seconds += time.process_time() - begin

        return timed


@contextmanager
def clocked(owner: Any, name: str, clock: Clock) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, clock.around(kept))
    try:
        yield
    finally:
        setattr(owner, name, kept)


def overhead() -> dict[str, Any]:
    """Processor seconds of the stages, of what they call, and of what loads networks."""
    stages, setup = Clock(), Clock()
    inside = Clock(setup)  # a first map is made while a network is captured
    keys = yaml.safe_load((ROOT / "configs" / "quick.yaml").read_text())
    keys = {k: v for k, v in keys.items() if k != "limits"} | {"metrics": ["localisation"]}
    with (
        tempfile.TemporaryDirectory() as made,
        clocked(runs, "work_off", stages),
        clocked(bp.Explainer, "attribute", inside),
        clocked(Meter, "measure", inside),
        clocked(MapWorker, "_network", setup),
    ):
        (Path(made) / "quick.yaml").write_text(yaml.safe_dump(keys))
        config = bench.load(Path(made) / "quick.yaml", limits={"validation": 2, "test": 2})
        summary = runs.run(config, Path(made) / "run")
        rows = len(bench.read(Path(made) / "run"))
    outside = stages.seconds - inside.seconds - setup.seconds
    return {
        "samples": summary.done,
        "rows": rows,
        "inside methods and metrics, s": round(inside.seconds, 2),
        "harness, s": round(outside, 3),
        "loading networks, s": round(setup.seconds, 2),
        "overhead": round(outside / inside.seconds, 4),
    }


NETWORK = """
import torch
from torch import nn

def tiny():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12 * 12, 10))
    return net, {"size": 96, "mean": [0.5] * 3, "std": [0.25] * 3}
"""
MANY = """models: [{name: tiny, load: "nets.py:tiny"}]
data: {kind: zoo, validation: 1, test: 125}
metrics: [localisation]
tables:
  - kind: sweep
    method: rg
    vary: {tau: [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3]}
"""


def held() -> dict[str, Any]:
    """Resident megabytes after every 500 rows of a run, one process, network and metrics included."""
    found: list[tuple[int, float]] = []
    rows = 0
    append = Store.append

    def watched(self: Store, outcome: Outcome) -> None:
        nonlocal rows
        append(self, outcome)
        before, rows = rows, rows + len(outcome.values)
        if before // 500 != rows // 500:
            found.append((rows, resident(trim=True) / 1e6))

    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "nets.py").write_text(NETWORK)
        (Path(made) / "many.yaml").write_text(MANY)
        Store.append = watched
        try:
            runs.run(bench.load(Path(made) / "many.yaml"), Path(made) / "run")
        finally:
            Store.append = append
    begin = next(megabytes for count, megabytes in found if count >= 2000)
    assert rows >= ROWS, f"{rows} rows"
    last = next(megabytes for count, megabytes in found if count >= ROWS)
    return {"rows": rows, "megabytes": found, "grown from row 2000 to row 10000, MB": round(last - begin, 2)}


def draw(points: list[tuple[int, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3), layout="constrained")
    axes.plot(*zip(*points, strict=True), color="#d62728", marker="o", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows")
    axes.set_ylabel("resident megabytes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main(words: list[str]) -> None:
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if words == ["overhead"]:
        found = kept["overhead"] = overhead()
    elif words == ["memory"]:
        found = kept["memory"] = held()
        draw(found["megabytes"], RESULTS / "harness-memory.png")
    else:
        raise SystemExit(__doc__)
    FILE.write_text(json.dumps({"machine": machine(), **kept}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
