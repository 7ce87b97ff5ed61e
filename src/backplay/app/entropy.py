"""How undecided a walk is: the entropy of its next move, node by node, in bits.

The entropy of a row of transitions is minus its relative entropy to a row that gives every move the score 1, so the
kernels' own `divergence` gives it, and rows are never written out. By the chain rule, what all nodes add up to is the
entropy of the law of the walk (eq:path-measure).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from backplay.entry import without_gradients
from backplay.errors import UnsupportedError
from backplay.games.play import Play
from backplay.kernels.attention import ValueRouting
from backplay.kernels.contributions import ByParts, Contributions, is_empty
from backplay.kernels.divergence import Divergence, apart
from backplay.kernels.kernel import WALK, WALK_DIFFERENCE, Kernel
from backplay.kernels.linear import Sharing, StoppingLinear
from backplay.kernels.streams import RoutingLinear, StreamKernel
from backplay.network import Node
from backplay.network.linear import Resampling
from backplay.network.mass import Mass
from backplay.network.nodes import Input


def move_entropy(play: Play) -> dict[Node, Tensor]:
    """Of every node that the walk comes to, (B,) float64: the bits of its next move, times the chance to be there."""
    found: dict[Node, Tensor] = {}
    with without_gradients():
        for node, mass in play.visited().items():
            if isinstance(node, Input):
                continue
            nats = row_entropy(play.kernel(node), mass.value)
            weighed = Mass(mass.value * nats.to(mass.value), mass.exponent, mass.layout)
            found[node] = weighed.total().double() / math.log(2)
    return found


def row_entropy(kernel: Kernel, like: Tensor) -> Tensor:
    """The entropy in nats of the next move from each state, † among the moves; broadcastable against the output.

    NaN where weights are products of several matrices, as those of a resizing are.
    """
    match kernel:
        case RoutingLinear():
            scores = kernel.contributions.divergence(_flat(kernel.contributions))
            return _evened(-_streams(kernel, scores).nats, kernel, kernel.contributions._signed()[1], like)
        case ValueRouting():
            ones = torch.ones_like(kernel.totals[0])
            even = replace(
                kernel,
                weight=kernel.weight.sign(),
                values=(kernel.values[0].sign(), kernel.values[1].sign()),
                projection=_flat(kernel.projection),
                totals=(ones, ones),
            )
            return -_streams(kernel, kernel.scores_apart(even)).nats
        case StoppingLinear():
            even = replace(kernel, weight=kernel.weight.sign(), totals=lambda: torch.ones_like(kernel.total))
            return _evened(-kernel.divergence(even).nats, kernel, like.new_ones(kernel.shape), like)
        case Sharing():
            ones = torch.ones_like(kernel.inverse)
            even = replace(kernel, weight=kernel.weight.sign(), value=kernel.value.sign(), inverse=ones)
            return _evened(-kernel.divergence(even).nats, kernel, kernel.value, like)
        case Kernel(one_each=True):
            return _elementwise(kernel, like)
        case _:
            raise UnsupportedError(f"{type(kernel).__name__} is no walk whose moves have an entropy.")


def _evened(nats: Tensor, kernel: RoutingLinear | StoppingLinear | Sharing, value: Tensor, like: Tensor) -> Tensor:
    """With the weight that a mean gives to each of its moves by itself, which is no part of the scores."""
    node = kernel.contributions.node if isinstance(kernel, RoutingLinear) else kernel.node
    if isinstance(node.map, Resampling):
        return torch.full_like(like, torch.nan)
    if not node.map.even:
        return nats
    ones = torch.ones_like(like)
    lost = kernel.lost(ones)
    return nats - (ones if lost is None else ones - lost) * node.map.row_weight(value).log()


def _flat(contributions: Contributions) -> ByParts:
    """The same moves, each with the score 1."""
    weight, value = contributions.exactly()._signed()
    return ByParts(contributions.node, weight.sign(), value.sign())


def _streams(kernel: StreamKernel, scores: tuple[Divergence, Divergence]) -> Divergence:
    """From the scores on both streams to probabilities, with the ways to †."""
    found: list[Divergence] = []
    for side, rows in zip((1, -1), scores, strict=True):
        stream = kernel.stream(side)
        own, ends = stream.coefficient(WALK), stream.outside()
        moved = torch.where(is_empty(stream.total), 0, stream.total * own)
        found.append(rows.normalised(moved, own, torch.ones_like(own)).plus(apart(ends, torch.ones_like(ends))))
    return found[0].plus(found[1])


def _elementwise(kernel: Kernel, like: Tensor) -> Tensor:
    """Of kernels with one move for each operand: sums, gates, winners, wires."""
    ones = torch.ones_like(like)
    ends = kernel.lost(ones)
    total = torch.zeros_like(like) if ends is None else -torch.special.xlogy(ends, ends)
    shares = getattr(kernel, "shares", None)
    if shares is None:
        going = ones - (torch.zeros_like(like) if ends is None else ends)  # to the one operand, or to a constant
        return total - torch.special.xlogy(going, going)
    for part in kernel.pull(ones, WALK_DIFFERENCE):
        total = total - torch.special.xlogy(part.abs(), part.abs())
    return total
