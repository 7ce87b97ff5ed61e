"""Blocks that bring elements together: mixes (S18) and maxima (S7)."""

from __future__ import annotations

import itertools
import math
import random

import torch
from torch import Tensor
from torch.nn import functional as F

from fuzz.blocks import LARGEST, Block, Shape
from fuzz.reference import Node, Tape


class AveragePool(Block):
    """Average pooling, adaptive pooling, means and sums over a dimension: mixes (S18)."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        n = len(shape) - 1
        forms = ["mean", "sum", "cumsum"]
        if n >= 1:
            forms += ["pool", "adaptive", "up", "up", "mean rest"]
        if n == 2:
            forms += ["fold"]
        self.form, self.dim = rng.choice(forms), rng.randrange(1, len(shape) + 1)
        self.keep = len(shape) == 1 or rng.random() < 0.5
        modes = {1: ["nearest", "linear"], 2: ["nearest", "bilinear", "bicubic"], 3: ["nearest", "trilinear"]}.get(
            n, [""]
        )
        self.mode = rng.choice(modes)
        self.padding = rng.choice([0, 1])
        self.include, self.n, self.factor = rng.random() < 0.5, n, rng.choice([2, 1.5])
        with torch.no_grad():
            self.shape = tuple(self.forward(torch.zeros(2, *shape, dtype=torch.float64)).shape[1:])
        if math.prod(self.shape) > LARGEST:
            self.form, self.shape = "cumsum", shape
        self.words = f"{self.form} {self.mode if self.form == 'up' else self.dim} {self.keep}"

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "mean":
            return x.mean(self.dim, keepdim=self.keep)
        if self.form == "sum":
            return x.sum(self.dim, keepdim=self.keep)
        if self.form == "cumsum":
            return x.cumsum(self.dim)
        if self.form == "mean rest":
            return x.mean(tuple(range(2, x.ndim)), keepdim=self.keep)
        if self.form == "adaptive":
            return getattr(F, f"adaptive_avg_pool{self.n}d")(x, 2)
        if self.form == "pool":
            if min(x.shape[2:]) < 2:
                return x.cumsum(-1)
            pool = getattr(F, f"avg_pool{self.n}d")
            return pool(x, 2, stride=1, padding=self.padding, count_include_pad=self.include)
        if self.form == "fold":
            size = x.shape[-2:]
            return F.fold(F.unfold(x, 1 if min(size) < 2 else 2), size, 1 if min(size) < 2 else 2)
        return F.interpolate(x, scale_factor=self.factor, mode=self.mode)

    def reference(self, tape: Tape, a: Node) -> Node:
        if self.form == "fold":  # im2col is a wire, its transpose a mix
            size = a.shape[-2:]
            kernel = 1 if min(size) < 2 else 2
            columns = tape.wire([a], lambda x: F.unfold(x, kernel))
            return tape.mix(columns, lambda x: F.fold(x, size, kernel))
        return tape.mix(a, self.forward)


def windows(shape: Shape, kernel: int, stride: int, padding: int, dilation: int) -> tuple[Tensor, Shape]:
    """Flat positions that each output of a pooling reads, −1 outside, and the output's shape."""
    spatial = shape[1:]
    out = tuple((s + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for s in spatial)
    rows = []
    for channel in range(shape[0]):
        for place in itertools.product(*(range(o) for o in out)):
            row = []
            for offset in itertools.product(range(kernel), repeat=len(spatial)):
                at = [p * stride - padding + k * dilation for p, k in zip(place, offset, strict=True)]
                inside = all(0 <= i < s for i, s in zip(at, spatial, strict=True))
                flat = channel
                for i, s in zip(at, spatial, strict=True):
                    flat = flat * s + i
                row.append(flat if inside else -1)
            rows.append(row)
    return torch.tensor(rows), (shape[0], *out)


class Extreme(Block):
    """Max pooling, maxima and minima over a dimension (S7)."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        forms = ["amax", "amin", "max().values"] if len(shape) > 1 else []
        if 2 <= len(shape) <= 4 and min(shape[1:]) >= 2:
            forms += ["pool", "pool", "pool after padding with -inf", "adaptive"]
        self.form, self.dim, self.n = rng.choice(forms), rng.randrange(1, len(shape) + 1), len(shape) - 1
        self.stride, self.padding = rng.choice([1, 2]), rng.choice([0, 1])
        positions = torch.arange(math.prod(shape)).reshape(shape)
        if self.form.startswith("pool"):
            self.windows, self.shape = windows(shape, 2, self.stride, self.padding, 1)
        elif self.form == "adaptive":
            self.windows, self.shape = positions.flatten(1), (shape[0], *[1] * self.n)
        else:
            self.windows = positions.movedim(self.dim - 1, -1).flatten(0, -2)
            self.shape = tuple(s for k, s in enumerate(shape) if k != self.dim - 1)
        self.words = f"{self.form} {self.dim} stride {self.stride} padding {self.padding}"

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "amax":
            return x.amax(self.dim)
        if self.form == "amin":
            return x.amin(self.dim)
        if self.form == "max().values":
            return x.max(self.dim).values
        if self.form == "adaptive":
            return getattr(F, f"adaptive_max_pool{self.n}d")(x, 1)
        pool = getattr(F, f"max_pool{self.n}d")
        if self.form == "pool":
            return pool(x, 2, self.stride, self.padding)
        padded = F.pad(x, (self.padding, self.padding) * self.n, value=-torch.inf)
        return pool(padded, 2, self.stride)

    def reference(self, tape: Tape, a: Node) -> Node:
        return tape.largest([a], self.windows, self.shape, -1 if self.form == "amin" else 1)
