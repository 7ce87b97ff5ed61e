"""`backplay inspect`: the game graph of a network."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch

import backplay as bp
from backplay import models
from backplay.cli.output import print_json
from backplay.cli.parser import Commands, add_command, add_model
from backplay.games.inspection import inspect
from backplay.games.modes import Modes
from backplay.progress import Progress

GAMES = {"rg": bp.RoutingGame, "sg": bp.StoppingGame}


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "inspect", "show the graph on which the games play: names, kinds, shapes", run)
    add_model(parser, "weights; the graph does not depend on them, so that random ones are taken if left out")
    parser.add_argument("--game", choices=list(GAMES), default="rg", help="the game whose modes --layers gives")
    parser.add_argument(
        "--layers",
        metavar="JSON",
        help='modes by layer; shows what each node gets, e.g. \'{"features.*": {"tau": 0.5}}\'',
    )


def run(options: argparse.Namespace) -> int:
    # modes that are out of range are refused before anything is loaded
    modes = None if options.layers is None else GAMES[options.game].modes_type(layers=options.layers)
    with Progress(f"loading {options.model}") as progress:
        loaded = models.load(options.model, options.weights or models.RANDOM)
        progress.say(f"following {options.model}")
        network = bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))
    report = describe(network, loaded, modes)
    if options.json:
        print_json(report)
        return 0
    width = max(len(node["name"]) for node in report["nodes"])
    for node in report["nodes"]:
        print(f"{node['name']:{width}}  {node['kind']:9} {_shape(node['shape'])}{_words(node.get('changed', {}))}")
    counts = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    print(f"{report['model']}: {len(report['nodes'])} nodes ({counts})")
    if report["unsupported"]:
        print(f"read but never walked, for want of a kind: {', '.join(report['unsupported'])}")
    return 0


def describe(network: bp.Network, loaded: models.Loaded, modes: Modes | None = None) -> dict[str, Any]:
    """The graph as JSON; the batch is null in a shape. With the modes of a game also those of each node.

    An operator that the walk would have to cross is refused at capture. `unsupported` are the others without a kind:
    players are told their values, and no mass goes through them.
    """
    told = [node.operator for node in network.nodes if getattr(node, "unsupported", False)]
    return {
        "model": loaded.source,
        "classes": len(loaded.classes) if loaded.classes else None,
        "nodes": [
            {
                "name": node.name,
                "kind": node.kind,
                "operator": node.operator,
                "shape": [None if s == -1 else s for s in node.shape],
                **known,
            }
            for node, known in zip(network.nodes, _modes(network, modes), strict=True)
        ],
        "kinds": dict(Counter(node.kind for node in network.nodes)),
        "unsupported": sorted(set(told)),
    }


def _modes(network: bp.Network, modes: Modes | None) -> list[dict[str, Any]]:
    """The modes of each node, and those among them that are no defaults; nothing without a game."""
    if modes is None:
        return [{} for _ in network.nodes]
    return [{"modes": n.modes, "changed": {name: n.modes[name] for name in n.changed}} for n in inspect(modes, network)]


def _words(changed: dict[str, Any]) -> str:
    return "".join(f"  {name}={value}" for name, value in changed.items())


def _shape(shape: list[int | None]) -> str:
    return " × ".join("batch" if s is None else str(s) for s in shape)
