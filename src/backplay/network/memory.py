"""Tensors as they lie in memory, for formulas to which one element is like another.

Images of a model in torch's channels-last format lie with their channels last. Read in the order of memory they take
one pass; read in the order of their dimensions they are copied first.
"""

from __future__ import annotations

import torch
from torch import Tensor


def in_line(*tensors: Tensor) -> list[Tensor] | None:
    """Views of the same elements in one dimension each; None unless all lie alike in memory, without gaps."""
    if all(t.is_contiguous() for t in tensors):
        return [t.view(-1) for t in tensors]
    if all(t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in tensors):
        return [t.permute(0, 2, 3, 1).view(-1) for t in tensors]
    return None


def by_sample(tensor: Tensor) -> Tensor:
    """(B, elements of a sample) for samples in the first dimension, elements in whatever order costs no copy."""
    (line,) = in_line(tensor) or (tensor,)
    return line.reshape(len(tensor), tensor.shape[1:].numel())


def is_dense(tensor: Tensor) -> bool:
    """Whether each element has a place of its own, so that results may be written there."""
    return in_line(tensor) is not None
