"""Kernels that are the same in both games: winners and wires."""

from __future__ import annotations

from backplay.kernels.kernel import Kernel
from backplay.kernels.moves import Duel, Relabelling, Winner
from backplay.network.nodes import Max, Node, Select, Wire
from backplay.values.forward import Values


def structural_kernel(node: Node, values: Values) -> Kernel:
    """Max nodes and wires."""
    match node:
        case Max(winner=None):
            left, right = node.inputs
            first = node.first(values[left], values[right])
            return Duel((first, ~first))
        case Select():
            first = values[node.mask].expand(values[node].shape)
            carries = [isinstance(side, Node) and side.carries for side in node.sides]
            return Duel((first, ~first), (carries[0], carries[1]))
        case Max():
            assert node.winner is not None
            operand = values[node.inputs[0]]
            return Winner(node.winner(operand), operand.shape)
        case Wire():
            return Relabelling(node, values)
        case _:
            raise AssertionError(f"no kernel for {node!r}")
