"""Nodes that choose: each output is one element of an operand, the largest one or the one that a mask names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.entry import at
from backplay.network.nodes import Node, Overlay, Scope


@dataclass(eq=False, repr=False, kw_only=True)
class Max(Node):
    """Max pooling, amax, maximum: `winner` gives, for each output, the flat index of its winner in `carriers[0]`.

    For the maximum of two live operands `winner` is None and the operands compete elementwise. A minimum is the maximum
    of the negated operands (S3f); order statistics (`topk`, `sort`) have winners too.
    """

    own_kind = "max"

    winner: Callable[[Tensor], Tensor] | None = None
    both: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # values and winners, where one call gives them
    least: bool = False  # the smallest wins

    @property
    def place(self) -> tuple[str, Node]:
        """Where a forward pass keeps the winners that it has met."""
        return "winners", self

    def run(self, scope: Scope) -> Any:
        if self.both is None or not isinstance(scope, dict):
            return super().run(scope)
        with at(self):
            value, scope[self.place] = self.both(scope[self.inputs[0]])
        return value

    def winners(self, scope: Scope) -> Tensor:
        """Like the output: the flat index of each winner, as the forward pass has met it or found again."""
        assert self.winner is not None
        kept = None if isinstance(scope, Overlay) else scope.get(self.place)
        return self.winner(scope[self.inputs[0]]) if kept is None else kept

    def first(self, scope: Scope) -> Tensor:
        """Of two operands: where the first wins; it also wins ties."""
        left, right = (scope[n] for n in self.inputs)
        return left <= right if self.least else left >= right

    def pick(self, tensors: Sequence[Tensor], scope: Scope) -> Tensor:
        """Of tensors shaped like the operands: the elements at the winners' places."""
        return (
            torch.where(self.first(scope), *tensors)
            if self.winner is None
            else tensors[0].flatten()[self.winners(scope)]
        )


@dataclass(eq=False, repr=False, kw_only=True)
class Select(Node):
    """`where(mask, a, b)` by a live mask: as at a maximum, all mass goes to one side (S3f). A constant side ends it."""

    own_kind = "max"

    mask: Node
    sides: tuple[Any, Any]  # nodes or constants

    @property
    def carriers(self) -> tuple[Node, ...]:
        return tuple(side for side in self.sides if isinstance(side, Node) and side.carries)

    def first(self, scope: Scope) -> Tensor:
        """Where the first side is chosen, in the shape of the output."""
        return scope[self.mask].expand(scope[self].shape)
