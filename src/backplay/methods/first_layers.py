"""The layers that see the input itself, to which relevance rules for pixels belong."""

from __future__ import annotations

from backplay.network import Network
from backplay.network.nodes import Affine, Diagonal, Held, Input, Mix, Node, Wire


def source_of(node: Node) -> Node:
    """What lies behind wires and constant scales."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def sees_input(node: Node) -> bool:
    """Whether only wires and constant scales lie between the input and a node's output."""
    return isinstance(source_of(node), Input)


def weighted_layers(network: Network) -> list[Affine]:
    """Convolutions, linear layers and other products with a constant matrix."""
    affine = [node for node in network.nodes if isinstance(node, Affine) and node in network.carrying]
    return [node for node in affine if not isinstance(node, (Mix, Held))]


def has_first_layer(network: Network) -> bool:
    """Whether a convolution or linear layer sees the input itself."""
    return any(sees_input(layer.operand) for layer in weighted_layers(network))
