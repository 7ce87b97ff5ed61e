"""Where the samples of a batch lie in a node's tensor.

Reshapes may merge the batch with other axes (windows of a Swin, sequence-first attention), so the sample axis of a
tensor is a factor of one of its dimensions: `size(dim) = outer · B · inner`. Scales and sums per sample need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.network.memory import by_sample

FIRST = 97  # samples are traced by number, from this one on: no model fills in 97, and every dtype holds it exactly


@dataclass(frozen=True)
class Layout:
    """Sample axis as a factor of dimension `dim`, with `outer` copies before and `inner` elements after it."""

    dim: int = 0
    outer: int = 1
    inner: int = 1

    def batch(self, tensor: Tensor) -> int:
        return tensor.shape[self.dim] // (self.outer * self.inner)

    def rows(self, tensor: Tensor) -> Tensor:
        """The tensor as (B, elements of a sample)."""
        if self == PLAIN:
            return tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]
        split = tensor.unflatten(self.dim, (self.outer, self.batch(tensor), self.inner))
        return split.movedim(self.dim + 1, 0).flatten(1)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over each sample, (B,) in float64."""
        return self._unordered(tensor).sum(1, dtype=torch.float64)

    def amax(self, tensor: Tensor) -> Tensor:
        """Largest entry of each sample, (B,)."""
        return self._unordered(tensor).amax(1)

    def _unordered(self, tensor: Tensor) -> Tensor:
        """`rows` for who does not ask in which order the elements come."""
        return by_sample(tensor) if self == PLAIN else self.rows(tensor)

    def spread(self, factor: Tensor, like: Tensor) -> Tensor:
        """A (B,) tensor made broadcastable against `like`."""
        if self.outer == self.inner == 1:
            along = factor
        else:
            along = factor[None, :, None].expand(self.outer, -1, self.inner).reshape(-1)
        return along.view([-1 if d == self.dim else 1 for d in range(like.ndim)])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Tensors of several batches as one of all their samples."""
        if self.outer == 1:
            return torch.cat(list(parts), self.dim)
        split = [part.unflatten(self.dim, (self.outer, self.batch(part), self.inner)) for part in parts]
        return torch.cat(split, self.dim + 1).flatten(self.dim, self.dim + 2)

    def owners(self, batch: int, shape: tuple[int, ...]) -> Tensor:
        """The number of the sample that each element belongs to, from `FIRST` on, in the given shape."""
        index = torch.arange(FIRST, FIRST + batch, dtype=torch.float64)
        along = index[None, :, None].expand(self.outer, -1, self.inner).reshape(-1)
        return along.view([-1 if d == self.dim else 1 for d in range(len(shape))]).expand(shape)

    @staticmethod
    def of(owners: Tensor, batch: int) -> Layout | None:
        """Read the layout off a tensor of sample numbers; None where it has no such form."""
        for dim in range(owners.ndim):
            line = owners[tuple(slice(None) if d == dim else 0 for d in range(owners.ndim))]
            inner = int((line == FIRST).cumprod(0).sum())
            if inner == 0 or len(line) % (batch * inner):
                continue
            layout = Layout(dim, len(line) // (batch * inner), inner)
            if torch.equal(layout.owners(batch, tuple(owners.shape)), owners):
                return layout
        return None


PLAIN = Layout()
