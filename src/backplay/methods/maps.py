"""Feature maps of a network: which nodes hold one value for each channel and place, (B, C, h, w)."""

from __future__ import annotations

from backplay.errors import InputError
from backplay.network import Network
from backplay.network.choices import Max
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine, Diagonal, Gate, Input, Mix, Node, Norm, Product, Sum
from backplay.network.wires import Wire


def last_map(network: Network) -> Node | None:
    """The last feature map before pooling and flattening, more than one place wide and high."""
    maps = [n for n in feature_maps(network) if not _pools(n) and min(n.shape[2:]) > 1]
    return maps[-1] if maps else None


def find_map(network: Network, layer: str | None) -> Node:
    """The feature map at the output of a named module or node, or the last one."""
    node = last_map(network) if layer is None else network.find(layer)
    assert node is not None  # what the method needs was checked before
    maps = feature_maps(network)
    if node not in maps:
        raise InputError(
            f"layer={layer!r} has outputs {node.shape}, which are no feature maps (batch, channels, height, width); "
            f"name one of {[n.name for n in maps]}."
        )
    return node


def feature_maps(network: Network) -> list[Node]:
    """Nodes whose shape is (B, C, h, w) for certain: two-dimensional operators give or take them, others pass them on.

    The shape alone does not tell: (B, h, w, C) has four dimensions too.
    """
    spatial: set[Node] = {n.carriers[0] for n in network.nodes if _is_planar(n)}
    maps: list[Node] = []
    for node in network.nodes:
        four = len(node.shape) == 4 and node.shape[0] == -1
        if four and node in network.reached and (node in spatial or _is_planar(node) or _passes(node, spatial)):
            spatial.add(node)
            maps.append(node)
    return maps


def _pools(node: Node) -> bool:
    """What is no feature map of its own: the input, averages and maxima over places."""
    return isinstance(node, (Input, Mix)) or (isinstance(node, Max) and node.winner is not None)


def _is_planar(node: Node) -> bool:
    """A convolution or pooling over two dimensions."""
    if isinstance(node, Affine) and isinstance(node.map, Convolution):
        return len(node.shape) == 4
    return isinstance(node, (Max, Mix)) and node.facts.planar


def _passes(node: Node, found: set[Node]) -> bool:
    """Elementwise steps, and wires that leave the places where they are, such as a concatenation of channels."""
    known = [n for n in node.inputs if n in found and n.shape[2:] == node.shape[2:]]
    if isinstance(node, Wire):
        return len(known) == len(node.inputs) > 0
    if isinstance(node, Norm) and node.facts.reading == "norm" and not node.facts.by_channel:  # of the last axes
        return False
    elementwise = isinstance(node, (Gate, Diagonal, Norm, Sum, Product)) or (isinstance(node, Max) and not _pools(node))
    return elementwise and len(known) > 0
