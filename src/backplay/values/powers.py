"""Powers and formulas on large tensors: a processor spends its time in memory there, not in arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backplay.network.memory import in_line

Formula = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]

BLOCK = 1 << 17  # elements that stay in the processor's cache together with a few intermediate results


def power_(base: Tensor, exponent: float) -> Tensor:
    """`base^exponent` in place, for a base ≥ 0 and an exponent > 0.

    Zeros are set aside as ones: libraries for vectors are ten times as slow on the logarithm or root of a 0, and half
    of what a ReLU lets through is zeros.
    """
    zeros = torch.eq(base, 0, out=torch.empty_like(base))
    return raised_(base.add_(zeros), exponent).sub_(zeros)


def raised_(base: Tensor, exponent: float) -> Tensor:
    """The same where few entries are 0: by logarithms, in half the time of torch's pow.

    `exp2`, unlike `exp`, is as quick where the result is too small for a number.
    """
    if exponent == 2:
        return base.square_()
    return base.sqrt_() if exponent == 0.5 else base.log2_().mul_(exponent).exp2_()


def square_root(base: Tensor) -> Tensor:
    """`√base`."""
    return power_(base.clone(), 0.5)


def in_blocks(formula: Formula, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The results of an elementwise formula of two tensors, a block at a time where there are many elements."""
    if a.shape != b.shape or a.numel() <= BLOCK or a.device.type != "cpu":
        return _several(formula(a, b))
    if in_line(a, b) is None:
        a, b = a.contiguous(), b.contiguous()
    results: tuple[Tensor, ...] = ()
    lines: list[Tensor] = []
    for k, pair in enumerate(zip(*(line.split(BLOCK) for line in in_line(a, b) or ()), strict=True)):
        parts = _several(formula(*pair))
        if not results:
            results = tuple(torch.empty_like(a, dtype=part.dtype) for part in parts)
            lines = in_line(*results) or []
        for line, part in zip(lines, parts, strict=True):
            line[k * BLOCK : (k + 1) * BLOCK] = part
    return results


def _several(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
