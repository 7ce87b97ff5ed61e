"""Linear maps with an exchangeable weight: `apply(x, W) = W x` and `adjoint(y, W, shape) = Wᵀ y`.

A kernel runs the same geometry with other weights (`|W|`, `W⁺`, powers), so a map owns the geometry and no weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

aten = torch.ops.aten


class LinearMap(Protocol):
    """What an affine or mix node does to its one live operand, given a weight."""

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """`W x`, without bias."""
        ...

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """`Wᵀ y`, in the shape of the operand."""
        ...


@dataclass(frozen=True)
class Convolution:
    """Any `aten.convolution`: 1-3 dimensions, strides, zero padding, dilation, groups, transposed."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    groups: int = 1

    def _geometry(self, dims: int) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        def full(v: tuple[int, ...], default: int) -> list[int]:
            values = v if v else (default,)
            return list(values * dims if len(values) == 1 else values)

        return (
            full(self.stride, 1),
            full(self.padding, 0),
            full(self.dilation, 1),
            self.transposed,
            full(self.output_padding, 0),
            self.groups,
        )

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution(x, weight, None, *self._geometry(weight.ndim - 2))

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        # only the shape of the operand matters for this gradient: an untouched allocation costs nothing
        operand = torch.empty(shape, dtype=y.dtype, device=y.device)
        geometry = self._geometry(weight.ndim - 2)
        return aten.convolution_backward(y.contiguous(), operand, weight, None, *geometry, [True, False, False])[0]


@dataclass(frozen=True)
class Dense:
    """`aten.linear`: the weight is (out, in) and acts on the last dimension."""

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight)

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        return y @ weight


@dataclass(frozen=True)
class Averaging:
    """A mix whose weights are equal within each output (pooling, mean, sum): the operator itself is the map.

    The weight is a number, 1 for the operator as it is: powers of equal weights cancel in a policy.
    """

    function: Callable[[Tensor], Tensor]
    predecessors: Callable[[Tensor], Tensor | float] | None = None  # how many elements each is made of; None: a sum

    def row_weight(self, x: Tensor) -> Tensor:
        """The weight that all predecessors of an output share."""
        ones = torch.ones_like(x)
        if self.predecessors is None:
            return torch.ones_like(self.function(ones))
        return self.function(ones) / self.predecessors(ones)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.function(x) * weight

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        return transpose(self.function, y * weight, shape)[0]


@dataclass(frozen=True)
class Resampling:
    """Separable interpolation: the weight stacks one matrix (out, in) for each of the last dimensions.

    Matrices of unlike sizes share one flat tensor so that powers and signs act on all of them at once; a product of
    entries of one sign pattern is what `|W|` and powers need, and both respect the product.
    """

    sizes: tuple[tuple[int, int], ...]

    def _matrices(self, weight: Tensor) -> list[Tensor]:
        parts = weight.split([o * i for o, i in self.sizes])
        return [p.view(o, i) for p, (o, i) in zip(parts, self.sizes, strict=True)]

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        for axis, matrix in enumerate(self._matrices(weight), -len(self.sizes)):
            x = (x.movedim(axis, -1) @ matrix.T).movedim(-1, axis)
        return x

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        for axis, matrix in enumerate(self._matrices(weight), -len(self.sizes)):
            y = (y.movedim(axis, -1) @ matrix).movedim(-1, axis)
        return y


@dataclass(frozen=True, eq=False)
class Sparse:
    """A matrix over the last dimensions, of which only some entries are there: the weight lists them.

    For maps that are not separable, or whose parts by sign are not: `W⁺` of a bicubic interpolation holds products of
    two negative numbers.
    """

    rows: Tensor  # of each entry: index into the output's last dimensions
    columns: Tensor  # and into the operand's
    above: tuple[int, ...]
    below: tuple[int, ...]

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._product(x, weight, (self.rows, self.columns), self.below, self.above)

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        return self._product(y, weight, (self.columns, self.rows), self.above, self.below)

    def _product(
        self, x: Tensor, weight: Tensor, places: tuple[Tensor, Tensor], old: tuple[int, ...], new: tuple[int, ...]
    ) -> Tensor:
        lead, sizes = x.shape[: x.ndim - len(old)], (math.prod(new), math.prod(old))
        matrix = torch.sparse_coo_tensor(torch.stack(places).to(x.device), weight, sizes, check_invariants=False)
        return (matrix @ x.reshape(-1, sizes[1]).T).T.reshape(*lead, *new)


def transpose(function: Callable[..., Tensor], y: Tensor, *shapes: torch.Size) -> tuple[Tensor, ...]:
    """`Lᵀ y` for each operand of a linear `function`, by one local vector-Jacobian product.

    The operands are single zeros expanded to their shapes, so the product costs no forward memory of its own.
    """
    with torch.inference_mode(False), torch.enable_grad():
        zero = torch.zeros(1, dtype=y.dtype, device=y.device)
        operands = [zero.expand(shape).requires_grad_() for shape in shapes]
        out = function(*operands)
        if not out.requires_grad:  # no element of any operand reaches the output
            return tuple(torch.zeros(shape, dtype=y.dtype, device=y.device) for shape in shapes)
        return torch.autograd.grad(out, operands, y, allow_unused=True, materialize_grads=True)
