"""Comparisons as zeros and ones in floating point, and questions to a whole tensor.

On a processor torch's booleans are slow: `where`, `masked_fill` and `isfinite` cost ten to thirty times as much as a
product of the same size. So what is done at every node multiplies by zeros and ones, and asks for extremes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backplay.network.memory import in_line

_PIECE = 1 << 18  # entries


def above(x: Tensor, bound: float) -> Tensor:
    """1 where an entry is larger, 0 elsewhere; in the dtype of `x`."""
    return torch.gt(x, bound, out=torch.empty_like(x))


def below(x: Tensor, bound: float) -> Tensor:
    """1 where an entry is smaller."""
    return torch.lt(x, bound, out=torch.empty_like(x))


def nonzero(x: Tensor) -> Tensor:
    """1 where an entry is not 0."""
    return torch.ne(x, 0, out=torch.empty_like(x))


def all_at_least(x: Tensor, bound: float) -> bool:
    """Whether no entry is smaller, or NaN."""
    return x.numel() == 0 or float(x.amin() if x.ndim else x) >= bound


def all_exceed(x: Tensor, y: Tensor, factor: float) -> bool:
    """Whether `x ≥ factor · y` everywhere, for tensors of one shape; looked at in pieces that stay in the cache."""
    lines = in_line(x, y)
    if x.device.type != "cpu" or x.numel() <= _PIECE or lines is None:
        return all_at_least(x.sub(y, alpha=factor), 0)
    pieces = zip(*(line.split(_PIECE) for line in lines), strict=True)
    gap = torch.empty(_PIECE, dtype=x.dtype, device=x.device)
    return all(all_at_least(torch.sub(a, b, alpha=factor, out=gap[: len(a)]), 0) for a, b in pieces)


def all_nonzero(x: Tensor) -> bool:
    """Whether no entry is 0."""
    return x.numel() == 0 or float(x.abs().amin()) > 0


def all_finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite."""
    if x.numel() == 0 or bool(torch.isfinite(x.sum())):
        return True
    return bool(torch.isfinite(x).all())  # the sum alone may have left the range


def inverse(total: Tensor, empty: float) -> Tensor:
    """`1 / total`, and 0 where a total is smaller than `empty`; totals are not negative."""
    if all_at_least(total, empty):
        return 1 / total
    none = below(total, empty)
    return (1 - none) / (total + none)
