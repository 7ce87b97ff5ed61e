"""What `backplay explain` costs beside the maps that it writes: `python benchmarks/explain.py --n 100`.

Photographs are scenes of the zoo, drawn as JPEG files of 500 × 375 into a folder that is removed afterwards. In one
run, round by round, each network is asked for

- the maps alone: `game.attribute`, on images that are read already, in the batches that the command makes;
- maps and shares: `game.play`, its map and the walk's mass at the image;
- the command without shares, which is its default for more than eight photographs, and with them, from files to files.

The command loads and captures its network at each call; that is timed apart, for it does not grow with the photographs.
Ratios are what counts: a busy machine slows all rows alike.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import backplay as bp
from backplay import models, zoo
from backplay.cli import main as command
from backplay.cli.columns import read
from backplay.cli.explaining import Explaining

NETWORKS = ("torchvision:resnet50", "zoo:vgg")
BAR = 1.10


@dataclass
class Cost:
    """Seconds on the clock and of the processor."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu)

    def __truediv__(self, parts: float) -> Cost:
        return Cost(self.wall / parts, self.cpu / parts)


@contextlib.contextmanager
def measured(cost: Cost) -> Generator[None]:
    """Add what happens inside."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    cost.wall += time.perf_counter() - wall
    cost.cpu += time.process_time() - cpu


@contextlib.contextmanager
def apart(cost: Cost) -> Generator[None]:
    """Add what loading and capturing take inside."""
    own = models.load, bp.capture

    def timed(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            with measured(cost):
                return function(*args, **keywords)

        return call

    models.load, bp.capture = map(timed, own)  # type: ignore[assignment]
    try:
        yield
    finally:
        models.load, bp.capture = own


def draw(folder: Path, n: int) -> list[Path]:
    """Scenes of the zoo as photographs."""
    colours = (zoo.images(n).x * zoo.scenes.SPREAD + zoo.scenes.MEAN).clamp(0, 1)
    paths = [folder / f"photo-{k:03}.jpg" for k in range(n)]
    for path, scene in zip(paths, colours, strict=True):
        pixels = (scene * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


class Rows:
    """The rows of one network."""

    def __init__(self, name: str, first: Path) -> None:
        self.name, self.weights = name, [] if name.startswith("zoo:") else ["--weights", "random"]
        self.loaded = models.load(name, self.weights[1] if self.weights else None)
        x = self.loaded.photograph(first)[None]
        asking = Explaining(self.loaded, read(["rg"], {}))
        self.size, self.game = asking.together(x), bp.RoutingGame(asking.prepare(x))
        self.maps, self.shares, self.bare, self.whole, self.once = Cost(), Cost(), Cost(), Cost(), Cost()
        self.calls = 0

    def batches(self, paths: Sequence[Path]) -> Iterator[Tensor]:
        for start in range(0, len(paths), self.size):
            yield torch.stack([self.loaded.photograph(path) for path in paths[start : start + self.size]])

    def round(self, paths: Sequence[Path], folder: Path) -> None:
        """Every row once, on some of the photographs."""
        for x in self.batches(paths):
            with measured(self.maps):
                self.game.attribute(x)
        for x in self.batches(paths):
            with measured(self.shares):
                play = self.game.play(x)
                play.attribution()
                play.marginal("input").flatten(1).sum(1)
                del play
        for cost, options in ((self.bare, ["--no-share"]), (self.whole, ["--share"])):
            self.command(cost, paths, folder, options)

    def command(self, cost: Cost, paths: Sequence[Path], folder: Path, options: list[str]) -> None:
        """The command line in this process; what it loads and captures goes to `once`."""
        out, once = folder / f"maps-{self.calls}", Cost()
        self.calls += 1
        given = ["explain", *map(str, paths), "--model", self.name, *self.weights, *options, "-o", str(out)]
        total, said = Cost(), io.StringIO()
        with apart(once), measured(total), contextlib.redirect_stdout(said):
            code = command(given)
        if code != 0:
            raise SystemExit(f"{given[0]} … ended with {code}: {said.getvalue()}")
        self.once = self.once + once
        cost.wall, cost.cpu = cost.wall + (total - once).wall, cost.cpu + (total - once).cpu

    def lines(self, n: int) -> Iterator[str]:
        """A table: seconds, and ratios to maps alone and to maps with shares."""
        once = self.once / self.calls
        yield f"\n{self.name}: {n} photographs, {self.size} at once; loading and capture {once.wall:.1f} s"
        yield "| | wall s | CPU s | CPU ms a photograph | CPU: maps | wall: maps | CPU: maps + shares |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        rows = {
            "maps alone": self.maps,
            "maps + shares": self.shares,
            "explain --no-share": self.bare,
            "explain --no-share, loading and capture included": self.bare + once,
            "explain --share": self.whole,
            "explain --share, loading and capture included": self.whole + once,
        }
        for name, cost in rows.items():
            ratios = (cost.cpu / self.maps.cpu, cost.wall / self.maps.wall, cost.cpu / self.shares.cpu)
            shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            yield f"| {name} | {cost.wall:.2f} | {cost.cpu:.2f} | {1e3 * cost.cpu / n:.0f} | {shown} |"
        met = [self.bare.cpu / self.maps.cpu <= BAR, self.whole.cpu / self.shares.cpu <= BAR]
        told = ["met" if one else "NOT met" for one in met]
        yield f"at most {BAR:g} of the maps, in CPU time: without shares {told[0]}, with shares {told[1]}"


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, default=100, help="photographs")
    parser.add_argument("--rounds", type=int, default=2, help="parts that they are asked in")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths = draw(folder, given.n)
        parts = [paths[k :: given.rounds] for k in range(given.rounds) if paths[k :: given.rounds]]
        for name in given.networks.split(","):
            rows = Rows(name, paths[0])
            warm = paths[: rows.size]
            rows.round(warm, folder)  # what is made once is made: weights, letters, libraries
            rows.maps, rows.shares, rows.bare, rows.whole, rows.once, rows.calls = *(Cost() for _ in range(5)), 0
            for k, part in enumerate(parts):
                place = folder / f"{name.replace(':', '-')}-{k}"
                place.mkdir()
                rows.round(part, place)
            for line in rows.lines(len(paths)):
                print(line, flush=True)


if __name__ == "__main__":
    run()
