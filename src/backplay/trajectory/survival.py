"""The forward pass: what a state may still expect (eq:survival-recursion, eq:gamma)."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from backplay.kernels.kernel import Kernel
from backplay.network import Network, Node
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Input


def expect(
    network: Network,
    kernel: Callable[[Node], Kernel],
    visited: Collection[Node],
    terminal: Callable[[Node], Mass],
    ends: bool,
) -> dict[Node, Mass]:
    """Expectation, from every visited state, of `terminal` at the inputs, and of 1 in † and in constants if `ends`.

    On a play's own kernels without ends this is the survival function `h` (eq:survival-recursion); on geometric kernels
    with ends it is the overlap `γ` that is still to come (eq:gamma).
    """
    found: dict[Node, Mass] = {}
    for node in network.nodes:
        if node not in visited:
            continue
        if isinstance(node, Input):
            found[node] = terminal(node)
        else:
            step = kernel(node)
            found[node] = ahead_of(node, step, [found[n] for n in step.carriers or node.carriers], ends)
    return found


def ahead_of(node: Node, step: Kernel, below: list[Mass], ends: bool) -> Mass:
    """The same for the states of one node, from what their carriers expect."""
    values, common = aligned(below)
    ahead = Mass(step.push(values), common, node.layout)
    if not ends:
        return ahead.normalised()
    ones = torch.ones_like(ahead.value)
    for end in (step.lost(ones), step.constant(ones)):
        if end is not None:
            ahead = ahead.plus(Mass(end, torch.zeros_like(common), node.layout))
    return ahead.normalised()
