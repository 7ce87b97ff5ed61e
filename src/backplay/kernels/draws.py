"""Drawing single moves: what kernels need to sample from their own rows (S32)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    between: Tensor  # flat index of what the kernel crosses on the way (`Kernel.crossings`), −1 where it crosses none

    @staticmethod
    def to(
        element: Tensor,
        carrier: Tensor | int = 0,
        turn: Tensor | int = 1,
        stream: Tensor | int = 0,
        between: Tensor | int = -1,
    ) -> Draw:
        full = torch.full_like(element, 0)
        return Draw(full + carrier, element, full + turn, full + stream, full + between)


@dataclass(frozen=True)
class Standing:
    """Walks that stand at a node and are about to move on."""

    states: Tensor  # (walks,) flat indices into the node's output
    shape: torch.Size  # of that output
    generator: torch.Generator
    future: Sequence[Tensor] | None = None  # h ≥ 0 on the states of each carrier; see `Kernel.draw`

    def among(self, chosen: Tensor) -> Standing:
        """Some of the walks, by number or by truth value."""
        return replace(self, states=self.states[chosen])

    def at(self, value: Tensor | float) -> Tensor:
        """(walks,) a number, or a tensor that broadcasts to the output's shape, where each walk stands; float64."""
        return at_states(value, self.states, self.shape)

    def uniform(self) -> Tensor:
        """(walks,) numbers in [0, 1), float64."""
        states = self.states
        return torch.rand(states.shape, dtype=torch.float64, device=states.device, generator=self.generator)

    def choose(self, node: Affine, weight: Tensor, below: torch.Size, score: Score) -> tuple[Tensor, Tensor]:
        """(walks,) a predecessor of each state, drawn in proportion to its score, and the weight towards it.

        `weight` is that of the affine node or one like it, `below` the shape of its operand.
        """
        chosen = torch.empty_like(self.states)
        towards = torch.empty(self.states.shape, dtype=weight.dtype, device=self.states.device)
        size = max(1, _BUDGET // max(1, node.map.row_length(weight, below)))
        for start in range(0, len(self.states), size):
            part = slice(start, start + size)
            index, row = gather(node, weight, self.states[part], (below, self.shape))
            pick = _categorical(score(row, index), self.generator)[:, None]
            chosen[part], towards[part] = index.gather(1, pick)[:, 0], row.gather(1, pick)[:, 0]
        return chosen, towards


def at_states(value: Tensor | float, states: Tensor, shape: torch.Size) -> Tensor:
    """A number, or a tensor that broadcasts to a shape, at flat indices into that shape; float64."""
    if not isinstance(value, Tensor):
        return torch.full(states.shape, value, dtype=torch.float64, device=states.device)
    return value.expand(shape).flatten()[states].double()


def gather(node: Affine, weight: Tensor, states: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Predecessors of each state and the weights towards them, (states, predecessors).

    `weight` is that of the node or one like it; `shapes` are those of the operand and of the output.
    """
    return node.map.rows_of(weight, states, shapes, (node.operand.layout, node.layout))


def _categorical(scores: Tensor, generator: torch.Generator) -> Tensor:
    """One column for each row, in proportion to the scores; a column of score 0 is never drawn."""
    edges = scores.double().cumsum(1)
    mark = torch.rand(len(scores), 1, dtype=torch.float64, device=scores.device, generator=generator) * edges[:, -1:]
    return torch.searchsorted(edges, mark, right=True)[:, 0].clamp(max=scores.shape[1] - 1)
