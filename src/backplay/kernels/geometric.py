"""The geometric-mean kernel `√(T_A T_B)` of two plays at one node (eq:geom-kernel, S28): what all kernels share.

It is a kernel again: it pulls overlap `β` back and pushes it forward. Every formula is symmetric in A and B to the
last bit, and for A = B it gives back `T_A` bit by bit, so that a play has distance 0 from itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import InputError
from backplay.kernels.kernel import Kernel, Measure
from backplay.network.nodes import Node
from backplay.values.powers import in_blocks, square_root


def geometric(a: Kernel, b: Kernel, name: str) -> Kernel:
    """`√(T_A T_B)` with the cemetery overlap of S28; `name` is the node's, for the error message."""
    if type(a) is not type(b):
        raise InputError(
            f"node {name!r} is played by {type(a).__name__} in one play and by {type(b).__name__} in the other: "
            "their states differ; compare plays of one game on one graph."
        )
    return a.geometric(b)


def mean(a: Tensor, b: Tensor) -> Tensor:
    """`√(a b)` of finite, non-negative tensors, in range wherever both are; exactly `a` where both are equal."""
    return a if a is b else in_blocks(_mean, a, b)[0]


def agreeing(a: Tensor, b: Tensor) -> Tensor:
    """`±√(a b)` where both have the same sign, which it keeps; 0 elsewhere."""
    return a if a is b else in_blocks(_agreeing, a, b)[0]


def by_agreement(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`√|a b|` with the sign of `a`: where both have the same sign and 0 elsewhere, and where the signs differ."""
    agreed, opposed = in_blocks(_by_agreement, a, b)
    return agreed, opposed


def _mean(a: Tensor, b: Tensor) -> Tensor:
    product = a * b
    product = product.sqrt_() if _in_range(product) else square_root(a) * square_root(b)
    # equal ones differ from their mean by rounding, which the sum takes back to the last bit
    return product.addcmul_(_equal(a, b, product), a - product)


def _agreeing(a: Tensor, b: Tensor) -> Tensor:
    size = _mean(a.abs(), b.abs())
    return size.copysign_(a).mul_(_equal(a.sign(), b.sign(), size))


def _by_agreement(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    size = _mean(a.abs(), b.abs()).copysign_(a)
    agreed = size * _equal(a.sign(), b.sign(), size)
    return agreed, size.sub_(agreed)


def _in_range(product: Tensor) -> bool:
    """Whether no product of two numbers has lost digits, or is 0, at whose root processors are slow."""
    if product.numel() == 0:
        return True
    low, high = product.aminmax()
    limits = torch.finfo(product.dtype)
    return limits.tiny <= float(low) and float(high) <= limits.max


def _equal(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """1 where both are equal, else 0, as numbers: a choice by truth values takes ten times as long."""
    return torch.eq(a, b, out=torch.empty_like(like))


def common_ends(a: Kernel, b: Kernel, like: Tensor) -> Tensor | None:
    """`√(T_A(s → †) T_B(s → †))`, shaped like `like`; None where a play never ends here."""
    ones = torch.ones_like(like)
    left, right = a.lost(ones), b.lost(ones)
    return None if left is None or right is None else mean(left, right)


@dataclass(frozen=True, eq=False)
class Overlap(Kernel):
    """Moves of a kernel whose rows are geometric means, and the overlap of the two cemetery entries."""

    moves: Kernel
    ends: Tensor | None

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return self.moves.carriers

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return self.moves.pull(mass, measure)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.moves.push(values)

    def lost(self, mass: Tensor) -> Tensor | None:
        return None if self.ends is None else mass * self.ends

    def constant(self, mass: Tensor) -> Tensor | None:
        return self.moves.constant(mass)


@dataclass(frozen=True, eq=False)
class Masked(Kernel):
    """A kernel on the states where both plays do the same."""

    moves: Kernel
    mask: Tensor  # 1 or True where they do, shaped like the output

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return self.moves.pull(mass * self.mask, measure)

    def push(self, values: Sequence[Tensor]) -> Tensor:
        return self.moves.push(values) * self.mask

    def constant(self, mass: Tensor) -> Tensor | None:
        return self.moves.constant(mass * self.mask)
