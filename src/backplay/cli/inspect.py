"""`backplay inspect`: the game graph of a network."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

import backplay as bp
from backplay import models
from backplay.cli.bar import Bar
from backplay.cli.options import command as declared
from backplay.cli.options import json_asked, model_option, weights_option
from backplay.cli.output import print_json


@declared("inspect", "show the graph on which the games play: names, kinds, shapes")
@model_option()
@weights_option("Weights; the graph does not depend on them, so that random ones are taken if left out.")
def command(model: str, weights: str | None) -> int:
    with Bar(f"loading {model}") as bar:
        loaded = models.load(model, weights or models.RANDOM)
        bar.say(f"following {model}")
        network = bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))
    report = describe(network, loaded)
    if json_asked():
        print_json(report)
        return 0
    width = max(len(node["name"]) for node in report["nodes"])
    for node in report["nodes"]:
        print(f"{node['name']:{width}}  {node['kind']:9} {_shape(node['shape'])}")
    counts = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    print(f"{report['model']}: {len(report['nodes'])} nodes ({counts})")
    if report["unsupported"]:
        print(f"read but never walked, for want of a kind: {', '.join(report['unsupported'])}")
    return 0


def describe(network: bp.Network, loaded: models.Loaded) -> dict[str, Any]:
    """The graph as JSON; the batch is null in a shape.

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
            }
            for node in network.nodes
        ],
        "kinds": dict(Counter(node.kind for node in network.nodes)),
        "unsupported": sorted(set(told)),
    }


def _shape(shape: list[int | None]) -> str:
    return " × ".join("batch" if s is None else str(s) for s in shape)
