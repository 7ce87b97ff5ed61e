"""Rows of linear maps: the predecessors of single output states, gathered for many states at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import cast

import torch
from torch import Tensor

from backplay.network.contraction import Contraction
from backplay.network.layout import PLAIN
from backplay.network.linear import Averaging, Convolution, Dense, LinearMap, Resampling, Sparse
from backplay.network.nodes import Affine

_BUDGET = 2**22  # entries of the rows that are held at once

Score = Callable[[Tensor, Tensor], Tensor]  # (weights, flat indices of predecessors) -> non-negative scores


def choose(
    node: Affine,
    weight: Tensor,
    states: Tensor,
    shapes: tuple[torch.Size, torch.Size],
    score: Score,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """A predecessor of each state, drawn in proportion to its score, and the weight towards it.

    `states` are flat indices into the output; `shapes` are those of the operand and of the output.
    """
    found = torch.empty_like(states)
    towards = torch.empty(states.shape, dtype=weight.dtype, device=states.device)
    for part in _chunks(states, _width(node.map, weight, shapes[0])):
        index, row = gather(node, weight, states[part], shapes)
        pick = categorical(score(row, index), generator)[:, None]
        found[part], towards[part] = index.gather(1, pick)[:, 0], row.gather(1, pick)[:, 0]
    return found, towards


def at(value: Tensor | float, states: Tensor, shape: torch.Size) -> Tensor:
    """A number, or a tensor that broadcasts to the output's shape, at given states, float64."""
    if not isinstance(value, Tensor):
        return torch.full(states.shape, value, dtype=torch.float64, device=states.device)
    return value.expand(shape).flatten()[states].double()


def categorical(scores: Tensor, generator: torch.Generator) -> Tensor:
    """One column for each row, in proportion to the scores; a column of score 0 is never drawn."""
    edges = scores.double().cumsum(1)
    mark = torch.rand(len(scores), 1, dtype=torch.float64, device=scores.device, generator=generator) * edges[:, -1:]
    return torch.searchsorted(edges, mark, right=True)[:, 0].clamp(max=scores.shape[1] - 1)


def gather(
    node: Affine, weight: Tensor, states: Tensor, shapes: tuple[torch.Size, torch.Size]
) -> tuple[Tensor, Tensor]:
    """Flat indices of the predecessors of each state, and the weights towards them; (states, predecessors).

    `weight` is that of the node or one like it; `shapes` are those of the operand and of the output.
    """
    linear = node.map
    match linear:
        case Dense():
            width = shapes[0][-1]
            lead, unit = states // shapes[1][-1], states % shapes[1][-1]
            return lead[:, None] * width + torch.arange(width, device=states.device), weight[unit]
        case Convolution(transposed=False):
            return _receptive_field(linear, weight, states, shapes)
        case Contraction():
            return _contracted(linear, weight, states, shapes)
        case Averaging() | Resampling() | Convolution() | Sparse() if node.layout == node.operand.layout == PLAIN:
            return _probed(linear, weight, states, shapes)
        case _:
            return _sample_by_sample(node, weight, states, shapes)


def _chunks(states: Tensor, width: int) -> Iterator[slice]:
    size = max(1, _BUDGET // max(1, width))
    for start in range(0, len(states), size):
        yield slice(start, start + size)


def _width(linear: LinearMap, weight: Tensor, shape: torch.Size) -> int:
    match linear:
        case Dense():
            return shape[-1]
        case Convolution(transposed=False):
            return weight[0].numel()
        case Contraction(equation=equation):
            return prod(size for c, size in zip(equation.left, shape, strict=True) if c not in equation.out)
        case _:
            return shape.numel() // shape[0]


def _receptive_field(
    linear: Convolution, weight: Tensor, states: Tensor, shapes: tuple[torch.Size, torch.Size]
) -> tuple[Tensor, Tensor]:
    """What a convolution sees at each state; outside of the image weights are 0."""
    (_, channels, *space), kernel = shapes[0], weight.shape[2:]
    stride, padding, dilation, *_ = linear._geometry(len(kernel))
    place = torch.unravel_index(states, shapes[1])
    row = weight[place[1]]
    group = place[1] // (shapes[1][1] // linear.groups)
    shape = [len(states), weight.shape[1]] + [1] * len(kernel)
    index = (place[0] * channels + group * weight.shape[1])[:, None] + torch.arange(
        weight.shape[1], device=states.device
    )
    index, inside = index.view(shape), torch.ones(1, dtype=torch.bool, device=states.device)
    for d, size in enumerate(space):
        taps = torch.arange(kernel[d], device=states.device) * dilation[d] - padding[d]
        at = (place[2 + d] * stride[d])[:, None] + taps
        view = [len(states), 1] + [-1 if k == d else 1 for k in range(len(kernel))]
        inside = inside & ((at >= 0) & (at < size)).view(view)
        index = index * size + at.clamp(0, size - 1).view(view)
    return index.flatten(1), (row * inside).flatten(1)


def _contracted(
    linear: Contraction, weight: Tensor, states: Tensor, shapes: tuple[torch.Size, torch.Size]
) -> tuple[Tensor, Tensor]:
    """Axes of the operand that the output has not are run through; all others stand where the state stands."""
    equation, below = linear.equation, shapes[0]
    place = dict(zip(equation.out, torch.unravel_index(states, shapes[1]), strict=True))
    free = {c: size for c, size in zip(equation.left, below, strict=True) if c not in equation.out}
    ranges = torch.unravel_index(torch.arange(prod(free.values()), device=states.device), list(free.values()) or (1,))
    runs = dict(zip(free, ranges, strict=False))

    def index(letters: str, shape: torch.Size) -> Tensor:
        found = torch.zeros(len(states), prod(free.values()), dtype=torch.long, device=states.device)
        for c, size in zip(letters, shape, strict=True):
            at = place[c][:, None] if c in place else runs[c]
            found = found * size + (at if size > 1 else 0)  # an axis of length 1 is broadcast
        return found

    return index(equation.left, below), weight.flatten()[index(equation.right, weight.shape)]


def _probed(
    linear: LinearMap, weight: Tensor, states: Tensor, shapes: tuple[torch.Size, torch.Size]
) -> tuple[Tensor, Tensor]:
    """Maps that act on each entry of the first dimension alone: a batch of unit masses, one for each state."""
    inner, below = shapes[1].numel() // shapes[1][0], shapes[0].numel() // shapes[0][0]
    dtype = weight.dtype if weight.ndim else torch.float64  # a number fits any precision
    probe = torch.zeros(len(states), inner, dtype=dtype, device=states.device)
    probe.scatter_(1, (states % inner)[:, None], 1.0)
    shape = torch.Size((len(states), *shapes[0][1:]))
    row = linear.adjoint(probe.view(len(states), *shapes[1][1:]), weight, shape).flatten(1)
    return (states // inner)[:, None] * below + torch.arange(below, device=states.device), row


def _sample_by_sample(
    node: Affine, weight: Tensor, states: Tensor, shapes: tuple[torch.Size, torch.Size]
) -> tuple[Tensor, Tensor]:
    """Any other map, wherever its samples lie: in each round a unit mass on one state of every sample."""
    above, below = (
        at.rows(torch.arange(shape.numel(), device=states.device).view(shape))
        for at, shape in ((node.layout, shapes[1]), (node.operand.layout, shapes[0]))
    )
    inside = torch.empty(shapes[1].numel(), dtype=torch.long, device=states.device)
    inside[above.flatten()] = torch.arange(above.numel(), device=states.device)
    sample = inside[states] // above.shape[1]
    distinct, place = cast("tuple[Tensor, Tensor]", torch.unique(states, return_inverse=True))
    owner = inside[distinct] // above.shape[1]
    turn = torch.zeros_like(distinct)  # the round in which a state of its sample is looked at
    for k in range(len(above)):
        turn[owner == k] = torch.arange(int((owner == k).sum()), device=states.device)
    dtype = weight.dtype if weight.ndim else torch.float64  # a number fits any precision
    found = torch.empty(len(distinct), below.shape[1], dtype=dtype, device=states.device)
    for k in range(int(turn.amax()) + 1):
        here = turn == k
        probe = torch.zeros(shapes[1].numel(), dtype=dtype, device=states.device)
        probe[distinct[here]] = 1.0
        mass = node.map.adjoint(probe.view(shapes[1]), weight, shapes[0])
        found[here] = node.operand.layout.rows(mass)[owner[here]]
    return below[sample], found[place]
