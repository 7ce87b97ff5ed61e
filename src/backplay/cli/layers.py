"""Relevance at a layer, as a plane that lies on the photograph."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

import backplay as bp
from backplay.errors import BackplayError, InputError, list_words
from backplay.methods.maps import feature_maps, find_map
from backplay.methods.tokens import Patches, find_tokens
from backplay.network import Node
from backplay.network.layout import PLAIN

# relevance of one photograph at a layer -> (h, w), and the share of it that lies nowhere there: on a class token
Laid = Callable[[Tensor], tuple[Tensor, float]]


def laid_out(network: bp.Network, layer: str) -> Laid:
    """How the output of a module lies on the photograph: as a feature map, or as tokens that stand for patches."""
    node, maps = _found(network, layer), feature_maps(network)
    if node in maps or node is network.input:
        return lambda heat: (heat.sum(0), 0.0)
    tokens = find_tokens(network)
    patches = tokens if isinstance(tokens, Patches) else None
    if patches is not None and _holds(node, patches):
        return lambda heat: _on_patches(heat.sum(-1), patches)
    fitting = [n.name for n in network.nodes if n in maps or (patches is not None and _holds(n, patches))]
    shape = tuple(node.shape[1:])
    raise InputError(
        f"--layer {layer} gives {shape} for a photograph, no feature map and no patches that could be laid on it; "
        f"name one of {list_words(fitting)}."
    )


def _on_patches(scores: Tensor, patches: Patches) -> tuple[Tensor, float]:
    """Scores (T,) of the tokens, patch by patch, and the share in size of those that are no patches."""
    sizes = scores.abs()
    total = float(sizes.sum())
    aside = float(sizes[: patches.prefix].sum()) / total if total else 0.0
    return scores[patches.prefix :].reshape(patches.height, patches.width), aside


def check_map(network: bp.Network, layer: str | None) -> None:
    """Refuse a layer at which a class activation map finds no feature map."""
    if layer is not None:
        _found(network, layer)
    find_map(network, layer)


def _found(network: bp.Network, layer: str) -> Node:
    try:
        return network.find(layer)
    except BackplayError as error:
        reason = str(error).partition(";")[0]
        raise InputError(f"--layer {layer}: {reason}; `backplay inspect` lists all names.") from error


def _holds(node: Node, patches: Patches) -> bool:
    """Whether a node's output is a row of features for each token."""
    count = patches.prefix + patches.height * patches.width
    return node.layout == PLAIN and len(node.shape) == 3 and node.shape[1] == count
