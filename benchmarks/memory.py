"""Memory: the peak above the loaded model, each in a process of its own.

Stated are the first map, which also prepares weights, and the next one, which finds them ready: its peak above what was
held before it is the working memory. Weights prepared for a game are stated apart, for they serve every later map.
"""

import argparse
import ctypes
import gc
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import torch

from cases import Case
from networks import subject
from rounds import Pace, Row, Say

WHAT = ("gradient", "Stopping map", "Routing anchor")
FIRST, WORKING, PREPARED, PARAMETERS = "first MB", "working MB", "prepared MB", "parameters MB"


def cases(small: bool) -> list[Case]:
    if small:
        return [_case("tiny CNN", WHAT[:2], 1)]
    singles = [_case(name, WHAT, 1) for name in ("VGG-16", "ResNet-50", "ViT-B/16")]
    return [*singles, *(_case(name, WHAT, 8) for name in ("VGG-16", "ResNet-50"))]


def _case(name: str, chosen: tuple[str, ...], batch: int) -> Case:
    def run(pace: Pace, say: Say) -> list[Row]:
        rows: list[Row] = []
        # told to keep what is freed, the allocator would take nothing new for the map that is weighed
        own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        for what in chosen:
            say(what)
            order = [sys.executable, str(Path(__file__).resolve()), "--network", name, "--batch", str(batch)]
            found = subprocess.check_output([*order, "--what", what], text=True, env=own)
            rows.append(Row(what, facts=json.loads(found.splitlines()[-1])))
        gradient = rows[0].facts[WORKING]
        for row in rows:
            row.ratio = row.facts[WORKING] / gradient if gradient else None
        return rows

    return Case("memory", name, "batch", batch, run)


def resident(trim: bool = False) -> int:
    """Bytes that this process holds; what was freed goes back first, so that it does not hide what is taken next."""
    if trim:
        gc.collect()
        if hasattr(ctypes.CDLL(None), "malloc_trim"):
            ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


class Peak:
    """Largest resident size while it is entered, above the size before: Linux keeps count, and misses nothing."""

    def __enter__(self) -> "Peak":
        resident(trim=True)
        Path("/proc/self/clear_refs").write_text("5")  # the count begins anew
        self._before = self._peak()
        return self

    def __exit__(self, *args: object) -> None:
        self.megabytes = (self._peak() - self._before) / 1e6

    def _peak(self) -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def weigh(name: str, batch: int, what: str) -> dict[str, float]:
    """Megabytes of one kind of map, in this process."""
    asked, prepared = subject(name, batch), 0.0
    with torch.no_grad():
        asked.logits()  # threads and library buffers are there before the counting starts
    call = asked.gradient
    if what != "gradient":
        import backplay as bp

        network = bp.capture(asked.model, asked.given)
        game = bp.StoppingGame(network) if what == "Stopping map" else bp.RoutingGame(network)
        call = lambda: game.attribute(asked.given, 0)  # noqa: E731
    with Peak() as first:
        call()
    with Peak() as again:
        call()
    if what != "gradient":
        prepared = network.weights().nbytes() / 1e6
    parameters = sum(p.nbytes for p in asked.model.parameters()) / 1e6
    return {FIRST: first.megabytes, WORKING: again.megabytes, PREPARED: prepared, PARAMETERS: parameters}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--what", choices=WHAT, required=True)
    options = parser.parse_args()
    print(json.dumps(weigh(options.network, options.batch, options.what)))
