"""Linear maps with an exchangeable weight: `apply(x, W) = W x` and `adjoint(y, W, shape) = Wᵀ y`.

A kernel runs the same geometry with other weights (`|W|`, `W⁺`, powers), so a map owns the geometry and no weight. A
new map is one class: `apply` and `adjoint` are enough, and all else that is asked of a map has a slower default here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.network.layout import PLAIN, Layout
from backplay.network.products import at_each_pixel, multiply, pixels_serve

aten = torch.ops.aten

Shapes = tuple[torch.Size, torch.Size]  # of the operand and of the output
Layouts = tuple[Layout, Layout]  # where the samples lie in both


class LinearMap(ABC):
    """What an affine or mix node does to its one live operand, given a weight."""

    even: ClassVar[bool] = False  # whether all predecessors of an output weigh alike, so that powers of `W` cancel

    @property
    def widens(self) -> bool:
        """Whether more input channels may be appended.

        Weights are then concatenated along their axis 1, operands along their axis `1 - weight.ndim`.
        """
        return False

    @abstractmethod
    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """`W x`, without bias."""

    @abstractmethod
    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """`Wᵀ y`, in the shape of the operand."""

    def apply_squares(self, x: Tensor, squares: Tensor) -> Tensor:
        """`W² x`, entry by entry, given the squared weight: what variances do."""
        return self.apply(x, squares)

    # ---------------------------------------------------------------- whole rows

    def row_weight(self, x: Tensor) -> Tensor:
        """The weight that all predecessors of an output share, for an operand like `x`; of even maps alone."""
        raise UnsupportedError(
            f"the predecessors of an output of {type(self).__name__} differ in weight; ask for rows."
        )

    def matrix(self, weight: Tensor) -> Tensor | None:
        """(output channels, predecessors) where all positions share one row for each channel; None elsewhere."""
        return None

    def along_output(self, channels: Tensor, weight: Tensor) -> Tensor:
        """One number for each row of `matrix`, made broadcastable against the output."""
        return channels

    def along_weight(self, rows: Tensor, weight: Tensor) -> Tensor:
        """The numbers of `row_scale` made broadcastable against the weight."""
        return rows.view([-1] + [1] * (weight.ndim - 1)) if rows.ndim else rows

    def row_sums(self, weight: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
        """`W 1` for operands of a shape, broadcastable against the output; dtype and device as of `like`."""
        return self.apply(torch.ones(1, dtype=like.dtype, device=like.device).expand(shape), weight)

    def row_scale(self, weight: Tensor) -> Tensor:
        """The largest `|W_ij|` of each output or of all, 1 where all are 0; broadcastable against the output."""
        matrix = self.matrix(weight)
        if matrix is None:
            largest = weight.abs().amax()
        else:
            largest = self.along_output(torch.linalg.vector_norm(matrix, math.inf, 1), weight)
        return torch.where(largest > 0, largest, 1)

    # ---------------------------------------------------------------- rows of single states

    def row_length(self, weight: Tensor, shape: torch.Size) -> int:
        """How many predecessors `rows_of` lists for each state, given the operand's shape."""
        return shape.numel() // shape[0]

    def rows_of(
        self, weight: Tensor, states: Tensor, shapes: Shapes, layouts: Layouts = (PLAIN, PLAIN)
    ) -> tuple[Tensor, Tensor]:
        """Predecessors of single outputs: their flat indices and the weights towards them, both (states, predecessors).

        `states` are flat indices into the output. By default unit masses are carried back: a batch of them where
        samples lie in front, else in each round one state of every sample.
        """
        if layouts == (PLAIN, PLAIN):
            return self._rows_in_a_batch(weight, states, shapes)
        return self._rows_by_sample(weight, states, shapes, layouts)

    def _rows_in_a_batch(self, weight: Tensor, states: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
        inner, below = shapes[1].numel() // shapes[1][0], shapes[0].numel() // shapes[0][0]
        unit = torch.zeros(len(states), inner, dtype=_precision(weight), device=states.device)
        unit.scatter_(1, (states % inner)[:, None], 1.0)
        shape = torch.Size((len(states), *shapes[0][1:]))
        row = self.adjoint(unit.view(len(states), *shapes[1][1:]), weight, shape).flatten(1)
        return (states // inner)[:, None] * below + torch.arange(below, device=states.device), row

    def _rows_by_sample(
        self, weight: Tensor, states: Tensor, shapes: Shapes, layouts: Layouts
    ) -> tuple[Tensor, Tensor]:
        below, above = (
            layout.rows(torch.arange(shape.numel(), device=states.device).view(shape))
            for layout, shape in zip(layouts, shapes, strict=True)
        )
        inside = torch.empty(shapes[1].numel(), dtype=torch.long, device=states.device)
        inside[above.flatten()] = torch.arange(above.numel(), device=states.device)
        sample = inside[states] // above.shape[1]
        distinct, place = cast("tuple[Tensor, Tensor]", torch.unique(states, return_inverse=True))
        owner = inside[distinct] // above.shape[1]
        round_of = torch.zeros_like(distinct)  # the round in which a state of its sample is looked at
        for k in range(len(above)):
            round_of[owner == k] = torch.arange(int((owner == k).sum()), device=states.device)
        row = torch.empty(len(distinct), below.shape[1], dtype=_precision(weight), device=states.device)
        for k in range(int(round_of.amax()) + 1):
            here = round_of == k
            unit = torch.zeros(shapes[1].numel(), dtype=row.dtype, device=states.device)
            unit[distinct[here]] = 1.0
            mass = self.adjoint(unit.view(shapes[1]), weight, shapes[0])
            row[here] = layouts[0].rows(mass)[owner[here]]
        return below[sample], row[place]


def _precision(weight: Tensor) -> torch.dtype:
    return weight.dtype if weight.ndim else torch.float64  # a number fits any precision


@dataclass(frozen=True)
class Convolution(LinearMap):
    """Any `aten.convolution`: 1-3 dimensions, strides, zero padding, dilation, groups, transposed.

    Strides and their like have one number for each dimension of the image.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    transposed: bool = False
    groups: int = 1

    @property
    def widens(self) -> bool:
        return self.groups == 1 and not self.transposed

    @cached_property
    def _geometry(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, tuple[int, ...], int]:
        """As torch's operators take it."""
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        if pixels_serve(x, weight) and self._sees_single_pixels(weight):
            return at_each_pixel(weight.flatten(1), x)
        return aten.convolution(x, weight, None, *self._geometry)

    def _sees_single_pixels(self, weight: Tensor) -> bool:
        """Whether each output is made of one pixel's channels, and no pixel is left out."""
        plain = self.groups == 1 and not self.transposed
        return plain and all(n == 1 for n in (*weight.shape[2:], *self.stride)) and not any(self.padding)

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        if pixels_serve(y, weight) and self._sees_single_pixels(weight):
            return at_each_pixel(weight.flatten(1).T, y)
        # only the shape of the operand matters for this gradient: an untouched allocation costs nothing
        operand = torch.empty(shape, dtype=y.dtype, device=y.device)
        wanted = [True, False, False]
        return aten.convolution_backward(y.contiguous(), operand, weight, None, *self._geometry, wanted)[0]

    def matrix(self, weight: Tensor) -> Tensor | None:
        return None if self.transposed else weight.flatten(1)

    def along_output(self, channels: Tensor, weight: Tensor) -> Tensor:
        return channels.view([-1] + [1] * (weight.ndim - 2))

    def row_sums(self, weight: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
        if not self.transposed:  # all channels are alike: their weights may be added up first
            shape, weight = torch.Size((shape[0], self.groups, *shape[2:])), weight.sum(1, keepdim=True)
        return super().row_sums(weight, shape, like)

    def row_length(self, weight: Tensor, shape: torch.Size) -> int:
        return super().row_length(weight, shape) if self.transposed else weight[0].numel()

    def rows_of(
        self, weight: Tensor, states: Tensor, shapes: Shapes, layouts: Layouts = (PLAIN, PLAIN)
    ) -> tuple[Tensor, Tensor]:
        """What a convolution sees at each state; outside of the image weights are 0."""
        if self.transposed:
            return super().rows_of(weight, states, shapes, layouts)
        (_, channels, *space), kernel = shapes[0], weight.shape[2:]
        stride, padding, dilation, *_ = self._geometry
        place = torch.unravel_index(states, shapes[1])
        group = place[1] // (shapes[1][1] // self.groups)
        own = torch.arange(weight.shape[1], device=states.device)
        index = (place[0] * channels + group * weight.shape[1])[:, None] + own
        index = index.view([len(states), weight.shape[1]] + [1] * len(kernel))
        inside = torch.ones(1, dtype=torch.bool, device=states.device)
        for d, size in enumerate(space):
            taps = torch.arange(kernel[d], device=states.device) * dilation[d] - padding[d]
            at = (place[2 + d] * stride[d])[:, None] + taps
            view = [len(states), 1] + [-1 if k == d else 1 for k in range(len(kernel))]
            inside = inside & ((at >= 0) & (at < size)).view(view)
            index = index * size + at.clamp(0, size - 1).view(view)
        return index.flatten(1), (weight[place[1]] * inside).flatten(1)


@dataclass(frozen=True)
class Dense(LinearMap):
    """`aten.linear`: the weight is (out, in) and acts on the last dimension."""

    @property
    def widens(self) -> bool:
        return True

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return multiply(x, weight)

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        return multiply(y, weight.T)

    def matrix(self, weight: Tensor) -> Tensor | None:
        return weight

    def row_sums(self, weight: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
        return weight.sum(1)

    def row_length(self, weight: Tensor, shape: torch.Size) -> int:
        return shape[-1]

    def rows_of(
        self, weight: Tensor, states: Tensor, shapes: Shapes, layouts: Layouts = (PLAIN, PLAIN)
    ) -> tuple[Tensor, Tensor]:
        width = shapes[0][-1]
        lead, unit = states // shapes[1][-1], states % shapes[1][-1]
        return lead[:, None] * width + torch.arange(width, device=states.device), weight[unit]


@dataclass(frozen=True)
class Averaging(LinearMap):
    """A mix whose weights are equal within each output (pooling, mean, sum): the operator itself is the map.

    The weight is a number, 1 for the operator as it is: powers of equal weights cancel in a policy.
    """

    even: ClassVar[bool] = True

    function: Callable[[Tensor], Tensor]
    predecessors: Callable[[Tensor], Tensor | float] | None = None  # how many elements each is made of; None: a sum

    def row_weight(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x)
        if self.predecessors is None:
            return torch.ones_like(self.function(ones))
        return self.function(ones) / self.predecessors(ones)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.function(x) * weight

    def apply_squares(self, x: Tensor, squares: Tensor) -> Tensor:
        return self.function(x) * self.row_weight(x)

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        return transpose(self.function, y * weight, shape)[0]


@dataclass(frozen=True)
class Resampling(LinearMap):
    """Separable interpolation: the weight stacks one matrix (out, in) for each of the last dimensions.

    Matrices of unlike sizes share one flat tensor, so that a power acts on all of them at once. No entry is negative
    (interpolations with negative ones become `Sparse`), so that `|W|`, `W⁺` and powers of the whole are the products of
    those of its matrices.
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

    def along_weight(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rows ** (1 / len(self.sizes))

    def row_scale(self, weight: Tensor) -> Tensor:
        return super().row_scale(weight) ** len(self.sizes)  # its matrices act one after the other


@dataclass(frozen=True, eq=False)
class Sparse(LinearMap):
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
    with torch.enable_grad():
        zero = torch.zeros(1, dtype=y.dtype, device=y.device)
        operands = [zero.expand(shape).requires_grad_() for shape in shapes]
        out = function(*operands)
        if not out.requires_grad:  # no element of any operand reaches the output
            return tuple(torch.zeros(shape, dtype=y.dtype, device=y.device) for shape in shapes)
        return torch.autograd.grad(out, operands, y, allow_unused=True, materialize_grads=True)


def write_through(function: Callable[[Tensor], Tensor], y: Tensor, shape: torch.Size) -> Tensor | None:
    """`Lᵀ y` of a `function` that shows its operand's memory: `y` is written where it is shown, 0 elsewhere.

    None where it shows other memory, or an element more than once.
    """
    operand = torch.empty(shape, dtype=y.dtype, device=y.device)
    shown = function(operand)
    if shown.untyped_storage().data_ptr() != operand.untyped_storage().data_ptr() or _overlaps(shown):
        return None
    if shown.numel() < operand.numel():
        operand.zero_()
    elif shown.is_contiguous():
        return y.reshape(shape)
    shown.copy_(y)
    return operand


def _overlaps(view: Tensor) -> bool:
    """Whether two places of a view may be one in memory."""
    span = 0
    for stride, size in sorted(zip(view.stride(), view.shape, strict=True)):
        if size > 1 and stride <= span:
            return True
        span += stride * (size - 1)
    return False
