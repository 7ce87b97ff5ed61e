"""How tensors and lists are spoken of in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

_MANY = 6


def tensor_words(tensor: Tensor) -> str:
    """Shape and dtype: `(2, 3, 8, 8) float32`."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def list_words(values: Sequence[Any]) -> str:
    """A list, of a long one its beginning and its length."""
    if len(values) <= _MANY:
        return f"[{', '.join(map(str, values))}]"
    return f"[{', '.join(map(str, values[:_MANY]))}, … {len(values)} in all]"


def scale_words(log_scale: Tensor) -> str:
    """The range of logarithmic scales over a batch."""
    if not log_scale.numel():
        return "of nothing"
    low, high = float(log_scale.min()), float(log_scale.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
