"""The normal distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def normal_cdf(z: Tensor) -> Tensor:
    """`Φ(z)` with correct digits in the left tail."""
    return 0.5 * torch.erfc(-z / math.sqrt(2))


def density(z: Tensor) -> Tensor:
    """`φ(z)`."""
    # by powers of 2: the exponential takes ten times as long where its result is too small for a number
    return torch.exp2(z.square() * (-0.5 / math.log(2))) / math.sqrt(2 * math.pi)
