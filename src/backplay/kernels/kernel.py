"""Kernels: how mass at one node's output moves to its inputs.

A kernel is built once from the values of a play and then pulls any measure. All measures follow the same transitions;
they differ in whether the trajectory discount is paid and in whether the two players' masses are added or subtracted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.network.nodes import Node, Scope, Wire


@dataclass(frozen=True)
class Measure:
    """What a pass carries: discounted or not, the players' difference (`signed`) or their sum."""

    signed: bool
    discounted: bool


DIFFERENCE = Measure(signed=True, discounted=True)  # Γ₊ − Γ₋
TOTAL = Measure(signed=False, discounted=True)  # Γ₊ + Γ₋
WALK = Measure(signed=False, discounted=False)  # the law Π of the walk (S27), tags summed
WALK_DIFFERENCE = Measure(signed=True, discounted=False)  # the same, tags subtracted


class Kernel(ABC):
    """Transitions from the states of one node to the states of its carriers."""

    carriers: tuple[Node, ...] | None = None  # where mass moves to, if not to the node's own carriers

    @abstractmethod
    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        """Mass at the node carried back to each of its carriers."""

    def push(self, values: Sequence[Tensor]) -> Tensor:
        """Expectation, over the walk's next state, of a function on the carriers' states; 0 where the walk ends.

        The function is the same for both players, and so is its expectation. `push` is the transpose of `pull`.
        """
        raise UnsupportedError(f"{type(self).__name__} has no forward expectation; only maps can be made with it.")

    def lost(self, mass: Tensor) -> Tensor | None:
        """Walk mass that ends in † here, shaped like the output; None where nothing does."""
        return None

    def leaked(self, mass: Tensor) -> Tensor | None:
        """The part of `lost` that biases absorb (S15)."""
        return None

    def constant(self, mass: Tensor) -> Tensor | None:
        """Walk mass that ends in constant elements (S26)."""
        return None


class PassThrough(Kernel):
    """One predecessor, player kept, discount 1: diagonals and norms in the Routing Game (S17)."""

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return (mass,)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0]


class Scaling(Kernel):
    """One predecessor, discount `|scale|`, player switched where the scale is negative, scale 0 → † (S7)."""

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return (mass * _coefficient(self.scale, measure),)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0] * _coefficient(self.scale, WALK)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (self.scale == 0) if bool((self.scale == 0).any()) else None


def _coefficient(scale: Tensor, measure: Measure) -> Tensor:
    if measure.discounted:
        return scale if measure.signed else scale.abs()
    return scale.sign() if measure.signed else (scale != 0).to(scale.dtype)


class Stopping(Kernel):
    """A gate: continue with probability `min(|slope|, 1)` and discount `max(|slope|, 1)`, else † (S8).

    `scale` is a constant behind the gate, a diagonal of its own (S3a): it discounts and changes no probability.
    """

    def __init__(self, slope: Tensor, scale: float = 1.0) -> None:
        self.slope, self.scale = slope if scale >= 0 else -slope, abs(scale)

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        if measure.discounted:
            slope = self.slope if self.scale == 1 else self.slope * self.scale
            return (mass * (slope if measure.signed else slope.abs()),)
        probability = self.slope.clamp(-1, 1)
        return (mass * (probability if measure.signed else probability.abs()),)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0] * self.slope.abs().clamp(max=1)

    def lost(self, mass: Tensor) -> Tensor | None:
        return mass * (1 - self.slope.abs().clamp(max=1))


class Split(Kernel):
    """A random operand: shares sum to 1, `discounts` one for each operand (None: 1), players kept but for signs."""

    def __init__(self, shares: Sequence[float | Tensor], discounts: Sequence[float | Tensor] | None = None) -> None:
        self.shares, self.discounts = shares, discounts

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return [mass * factor for factor in self.factors(measure)]

    def push(self, values: Sequence[Tensor]) -> Tensor:
        parts = [value * factor for value, factor in zip(values, self.factors(WALK), strict=True)]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    def factors(self, measure: Measure) -> list[float | Tensor]:
        """What a unit of mass sends to each operand."""
        if self.discounts is None:
            return list(self.shares)
        return [
            share * (_coefficient(d, measure) if isinstance(d, Tensor) else d if measure.discounted else 1.0)
            for share, d in zip(self.shares, self.discounts, strict=True)
        ]

    def lost(self, mass: Tensor) -> Tensor | None:
        tensors = [d for d in self.discounts or () if isinstance(d, Tensor)]
        if not tensors:
            return None
        shares = zip(self.shares, self.discounts or (), strict=True)
        ends = [share * (d == 0) for share, d in shares if isinstance(d, Tensor)]
        return mass * torch.stack(torch.broadcast_tensors(*ends)).sum(0)


class Winner(Kernel):
    """Max: all mass to the winner of smallest index, discount 1 (def:maxpool-subgame, def:routing-maxpool)."""

    def __init__(self, index: Tensor, shape: torch.Size) -> None:
        self.index, self.shape = index, shape

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        flat = torch.zeros(self.shape.numel(), dtype=mass.dtype, device=mass.device)
        flat.index_add_(0, self.index.flatten(), mass.flatten())
        return (flat.view(self.shape),)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return values[0].flatten()[self.index]


class Duel(Kernel):
    """One of two sides, elementwise: the larger one of a maximum, or what a mask chooses (S7, S3f).

    `chosen` says for each side where it is chosen (between 0 and 1 for the overlap of two plays); a side that does not
    carry is constant, and what comes there ends there (S26).
    """

    def __init__(self, chosen: tuple[Tensor, Tensor], carries: tuple[bool, bool] = (True, True)) -> None:
        self.chosen, self.carries = chosen, carries

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


class Relabelling(Kernel):
    """A wire: mass moves with the elements; what has no live source ends in constants (S26)."""

    def __init__(self, node: Wire, scope: Scope) -> None:
        self.node, self.scope = node, scope
        self.shapes = [scope[n].shape for n in node.inputs]

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return self.node.transpose(mass, self.scope, self.shapes)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.node.move(values, self.scope)

    def constant(self, mass: Tensor) -> Tensor | None:
        if not self.node.constants:
            return None
        return mass * (1 - self.node.live(self.shapes, self.scope, mass))

    def sources(self) -> Tensor:
        """Which element each output holds, by number over all operands; −1 for constants."""
        device = self.scope[self.node.inputs[0]].device
        return self.node.sources(self.shapes, self.scope, device)
