"""A play at a glance: its map beside the image, its class, its value and the share of walks that arrive.

Also what other pictures ask of a play: the shares of both players at a node, and the layers worth showing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from backplay.errors import InputError, InputTypeError
from backplay.games.neurons import Neuron
from backplay.games.play import Play
from backplay.games.subplay import SubPlay
from backplay.inputs import Aim
from backplay.kernels.kernel import WALK, WALK_DIFFERENCE
from backplay.network import Node
from backplay.view.canvas import COLUMN, Picture, check_width, letters, picture, quiet
from backplay.view.colours import MINUS, PLUS, number, share
from backplay.view.heatmap import heatmap
from backplay.view.images import Looks, check_sample, looks_of

_ROWS = 24  # layers in one picture


def check_play(play: Any, what: str) -> None:
    if not isinstance(play, Play):
        raise InputTypeError(f"{what} takes a play, game.play(x); got {type(play).__name__}.")


def check_pixels(play: Play, what: str) -> None:
    """A play on one image input."""
    shapes = [tuple(play.solved[n].shape) for n in play.network.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        given = ", ".join(map(str, shapes))
        raise InputError(
            f"{what} draws images, (B, C, H, W); this play's input is {given}. bp.view.flow draws any play."
        )


def shares(play: Play, node: Node) -> tuple[Tensor, Tensor]:
    """(B,) float64: the shares of the walks that come to a node in the turn of `+` and of `−`."""
    total, difference = (node.layout.sum(play.mass(node, m).plain()).cpu() for m in (WALK, WALK_DIFFERENCE))
    return ((total + difference) / 2).clamp(min=0), ((total - difference) / 2).clamp(min=0)


def arriving(play: Play) -> Tensor:
    """(B,) the share of the walks that arrive at an input."""
    return torch.stack([part for n in play.network.inputs for part in shares(play, n)]).sum(0)


def layers(play: Play, most: int = _ROWS) -> list[tuple[str, Node]]:
    """At most `most` places on the walk's way, from the output to the input, each with its name.

    These are nodes, or where there are too many of them the outputs of modules, as deep as there is room for.
    """
    visited = [n for n in play.network.nodes if n in play.visited()]
    inner = [n for n in visited if n not in play.network.inputs]
    ends = [(n.name, n) for n in reversed(play.network.inputs) if n in play.visited()]
    if len(visited) <= most:
        return [(n.name, n) for n in reversed(inner)] + ends
    paths = {n: (n.path or n.name.split("#")[0]).split(".") for n in inner}
    found: dict[str, Node] = {}
    for depth in range(1, max(map(len, paths.values())) + 1):
        deeper = {".".join(paths[n][:depth]): n for n in inner}  # the last node of a module is its output
        if len(deeper) > most - len(ends) and found:
            break
        found = deeper
    order = {n: k for k, n in enumerate(inner)}
    rows = sorted(found.items(), key=lambda item: -order[item[1]])
    thinned = rows[:: -(-len(rows) // most)] if len(rows) > most else rows
    return [*thinned, *ends]


def described(play: Play, sample: int, looks: Looks) -> str:
    """`cross, value 9.2, 21 % of walks arrive`, or `cross rather than square, …`."""
    parts = [words] if (words := aim_words(play.aim, sample, looks)) else []
    parts += [f"value {number(float(play.value[sample]))}", f"{share(float(arriving(play)[sample]))} of walks arrive"]
    return ", ".join(parts)


@picture
def summary(
    play: Play, *, sample: int = 0, model: Any = None, mean: Any = None, std: Any = None, width: float | None = None
) -> Figure:
    """The map of a play beside its image; of other inputs, bars or a table of elements."""
    check_play(play, "summary")
    check_sample(sample, len(play.value), "the play")
    looks = looks_of(model or play.network, mean, std)
    title = described(play, sample, looks)
    if len(play.network.inputs) > 1:
        from backplay.view.flow import flow

        return flow(play, sample=sample, width=width)
    heat = play.attribution()
    heat = next(iter(heat.values())) if isinstance(heat, dict) else heat[0] if isinstance(heat, tuple) else heat
    if heat.ndim == 4:
        return heatmap(
            heat, play.x, sample=sample, title=title, model=model or play.network, mean=mean, std=std, width=width
        )
    if heat.ndim == 3:
        return heatmap(heat[sample][None, None], title=title, width=width)
    return bars(heat[sample].detach().double().cpu().flatten().numpy(), title, width)


@picture
def part(
    sub: SubPlay, *, sample: int = 0, model: Any = None, mean: Any = None, std: Any = None, width: float | None = None
) -> Figure:
    """The map of the walks through chosen states, beside the image; of other inputs, bars or a table of elements."""
    play = sub.play
    check_sample(sample, len(play.value), "the play")
    nodes = " and ".join(n.name for n in sub.masks)
    title = f"{share(float(sub.share[sample]))} of walks pass chosen states of {nodes}"
    heat = sub.maps()[0]
    if heat.ndim == 4:
        image, model = play.inputs[play.network.keys[0]], model or play.network
        return heatmap(heat, image, sample=sample, title=title, model=model, mean=mean, std=std, width=width)
    if heat.ndim == 3:
        return heatmap(heat[sample][None, None], title=title, width=width)
    return bars(heat[sample].detach().double().cpu().flatten().numpy(), title, width)


def bars(values: np.ndarray[Any, Any], title: str, width: float | None) -> Figure:
    """Elements without a place in an image, one bar each."""
    width = check_width(width, COLUMN)
    size = letters(width)
    figure = Picture(figsize=(width, 0.6 * width), layout="constrained")
    axes = quiet(figure.subplots(), size)
    axes.bar(range(len(values)), values, color=np.where(values >= 0, PLUS, MINUS), width=0.8)
    axes.axhline(0, color="0.3", lw=0.6)
    axes.set_title(title, fontsize=size)
    axes.set_xlabel("element of the input", fontsize=size)
    axes.set_ylabel("relevance", fontsize=size)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def aim_words(aim: Aim, sample: int, looks: Looks) -> str:
    """`cross`, `a neuron of layer3.1` or `cross rather than square`; nothing for other weights over the logits."""
    if isinstance(aim, Neuron):
        return f"a neuron of {aim.node.name}"
    if aim.index is not None:
        return looks.class_name(int(aim.index[sample]) % aim.shape[-1]) if len(aim.shape) <= 3 else ""
    assert aim.weights is not None
    weights = aim.weights[sample]
    if weights.ndim != 1:
        return ""
    chosen = {float(weights[k]): looks.class_name(int(k)) for k in weights.nonzero()[:, 0]}
    if len(chosen) != int((weights != 0).sum()):  # classes that weigh alike
        return ""
    sizes = sorted(chosen)
    if len(sizes) == 1 and sizes[0] > 0:
        return chosen[sizes[0]]
    if len(sizes) == 2 and sizes[0] == -sizes[1]:
        return f"{chosen[sizes[1]]} rather than {chosen[sizes[0]]}"
    return ""
