"""Kernels that move all mass of an element to one other element: winners of maxima, masks, and wires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from backplay.kernels.divergence import Divergence
from backplay.kernels.draws import CONSTANT, Draw, Standing
from backplay.kernels.geometric import Masked
from backplay.kernels.kernel import Kernel, Measure
from backplay.network.choices import Max, Select
from backplay.network.nodes import Affine, Node, Scope
from backplay.network.wires import Wire
from backplay.values.forward import Values


def looked_at(node: Node) -> tuple[Node, ...]:
    """The nodes whose values a linear map, a max node or a wire looks at: its weights, its mask, those that compete.

    Of what they move, the shape is enough.
    """
    match node:
        case Affine():
            return tuple(n for n in node.inputs if n is not node.operand)
        case Max():
            return node.inputs if node.both is None else ()
        case Select():
            return (node.mask,)
        case _:
            return ()


def moving_kernel(node: Node, values: Values) -> Kernel:
    """The kernel of a max node or of a wire, which is the same in both games."""
    match node:
        case Max(winner=None):
            first = node.first(values)
            return Duel((first, ~first))
        case Select():
            first = values[node.mask].expand(values.shape(node))
            carries = [isinstance(side, Node) and side.carries for side in node.sides]
            return Duel((first, ~first), (carries[0], carries[1]))
        case Max():
            return Winner(node.winners(values), values.shape(node.inputs[0]))
        case Wire():
            return Relabelling(node, values, [values.shape(n) for n in node.inputs])
        case _:
            raise AssertionError(f"no kernel for {node!r}")


@dataclass(frozen=True, eq=False)
class Winner(Kernel):
    """Max: all mass to the winner of smallest index, discount 1 (def:maxpool-subgame, def:routing-maxpool)."""

    one_each: ClassVar[bool] = True

    index: Tensor  # flat index into the operand of each output's winner
    shape: torch.Size  # of the operand

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        flat = torch.zeros(self.shape.numel(), dtype=mass.dtype, device=mass.device)
        flat.scatter_add_(0, self.index.flatten(), mass.flatten())
        return (flat.view(self.shape),)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0].flatten()[self.index]

    def geometric(self, other: Winner) -> Kernel:
        return Masked(self, self.index == other.index)

    def divergence(self, other: Winner) -> Divergence:
        return Divergence.where(self.index != other.index, torch.float64)

    def draw(self, walks: Standing) -> Draw:
        return Draw.to(self.index.flatten()[walks.states])


@dataclass(frozen=True, eq=False)
class Duel(Kernel):
    """One of two sides, elementwise: the larger one of a maximum, or what a mask chooses (S7, S3f)."""

    one_each: ClassVar[bool] = True

    chosen: tuple[Tensor, Tensor]  # for each side, where it is chosen
    carries: tuple[bool, bool] = (True, True)  # a side that does not carry is constant: what comes there ends (S26)

    def _sides(self, carries: bool) -> list[Tensor]:
        return [side for side, live in zip(self.chosen, self.carries, strict=True) if live is carries]

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return [mass * side for side in self._sides(carries=True)]

    def push(self, values: Sequence[Tensor]) -> Tensor:
        parts = [value * side for value, side in zip(values, self._sides(carries=True), strict=True)]
        return sum(parts[1:], parts[0])

    def constant(self, mass: Tensor) -> Tensor | None:
        ends = self._sides(carries=False)
        return mass * sum(ends[1:], ends[0]) if ends else None

    def geometric(self, other: Duel) -> Kernel:
        both = [x & y for x, y in zip(self.chosen, other.chosen, strict=True)]
        return Duel((both[0], both[1]), self.carries)

    def divergence(self, other: Duel) -> Divergence:
        return Divergence.where(self.chosen[0] != other.chosen[0], torch.float64)

    def draw(self, walks: Standing) -> Draw:
        first = walks.at(self.chosen[0]) > 0
        places = [k if live else CONSTANT for k, live in zip((0, self.carries[0] * 1), self.carries, strict=True)]
        return Draw.to(walks.states, torch.where(first, places[0], places[1]))


@dataclass(frozen=True, eq=False)
class Relabelling(Kernel):
    """A wire: mass moves with the elements; what has no live source ends in constants (S26)."""

    one_each: ClassVar[bool] = True

    node: Wire
    scope: Scope
    shapes: list[torch.Size]  # of its live operands

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return self.node.transpose(mass, self.scope, self.shapes)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.node.move(values, self.scope)

    def constant(self, mass: Tensor) -> Tensor | None:
        if not self.node.constants:
            return None
        return mass * (1 - self.node.live(self.shapes, self.scope, mass))

    def geometric(self, other: Relabelling) -> Kernel:
        # an index that the network computes may differ from play to play
        return Masked(self, self._sources() == other._sources()) if self.node.detached_inputs else self

    def divergence(self, other: Relabelling) -> Divergence:
        if not self.node.detached_inputs:
            return Divergence(torch.zeros(()), torch.zeros(()))
        return Divergence.where(self._sources() != other._sources(), torch.float64)

    def draw(self, walks: Standing) -> Draw:
        source = self._sources().flatten()[walks.states]
        carrier, element = torch.full_like(source, CONSTANT), source.clamp(min=0)
        start = 0
        for k, operand in enumerate(self.shapes):
            here = (source >= start) & (source < start + operand.numel())
            carrier, element = torch.where(here, k, carrier), torch.where(here, source - start, element)
            start += operand.numel()
        return Draw.to(element, carrier)

    def _sources(self) -> Tensor:
        """Which element each output holds, by number over all operands; −1 for constants."""
        return self.node.sources(self.shapes, self.scope, self.scope[self.node.inputs[0]].device)
