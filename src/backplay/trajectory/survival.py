"""The survival pass, which runs forward: what a state may still expect (eq:survival-recursion, eq:gamma; S30)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.kernel import Conditioned, Kernel
from backplay.network import Network, Node
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Input

if TYPE_CHECKING:
    from backplay.games.play import Play


def survival(play: Play) -> dict[Node, Mass]:
    """`h`: from every state that the walk visits, the probability of reaching the input (eq:survival-function)."""
    return expect(play.network, play.kernel, play.visited(), ones_at_inputs(play), ends=False)


def ones_at_inputs(play: Play) -> Callable[[Node], Mass]:
    """1 at every input element (eq:survival-boundary)."""
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
    return lambda node: Mass(torch.ones_like(play.solved[node]), zeros, node.layout)


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
    expected: dict[Node, Mass] = {}
    for node in network.nodes:
        if node not in visited:
            continue
        if isinstance(node, Input):
            expected[node] = terminal(node)
        else:
            step = kernel(node)
            expected[node] = ahead_of(node, step, [expected[n] for n in step.carriers or node.carriers], ends)
    return expected


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


# ---------------------------------------------------------------- the walk given that it survives


def conditioned(node: Node, kernel: Kernel, h: dict[Node, Mass]) -> Conditioned:
    """The Doob transform of a node's kernel (eq:conditioned-kernel)."""
    return Conditioned.on(kernel, h[node], [h[n] for n in kernel.carriers or node.carriers])


def root_given_survival(play: Play, h: Mass) -> Tensor:
    """The first state of the walk given survival: of several logits, those that survive more often count for more."""
    root = play.root()
    likely = root * h.value
    total = h.layout.sum(likely)
    never = total == 0
    share = likely / h.layout.spread(torch.where(never, 1, total).to(root.dtype), root)
    return torch.where(h.layout.spread(never, root), root, share)


def log2_survival(play: Play, h: Mass) -> Tensor:
    """(B,) binary logarithm of `Z = h(s_0)` (eq:survival-mass), given `h` at the output."""
    return h.layout.sum(h.value * play.root()).log2() + h.exponent
