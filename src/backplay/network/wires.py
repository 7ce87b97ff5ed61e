"""Nodes that move elements and compute nothing: how they run forward, and how mass moves back through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.network.linear import transpose, write_through
from backplay.network.nodes import Fill, Node, Ref, Scope, mapped


@dataclass(eq=False, repr=False, kw_only=True)
class Wire(Node):
    """Moves elements, and may fill in others: constant floating-point tensors (a class token) and `Fill` numbers."""

    own_kind = "wire"

    constants: bool = False  # some outputs are filled in: they have no live source
    pads: bool = False  # some outputs are zero padding

    def transpose(self, mass: Tensor, scope: Scope, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Mass at the output carried back to each live operand."""
        facts = self.facts
        if facts.dropout or (facts.copies and mass.shape == shapes[0]):
            return (mass,)  # no element moves
        if facts.views and len(shapes) == 1:
            back = write_through(lambda x: self.move([x], scope), mass, shapes[0])
            if back is not None:
                return (back,)
        if facts.joins and all(isinstance(part, (Node, Ref)) for part in self.args[0]):
            return self._parted(mass, scope, shapes)
        return transpose(lambda *operands: self.move(operands, scope), mass, *shapes)

    def _parted(self, mass: Tensor, scope: Scope, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Mass of a concatenation, part by part."""
        parts, dim, own = self.args[0], self.args[1] if len(self.args) > 1 else 0, iter(shapes)
        all_shapes = [next(own) if isinstance(part, Node) else scope[part].shape for part in parts]
        sizes = [
            shape[dim] if len(shape) == mass.ndim else 0 for shape in all_shapes
        ]  # an empty list counts for nothing
        pieces = zip(mass.split(sizes, dim), parts, strict=True)
        return tuple(piece for piece, part in pieces if isinstance(part, Node))

    def move(self, operands: Sequence[Tensor], scope: Scope, constant: float = 0.0) -> Tensor:
        """Run the wire on other operands; all that it fills in becomes `constant`."""
        return self.function(*_substituted(self.args, iter(operands), scope, constant, operands[0].dtype))

    def live(self, shapes: Sequence[torch.Size], scope: Scope, like: Tensor) -> Tensor:
        """1 on elements with a live source, 0 on what is filled in."""
        one = torch.ones(1, dtype=like.dtype, device=like.device)
        return self.move([one.expand(shape) for shape in shapes], scope)

    def sources(self, shapes: Sequence[torch.Size], scope: Scope, device: torch.device) -> Tensor:
        """For each output the number of the element that it holds, counted on from operand to operand; −1: a fill."""
        names: list[Tensor] = []
        offset = 1
        for shape in shapes:
            end = offset + shape.numel()
            names.append(torch.arange(offset, end, dtype=torch.float64, device=device).view(shape))
            offset = end
        return self.move(names, scope).long() - 1


def _substituted(tree: Any, operands: Iterator[Tensor], scope: Scope, constant: float, dtype: torch.dtype) -> Any:
    """Arguments of a wire with its live operands replaced in turn, and what it fills in by one number."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Node):
            return next(operands)
        if isinstance(leaf, Fill):
            return constant
        if isinstance(leaf, Ref):
            given = scope[leaf]
            floating = isinstance(given, Tensor) and given.is_floating_point()
            return torch.full_like(given, constant, dtype=dtype) if floating else given
        # a cast moves mass as it is
        return dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    return mapped(tree, value)
