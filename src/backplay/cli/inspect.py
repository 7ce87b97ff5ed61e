"""`backplay inspect`: the game graph of a network."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
import torch

import backplay as bp
from backplay import models
from backplay.cli.bar import Bar
from backplay.cli.options import command as declared
from backplay.cli.options import json_asked, model_option, weights_option
from backplay.cli.output import print_json
from backplay.cli.refusals import all_refusals
from backplay.errors import CaptureError
from backplay.games.inspection import inspect
from backplay.games.modes import Modes
from backplay.text.reader import Reader

TOKENS = 8  # of the texts that a text model's graph is shown for; shapes have them
GAMES = {"rg": bp.RoutingGame, "sg": bp.StoppingGame}


@declared("inspect", "show the graph on which the games play: names, kinds, shapes")
@model_option()
@weights_option("Weights; the graph does not depend on them, so that random ones are taken if left out.")
@click.option("--game", type=click.Choice(list(GAMES)), default="rg", help="The game whose modes --layers gives.")
@click.option(
    "--layers",
    metavar="JSON",
    help='Modes by layer; shows what each node gets, e.g. \'{"features.*": {"tau": 0.5}}\'.',
)
def command(model: str, weights: str | None, game: str, layers: str | None) -> int:
    # modes that are out of range are refused before anything is loaded
    given: dict[str, Any] = {"layers": layers}
    modes = None if layers is None else GAMES[game].modes_type(**given)
    with Bar(f"loading {model}") as bar:
        loaded = _load(model, weights or models.RANDOM)
        bar.say(f"following {model}")
        example = _input(loaded)
        try:
            network = bp.capture(loaded.model, example)
        except CaptureError as error:
            raise all_refusals(loaded.model, example, error) from error
    report = describe(network, loaded, modes)
    if json_asked():
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


def _load(model: str, weights: str) -> models.Loaded | models.LoadedText:
    return models.load_text(model, weights) if models.reads_text(model) else models.load(model, weights)


def _input(loaded: models.Loaded | models.LoadedText) -> Any:
    """Two inputs as the network reads them: pictures, or the embeddings of texts of TOKENS tokens."""
    if isinstance(loaded, models.Loaded):
        return torch.zeros(2, 3, *loaded.size)
    reader = Reader(loaded.model, loaded.tokenizer)
    ids = torch.zeros(2, TOKENS, dtype=torch.long)
    masked = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in reader.takes else {}
    return {"inputs_embeds": reader.embed(ids), **masked}


def describe(
    network: bp.Network, loaded: models.Loaded | models.LoadedText, modes: Modes | None = None
) -> dict[str, Any]:
    """The graph as JSON; the batch is null in a shape. With the modes of a game also those of each node.

    An operator that the walk would have to cross is refused at capture. `unsupported` are the others without a kind:
    players are told their values, and no mass goes through them.
    """
    classes = loaded.classes if isinstance(loaded, models.Loaded) else range(network.output.shape[-1])
    unsupported = [node.operator for node in network.nodes if getattr(node, "unsupported", False)]
    return {
        "model": loaded.source,
        "classes": len(classes) if classes else None,
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
        "unsupported": sorted(set(unsupported)),
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
