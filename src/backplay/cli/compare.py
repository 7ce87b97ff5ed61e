"""`backplay compare A B`: how far apart two calculations are, as picture and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.cli import columns
from backplay.cli.bar import Bar
from backplay.cli.columns import GAMES, Column, file_name, typeset, words
from backplay.cli.explain import SPELLED, MethodCommand, keywords_of
from backplay.cli.explaining import check_classes, class_number
from backplay.cli.options import (
    command_line,
    complete_list,
    json_asked,
    json_option,
    model_option,
    out_option,
    separated,
    weights_option,
)
from backplay.cli.output import check_folder, check_pictures, print_json, whole
from backplay.cli.runs import Item, RunFolder, digest_of, settings_of
from backplay.errors import InputError, KeywordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAMES = {"sg": "Stopping Game", "rg": "Routing Game"}
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


@dataclass(frozen=True)
class Side:
    """One of the two calculations."""

    photograph: Path
    weights: str | None

    def name(self, other: Side) -> str:
        """What tells it from the other one."""
        if self.photograph != other.photograph or self.weights is None:
            return self.photograph.stem
        return Path(self.weights).stem


@click.command(
    "compare",
    cls=MethodCommand,
    context_settings=SPELLED,
    short_help="how far apart two calculations are: H, H_surv and where they differ",
    help="Compare how a network calculates two photographs, or how two files of weights calculate one: the Hellinger "
    "distance H between the walks, H_surv between those that arrive, and a map of where they differ.\n\n"
    "A and B are two photographs; or two files of weights, with --image PHOTOGRAPH; or give one photograph and "
    "--weights twice. Both are asked about one class: --target, or what the network says to A.",
    epilog="\b\nExample: backplay compare a.jpg b.jpg --model zoo:vgg --epsilon 0 -o maps",
)
@click.argument("sides", nargs=-1, required=True, metavar="A [B]", type=click.Path(path_type=Path))
@model_option()
@weights_option("Weights: a file, or 'random'; twice to compare two of them on one photograph.", multiple=True)
@click.option("--image", metavar="IMAGE", type=click.Path(path_type=Path), help="Where A and B are files of weights.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("rg",),
    metavar="NAME[,…]",
    help="Games, rg or sg, or presets of them (default: rg).",
    shell_complete=complete_list(lambda: GAMES),
)
@click.option("--target", metavar="CLASS", help="Class, by number or name (default: the largest logit of A).")
@out_option("out/compare")
@json_option
def command(
    sides: tuple[Path, ...],
    model: str,
    weights: tuple[str, ...],
    image: Path | None,
    methods: tuple[str, ...],
    target: str | None,
    out: Path,
    **given: tuple[str, ...],
) -> int:
    asked = columns.read(separated(methods), keywords_of(given))
    others = [column.asked for column in asked if column.method not in GAMES]
    if others:
        raise KeywordError(
            f"compare plays games: --method takes {', '.join(GAMES)} and presets of them, not {others[0]}."
        )
    check_folder(out)
    a, b = read_sides(sides, weights, image)
    check_pictures()

    settings = settings_of(
        "compare",
        model,
        list(dict.fromkeys(w for w in (a.weights, b.weights) if w is not None)),
        columns=[column.describe() for column in asked],
        target=target,
    )
    run = RunFolder.open(out, settings, (".png", ".npz"), command_line())
    with Bar(f"loading {model}") as bar:
        reports = [_compared(run, bar, a, b, column, model, target) for column in asked]
    if json_asked():
        print_json({"out": str(out), "record": str(run.record), "distances": reports})
    else:
        for report in reports:
            print(_line(report))
    return 0


def read_sides(sides: Sequence[Path], weights: Sequence[str], image: Path | None) -> tuple[Side, Side]:
    """Two photographs, or one under two files of weights."""
    both = [str(side) for side in sides]
    if len(sides) == 2 and all(_is_weights(side) for side in sides):
        if image is None:
            raise InputError(f"{both[0]} and {both[1]} are files of weights; give the photograph too, --image IMAGE.")
        if weights:
            raise InputError("weights are given twice, as A and B and by --weights; give one of the two.")
        return Side(image, both[0]), Side(image, both[1])
    if image is not None:
        raise InputError("--image is for two files of weights as A and B; give photographs as A and B without it.")
    if len(sides) == 2 and len(weights) <= 1:
        own = weights[0] if weights else None
        return Side(sides[0], own), Side(sides[1], own)
    if len(sides) == 1 and len(weights) == 2:
        return Side(sides[0], weights[0]), Side(sides[0], weights[1])
    photographs = f"{len(sides)} photograph{'' if len(sides) == 1 else 's'}"
    files = f"{len(weights) or 'no'} file{'' if len(weights) == 1 else 's'} of weights"
    raise InputError(
        f"given were {photographs} and {files}; compare takes two photographs, or one photograph and --weights twice."
    )


def _is_weights(path: Path) -> bool:
    return str(path) == models.RANDOM or path.suffix.lower() in WEIGHTS


def _compared(
    run: RunFolder, bar: Bar, a: Side, b: Side, column: Column, model: str, target: str | None
) -> dict[str, Any]:
    """One game's distance: from the record if it is there, else computed, drawn and written."""
    key = f"{column.name}: {a.photograph.resolve()} {a.weights} | {b.photograph.resolve()} {b.weights}"
    item = Item(key, f"{a.name(b)}-vs-{b.name(a)}")
    digest = f"{digest_of(a.photograph)} {digest_of(b.photograph)}"
    played = {"game": _GAMES[column.method], "modes": column.modes}
    if run.is_done(item, digest):
        return {**run.report(item), **played}
    loaded = models.load(model, a.weights)
    xs = [loaded.photograph(side.photograph)[None] for side in (a, b)]
    other = loaded if a.weights == b.weights else models.load(model, b.weights)
    bar.say(f"comparing by {column.name}")
    h, chosen = _distance(loaded, other, xs, column, target)
    run.claim({item: digest}, file_name([column], {"target": target}))
    figure, numbers = run.files(item)
    report = {
        "a": {"image": str(a.photograph), "weights": a.weights, "value": float(h.a.value[0])},
        "b": {"image": str(b.photograph), "weights": b.weights, "value": float(h.b.value[0])},
        "method": column.name,
        **played,
        "class": loaded.class_name(chosen),
        "target": chosen,
        "distance": float(h.distance[0]),
        "surviving": float(h.surviving[0]),
        "bc": float(h.bc[0]),
        "survival_a": float(h.survival_a[0]),
        "survival_b": float(h.survival_b[0]),
        "by_layer": {name: float(bc[0]) for name, bc in h.by_layer},
        "figure": str(figure),
        "numbers": str(numbers),
    }
    with whole(figure) as path:
        _drawn(h, loaded, column).savefig(path, format="png", dpi=144)
    with whole(numbers) as path, path.open("wb") as file:
        np.savez(file, disagreement=h.map()[0].numpy(), fraction=h.map("fraction")[0].numpy())
    run.done(item, digest, report)
    run.write()
    return report


def _distance(
    loaded: models.Loaded, other: models.Loaded, xs: Sequence[Tensor], column: Column, target: str | None
) -> tuple[bp.Hellinger, int]:
    """The distance between the walks from one class, and that class."""
    index = None if target is None else class_number("--target", target, loaded)
    game = GAMES[column.method]
    network = bp.capture(loaded.model, xs[0])
    check_classes(network, index, None)
    with torch.no_grad():
        chosen = int(network.model_logits({network.keys[0]: xs[0]})[0].argmax()) if index is None else index
    first = game(network, **column.params).play(xs[0], chosen)
    twin = network if other is loaded else bp.capture(other.model, xs[1])
    second = game(twin, **column.params).play(xs[1], chosen)
    return bp.hellinger(first, second), chosen


def _drawn(h: bp.Hellinger, loaded: models.Loaded, column: Column) -> Figure:
    """The figure of a distance, which game and modes it is of in its heading."""
    game = ", ".join([_GAMES[column.method], *typeset(column.modes)])
    return bp.view.distance(h, title=game, model=loaded, width=5.0)


def _line(report: dict[str, Any]) -> str:
    surviving = report["surviving"]
    given = "unknown: no walk arrives" if surviving is None or surviving != surviving else f"{surviving:.4f}"
    game = ", ".join([report["game"], *(f"{name}={words(value)}" for name, value in report["modes"].items())])
    return (
        f"{report['method'].split()[0]} ({game}): H {report['distance']:.4f}, given survival {given}; "
        f"class {report['class']} ({report['target']}), values {report['a']['value']:.4g} and "
        f"{report['b']['value']:.4g}; {report['figure']}"
    )
