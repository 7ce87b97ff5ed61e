"""Sums over chosen elements, means, interpolation and resizing: mix nodes with weights of their own (S3, S3f, S18)."""

from __future__ import annotations

import math
from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.contraction import Contraction, Equation
from backplay.network.linear import Averaging, LinearMap, Resampling, Sparse
from backplay.network.nodes import Mix, Node, Ref, Scope
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant, has_tensors, reading
from backplay.network.reading.spelled import interpolation
from backplay.network.reading.wires import wire, zero_padded

aten = torch.ops.aten

_LARGEST = 1 << 24  # entries of a dense matrix that one sample may need


def _mix(
    builder: Builder,
    call: Call,
    function: Callable[..., Tensor],
    args: tuple[Any, ...],
    linear: LinearMap,
    weight: Callable[[Scope], Tensor],
    signed: bool = False,
) -> Node:
    """A mix of its first argument; the others are the constants that its weights rest on."""
    x = args[0]
    node = Mix(
        function,
        args,
        call.operator,
        operand=x,
        map=linear,
        weight=lambda scope: weight(scope).to(scope[x]),
        signed_weights=signed,
        nonnegative=x.nonnegative and not signed,
    )
    return builder.add(node)


@reading
def average(builder: Builder, call: Call) -> Node | None:
    """A mean, sum or average pooling: the operator itself is the map."""
    x = call.args[0]
    if has_tensors(call.args[1:]):
        return None
    return averaging(builder, call, x, call.shape)


def averaging(builder: Builder, call: Call, x: Node, shape: torch.Size) -> Node:
    """The mix of a mean or sum, whose value has a shape."""
    node = Mix(
        *call.itself,
        operand=x,
        map=Averaging(lambda a: call.function(a, *call.args[1:]), lambda a: _predecessors(call, a)),
        weight=lambda scope: torch.ones((), dtype=torch.float64),
        count=builder.fewer(x, shape),
        nonnegative=x.nonnegative,
    )
    return builder.add(node, shape)


def _predecessors(call: Call, x: Tensor) -> Tensor | float:
    """How many elements each output of a mean, sum or average pooling is made of."""
    function = torch.nn.functional
    if "adaptive" in call.operator:
        counts = torch.ones((), dtype=x.dtype, device=x.device)
        sizes = call["output_size"]
        for size, out in zip(x.shape[-len(sizes) :], sizes, strict=True):
            window = torch.tensor([-(-(k + 1) * size // out) - k * size // out for k in range(out)])
            counts = counts[..., None] * window.to(counts)
        return counts
    if call.operator in ("mean", "sum"):
        return x.numel() / call.function(x, *call.args[1:]).numel()
    kernel, stride = call["kernel_size"], call["stride"] or call["kernel_size"]
    padding, ceil = call["padding"], call["ceil_mode"]
    ones = torch.ones_like(x)
    if call.operator == "avg_pool1d":
        flat = (1, *kernel), (1, *stride), (0, *padding)
        return function.avg_pool2d(ones[..., None, :], *flat, ceil, True, 1)[..., 0, :]
    return getattr(function, call.operator)(ones, kernel, stride, padding, ceil, True, 1)


@reading
def resampling(builder: Builder, call: Call) -> Node | None:
    """Matrices along each axis, or all products of their entries where these have both signs."""
    x = call.args[0]
    if has_tensors(call.args[1:]):
        return None
    sizes = [int(s) for s in builder.traced[x][2:]]
    matrices = [_along(call, axis, sizes) for axis in range(len(sizes))]
    signed = any(bool((m < 0).any()) for m in matrices)
    shapes = tuple((m.shape[0], m.shape[1]) for m in matrices)
    linear: LinearMap = Resampling(shapes)
    entries = torch.cat([m.flatten() for m in matrices])
    if signed:
        linear, entries = _products(matrices)
    return _mix(builder, call, call.function, call.args, linear, lambda scope: entries, signed)


def _along(call: Call, axis: int, sizes: list[int]) -> Tensor:
    """(out, in): a channel for each position of this axis, constant along the others, gives the matrix as response."""
    size = sizes[axis]
    probe = torch.eye(size, dtype=torch.float64).view([1, size] + [size if a == axis else 1 for a in range(len(sizes))])
    response = call.function(probe.expand(1, size, *sizes), *call.args[1:])[0]
    return response.movedim(axis + 1, 1).reshape(size, response.shape[axis + 1], -1)[:, :, 0].T.contiguous()


def _products(matrices: list[Tensor]) -> tuple[Sparse, Tensor]:
    """The entries of a tensor product of matrices that are not 0, and their places."""
    rows = columns = torch.zeros(1, dtype=torch.long)
    entries = torch.ones(1, dtype=torch.float64)
    for matrix in matrices:
        row, column = matrix.nonzero(as_tuple=True)
        rows = (rows[:, None] * matrix.shape[0] + row).flatten()
        columns = (columns[:, None] * matrix.shape[1] + column).flatten()
        entries = (entries[:, None] * matrix[row, column]).flatten()
    above, below = (tuple(m.shape[k] for m in matrices) for k in (0, 1))
    return Sparse(rows, columns, above, below), entries


@reading
def plain_sum(builder: Builder, call: Call) -> Node | None:
    """Each output is a sum of some elements, all with weight 1."""
    if has_tensors(call.args[1:]):
        return None
    linear = Averaging(lambda a: call.function(a, *call.args[1:]))
    return _mix(builder, call, call.function, call.args, linear, lambda scope: torch.ones(()))


@reading
def lerp(builder: Builder, call: Call) -> Any:
    """Two live operands and a constant weight: a mix of both, stacked on an axis of their own."""
    start, end, weight = call["self"], call["end"], call["weight"]
    if not (isinstance(start, Node) and isinstance(end, Node)) or isinstance(weight, Node):
        return interpolation(builder, call)
    pair = [builder.expand(operand, call.node) for operand in (start, end)]
    both = builder.spell(aten.stack.default, pair, -1)
    letters = ascii_lowercase[: len(builder.traced[pair[0]])]
    share = constant(weight)

    def weights(scope: Scope) -> Tensor:
        w = share(scope)
        return torch.stack([1 - w, w], -1)

    def run(a: Tensor, w: Any) -> Tensor:
        return torch.lerp(a[..., 0], a[..., 1], w)

    known = isinstance(weight, (int, float))
    own = "" if known else letters[len(letters) - builder.rank(weight) :]
    within = 0 <= weight <= 1 if known else builder.decide(lambda given: _shares(given[weight]))
    linear = Contraction(Equation(f"{letters}z", f"{own}z", letters))
    return _mix(builder, call, run, (both, weight), linear, weights, not within)


def _shares(weight: Tensor) -> bool:
    return bool(((weight >= 0) & (weight <= 1)).all())


@reading
def accumulation(builder: Builder, call: Call) -> Any:
    """Elements are added to the places that a constant index names; what they are added to takes part if it is live."""
    by_line = call.operator == "scatter_add"
    source = call["src" if by_line else "source"]
    return _accumulated(builder, call, call["self"], call["index"], source, call.get("alpha", 1), by_line)


@reading
def scatter(builder: Builder, call: Call) -> Any:
    """A wire that puts elements into places, or adds them to what is there; other ways to join both have no kind."""
    reduce = call.get("reduce")
    if reduce is None:
        return wire(builder, call)
    if reduce not in ("add", "sum") or not call.get("include_self", True) or call.get("src") is None:
        return None
    return _accumulated(builder, call, call["self"], call["index"], call["src"], 1, by_line=True)


@reading
def index_put(builder: Builder, call: Call) -> Any:
    """A wire, or with `accumulate` an `index_add` along the indexed axes, which lie side by side and are made one."""
    if not call.get("accumulate", False):
        return wire(builder, call)
    base, values, shape = call["self"], call["values"], call.shape
    axes = [d for d, index in enumerate(call["indices"]) if index is not None]
    indices = [call["indices"][d] for d in axes]
    constants = [builder.meta[index.name] for index in indices if isinstance(index, Ref)]
    sizes = [shape[d] for d in axes]
    first, last = axes[0], axes[-1]
    numbers = len(constants) == len(axes) and all(operators.is_counting(t.dtype) for t in constants)
    if not numbers or last - first + 1 != len(axes) or not all(isinstance(s, int) for s in sizes):
        return None
    place, steps = indices[0], len(sizes)
    for k in range(steps):
        own = builder.spell(aten.remainder.Scalar, indices[k], sizes[k])  # counted from the end
        place = own if k == 0 else builder.spell(aten.add.Tensor, own, place, alpha=1)
        if k < steps - 1:
            place = builder.spell(aten.mul.Scalar, place, sizes[k + 1])
    extent = len(builder.meta[place.name].shape)
    full = [*shape[:first], *builder.meta[place.name].shape, *shape[last + 1 :]]
    if list(builder.traced_shape(values)) != full:
        return None
    if extent != 1:
        place = builder.spell(aten.reshape.default, place, [-1])
        values = builder.spell(aten.flatten.using_ints, values, first, first + extent - 1)
    if steps > 1:
        base = builder.spell(aten.flatten.using_ints, base, first, last)
    made = builder.spell(aten.index_add.default, base, first, place, values)
    return made if steps == 1 else builder.spell(aten.unflatten.int, made, first, sizes)


def _accumulated(
    builder: Builder, call: Call, base: Any, index: Any, source: Any, alpha: float, by_line: bool
) -> Node | None:
    """One mix of both operands, side by side along the dimension: a matrix of ones and zeros for each line along it.

    The lines share one matrix unless the index has places `by_line`; it may then be smaller than both operands.
    """
    if isinstance(index, Node) or not isinstance(call["dim"], int):
        return None
    shape = call.shape
    dim, own = call["dim"] % len(shape), isinstance(base, Node)
    size = builder.size(shape[dim])
    if not isinstance(source, Node):  # a constant is added: a bias (S2)
        args = builder.empty_like(call.node), builder.shape_of(call.node), dim, index, source, alpha
        return builder.spell(aten.add.Tensor, base, builder.in_place_of(call, _onto_zeros, *args))
    added: Node = builder.scaled(source, alpha)
    widths: list[int] = []
    if by_line:
        fitted = _fitted(builder, added, builder.meta[index.name].shape, shape, dim)
        if fitted is None:
            return None
        added, widths = fitted
    if own and not _side_by_side(builder, base, added, dim):
        return None
    operand: Node = builder.spell(aten.cat.default, [base, added], dim) if own else added
    letters = ascii_lowercase[: len(builder.traced[operand])]
    out = letters.replace(letters[dim], "z")
    line = letters.replace(letters[dim], f"z{letters[dim]}") if by_line else f"z{letters[dim]}"

    def places(scope: Scope) -> Tensor:
        """1 where an element along the dimension is added to a place, (…, places, elements, …)."""
        place, count = scope[index], scope[size] if isinstance(size, Ref) else size
        along = dim if by_line else 0
        if widths:
            place = torch.nn.functional.pad(place, widths, value=-1)  # no place
        if own:
            first = torch.arange(count, device=place.device)
            view = [-1 if d == along else 1 for d in range(place.ndim)]
            kept = first.view(view).expand([count if d == along else s for d, s in enumerate(place.shape)])
            place = torch.cat([kept, place], along)
        numbers = torch.arange(count, device=place.device).view([-1] + [1] * (place.ndim - along))
        return (place.unsqueeze(along) == numbers).double()

    linear = Contraction(Equation(letters, line, out))

    def run(a: Tensor, *constants: Any) -> Tensor:
        return linear.apply(a, places({index: constants[0], size: constants[1]}).to(a))

    made = _mix(builder, call, run, (operand, index, size), linear, places)
    return made if own else builder.spell(aten.add.Tensor, made, base)


def _fitted(
    builder: Builder, source: Node, index: torch.Size, out: torch.Size, dim: int
) -> tuple[Node, list[int]] | None:
    """The elements that an index of another shape names, padded to the lines of the output; the widths of that."""
    widths: list[int] = []  # of the last axes first, as far as the first one that is padded
    for d in range(len(out)):
        if builder.traced[source][d] != index[d]:
            source = builder.spell(aten.slice.Tensor, source, d, 0, index[d])
        missing = 0 if d == dim or index[d] == out[d] else out[d] - index[d]
        if not isinstance(missing, int):
            return None
        widths = [0, missing, *widths] if widths or missing else []
    if widths:  # written by hand: a pad that is traced now would fix the number of samples
        shape = torch.Size([index[d] if d == dim else size for d, size in enumerate(out)])
        source = zero_padded(builder, source, widths, shape, "constant_pad_nd", helper=True)
    return source, widths


def _side_by_side(builder: Builder, base: Node, source: Node, dim: int) -> bool:
    """Whether two operands fit together along a dimension."""
    shapes = [[s for d, s in enumerate(builder.traced[n]) if d != dim] for n in (base, source)]
    return shapes[0] == shapes[1]


def _onto_zeros(like: Tensor, shape: list[int], dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    zeros = like.new_zeros(shape)
    if index.ndim == source.ndim and index.ndim > 1:
        return zeros.scatter_add(dim, index, source)
    return zeros.index_add(dim, index, source, alpha=alpha)


@reading
def grid_sample(builder: Builder, call: Call) -> Node | None:
    """A constant grid: the response to each pixel of a plane gives the matrix."""
    x, grid, *rest = call.args
    if not isinstance(x, Node) or isinstance(grid, Node) or len(builder.traced[x]) != 4:
        return None
    height, width = (int(s) for s in builder.traced[x][2:])
    above = [int(s) for s in call.shape[2:]]
    if height * width * math.prod(above) > _LARGEST:
        return None

    def responses(scope: Scope) -> Tensor:
        where = scope[grid]
        pixels = torch.eye(height * width, dtype=where.dtype, device=where.device).view(1, -1, height, width)
        response = call.op(pixels.expand(len(where), -1, -1, -1), where, *rest)
        return response.movedim(1, -1).unflatten(-1, (height, width))

    signed = rest[0] == 2  # bicubic
    return _mix(
        builder, call, call.function, call.args, Contraction(Equation("bchw", "bpqhw", "bcpq")), responses, signed
    )
