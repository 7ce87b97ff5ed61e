"""`backplay methods`: every method by name."""

from __future__ import annotations

import argparse
from typing import Any

import torch

import backplay as bp
from backplay import models
from backplay.cli.output import print_json
from backplay.cli.parser import Commands, add_command
from backplay.progress import Progress


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "methods", "list the methods, their parameters and where they come from", run)
    parser.add_argument("--model", metavar="NAME", help="say which of them fit this network, and why the others do not")


def run(options: argparse.Namespace) -> int:
    network = None if options.model is None else _captured(options.model)
    found = [describe(info, network) for info in bp.methods().values()]
    if options.json:
        print_json(found)
        return 0
    width = max(len(entry["name"]) for entry in found)
    for entry in found:
        first, *rest = _lines(entry)
        print(f"{entry['name']:{width}}  {first}")
        for line in rest:
            print(f"{'':{width}}    {line}")
    return 0


def describe(info: bp.MethodInfo, network: bp.Network | None) -> dict[str, Any]:
    """A method as JSON; with a network, whether it fits, and the reason if not."""
    entry = {
        "name": info.name,
        "title": info.title,
        "family": info.family,
        "architectures": list(info.architectures),
        "params": {name: {"default": p.default, "range": p.range, "note": p.note} for name, p in info.params.items()},
        "grid": [dict(point) for point in info.grid],
        "reference": info.reference,
    }
    if network is not None:
        why = info.refusal(network)
        entry |= {"fits": why is None, "refusal": why}
    return entry


def _captured(name: str) -> bp.Network:
    """What fits does not depend on the weights, so that random ones do."""
    with Progress(f"loading {name}") as progress:
        loaded = models.load(name, models.RANDOM)
        progress.say(f"following {name}")
        return bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))


def _lines(entry: dict[str, Any]) -> list[str]:
    """A method as text, its name left out."""
    lines = [f"{entry['title']}: {entry['family']}, for {' and '.join(entry['architectures'])}"]
    if "fits" in entry:
        lines.append("fits" if entry["fits"] else f"does not fit: {entry['refusal']}")
    for name, param in entry["params"].items():
        note = param["note"] and f"; {param['note']}"
        lines.append(f"--{name.replace('_', '-')} {param['default']}: {param['range']}{note}")
    return [*lines, _grid(entry["grid"], entry["params"]), entry["reference"]]


def _grid(points: list[dict[str, Any]], params: dict[str, Any]) -> str:
    """The values of each parameter over the paper's validation grid; a point that leaves one out has its default."""
    varied = dict.fromkeys(name for point in points for name in point)
    if not varied:
        return "validation grid: the defaults alone"
    values = {name: dict.fromkeys(point.get(name, params[name]["default"]) for point in points) for name in varied}
    listed = "; ".join(f"{name} {', '.join(map(str, found))}" for name, found in values.items())
    return f"validation grid, {len(points)} {'point' if len(points) == 1 else 'points'}: {listed}"
