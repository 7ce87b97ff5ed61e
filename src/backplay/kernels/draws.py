"""Drawing single moves: what kernels need to sample from their own rows (S32)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.network.linear import Shapes
from backplay.network.nodes import Affine

CEMETERY, CONSTANT = -1, -2

_BUDGET = 2**22  # entries of the rows that are held at once

Score = Callable[[Tensor, Tensor], Tensor]  # (weights, flat indices of predecessors) -> non-negative scores


@dataclass(frozen=True)
class Draw:
    """The next step of every walk; all tensors (walks,)."""

    carrier: Tensor  # number of the carrier that it moves to, or CEMETERY, CONSTANT
    element: Tensor  # flat index there
    turn: Tensor  # +1: the player keeps the turn, −1: it goes over
    stream: Tensor  # ±1, 0 where the kernel has no streams

    @staticmethod
    def to(element: Tensor, carrier: Tensor | int = 0, turn: Tensor | int = 1, stream: Tensor | int = 0) -> Draw:
        full = torch.full_like(element, 0)
        return Draw(full + carrier, element, full + turn, full + stream)


def uniform(states: Tensor, generator: torch.Generator) -> Tensor:
    """A float64 number in [0, 1) for each state."""
    return torch.rand(states.shape, dtype=torch.float64, device=states.device, generator=generator)


def at(value: Tensor | float, states: Tensor, shape: torch.Size) -> Tensor:
    """A number, or a tensor that broadcasts to the output's shape, at given states, float64."""
    if not isinstance(value, Tensor):
        return torch.full(states.shape, value, dtype=torch.float64, device=states.device)
    return value.expand(shape).flatten()[states].double()


def gather(node: Affine, weight: Tensor, states: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Predecessors of each state and the weights towards them, (states, predecessors).

    `weight` is that of the node or one like it; `shapes` are those of the operand and of the output.
    """
    return node.map.rows_of(weight, states, shapes, (node.operand.layout, node.layout))


def choose(
    node: Affine,
    weight: Tensor,
    states: Tensor,
    shapes: Shapes,
    score: Score,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """A predecessor of each state, drawn in proportion to its score, and the weight towards it."""
    chosen = torch.empty_like(states)
    towards = torch.empty(states.shape, dtype=weight.dtype, device=states.device)
    size = max(1, _BUDGET // max(1, node.map.row_length(weight, shapes[0])))
    for start in range(0, len(states), size):
        part = slice(start, start + size)
        index, row = gather(node, weight, states[part], shapes)
        pick = _categorical(score(row, index), generator)[:, None]
        chosen[part], towards[part] = index.gather(1, pick)[:, 0], row.gather(1, pick)[:, 0]
    return chosen, towards


def _categorical(scores: Tensor, generator: torch.Generator) -> Tensor:
    """One column for each row, in proportion to the scores; a column of score 0 is never drawn."""
    edges = scores.double().cumsum(1)
    mark = torch.rand(len(scores), 1, dtype=torch.float64, device=scores.device, generator=generator) * edges[:, -1:]
    return torch.searchsorted(edges, mark, right=True)[:, 0].clamp(max=scores.shape[1] - 1)
