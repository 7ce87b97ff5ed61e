"""Nodes that a caller chooses by name: those at which walks stand."""

from __future__ import annotations

from backplay.errors import NEVER_WALKED, InputError
from backplay.games import Play
from backplay.kernels.kernel import DIFFERENCE
from backplay.network import Node
from backplay.network.groups import find_grouped
from backplay.network.nodes import Input


def choose(play: Play, name: str | Node, by: str) -> Node:
    """The node or module of a name, if walks stand at its output."""
    node = find_grouped(play.network, name, by)
    if node not in play.network.carrying:
        raise InputError(f"{name!r} is {NEVER_WALKED}.")
    for other in (n for n in play.passed(DIFFERENCE).masses if not isinstance(n, Input)):
        if play.kernel(other).crosses(node):
            raise InputError(
                f"{name!r} is crossed inside attention, where walks do not stand; name {other.name!r} instead."
            )
    return node
