"""From the calls of an exported program to nodes: one function for each family of operators (S3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.attention import mixing_einsum, mixing_matmul
from backplay.network.builder import LOWERINGS, Builder, Call, constant, flat, lowers
from backplay.network.elementwise import REDUCTIONS, common_ancestor, holds_oracle, is_statistic
from backplay.network.linear import Averaging, Contraction, Convolution, Dense, Resampling
from backplay.network.nodes import (
    Affine,
    Diagonal,
    Gate,
    Max,
    Mix,
    Node,
    Norm,
    Oracle,
    Product,
    Ref,
    Scope,
    Sum,
    Wire,
)


def lower(builder: Builder, call: Call) -> Any:
    """The node of a live call; an operator without a kind becomes an oracle that must not carry mass."""
    found = LOWERINGS.get(call.operator)
    result = found(builder, call) if found else None
    if result is None:
        return builder.add(Oracle(call.function, call.args, operator=call.operator, unsupported=True))
    return result


@lowers(*operators.GATES)
def gate(builder: Builder, call: Call) -> Node | None:
    operand = call.args[0]
    if not isinstance(operand, Node) or any(isinstance(a, Node) for a in call.args[1:]):
        return None
    node = Gate(call.function, call.args, operator=call.operator)
    node.operand, node.gate = operand, operators.GATES[call.operator]
    if node.gate == "clamp" and call.get("min") == 0 and call.get("max") is None and call.operator != "clamp_max":
        node.gate = "relu"
    node.options = {k: v for k, v in call.named.items() if v is not operand}
    bounded = {"hardtanh": "min_val", "clamp": "min", "clamp_min": "min"}.get(call.operator)
    floor = call.get(bounded) if bounded else None
    node.nonnegative = call.operator in operators.NONNEGATIVE_OPERATORS or (
        isinstance(floor, (int, float)) and floor >= 0
    )
    return builder.add(node)


@lowers(*operators.WIRES)
def wire(builder: Builder, call: Call) -> Node:
    tensors = [a for a in flat(call.args) if isinstance(a, (Node, Ref))]
    live = [a for a in tensors if isinstance(a, Node)]
    # an empty constant, such as a fresh cache in front of keys and values, adds no element
    floating = [a for a in tensors if isinstance(a, Ref) and builder.is_floating(a) and not builder.is_empty(a)]
    node = Wire(call.function, call.args, operator=call.operator)
    node.pads = call.operator in operators.PADS and call.get("mode", "constant") == "constant"
    node.constants = node.pads or bool(floating) or call.operator in {"masked_fill", "where", "tril", "triu"}
    # a constant row may be negative, so only wires of live non-negative operands and zeros are non-negative
    filled = bool(floating) or bool(call.get("value", 0)) or call.operator in {"masked_fill", "where"}
    node.nonnegative = all(a.nonnegative for a in live) and not filled
    return builder.add(node)


@lowers("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(builder: Builder, call: Call) -> list[Callable[[], Node]]:
    """Several outputs: a wire for each one that is used."""

    def part(index: int) -> Callable[[], Node]:
        def make() -> Node:
            node = Wire(lambda *args: call.function(*args)[index], call.args, operator=call.operator)
            node.nonnegative = all(a.nonnegative for a in node.inputs)
            return builder.add(node)

        return make

    return [part(k) for k in range(len(call.node.meta["val"]))]


@lowers(*operators.CONVOLUTIONS)
def convolution(builder: Builder, call: Call) -> Node | None:
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if not isinstance(x, Node) or isinstance(weight, Node):
        return None
    padding = call["padding"]
    if isinstance(padding, str):
        x, padding = _padded(builder, call, x, padding)
    transposed = "transpose" in call.operator or bool(call.get("transposed", False))
    node = Affine(call.function, call.args, operator=call.operator)
    node.map = Convolution(
        tuple(call["stride"]),
        tuple(padding),
        tuple(call["dilation"]),
        transposed,
        tuple(call.get("output_padding", ())),
        call["groups"],
    )
    if x is not call["input"]:
        plain = node.map
        node.function = lambda a, w, b: plain.apply(a, w) if b is None else plain.apply(a, w) + _channels(b, w.ndim)
        node.args = (x, weight, bias)
    node.operand, node.weight = x, constant(weight)
    if bias is not None:
        dims = builder.traced[x].__len__()
        node.bias = lambda scope: _channels(scope[bias], dims)
    return builder.add(node)


def _channels(vector: Tensor, dims: int) -> Tensor:
    return vector.view([-1] + [1] * (dims - 2))


def _padded(builder: Builder, call: Call, x: Node, padding: str) -> tuple[Node, list[int]]:
    """`padding="same"` may be uneven: as zero padding in a wire before the convolution."""
    kernel = list(builder.shape_of(call.node.args[1])[2:])  # type: ignore[arg-type]
    if padding == "valid":
        return x, [0] * len(kernel)
    dilation = list(call["dilation"]) * (len(kernel) if len(call["dilation"]) == 1 else 1)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if all(t % 2 == 0 for t in total):
        return x, [t // 2 for t in total]
    pads = [p for t in reversed(total) for p in (t // 2, t - t // 2)]
    node = Wire(torch.nn.functional.pad, (x, pads), operator="pad", nonnegative=x.nonnegative)
    node.pads = node.constants = True
    shape = list(builder.traced[x])
    for axis, t in enumerate(total, 2):
        shape[axis] = shape[axis] + t
    return builder.add(node, torch.Size(shape)), [0] * len(kernel)


@lowers("linear", "addmm", "mm", "matmul", "bmm", "einsum")
def product_with_matrix(builder: Builder, call: Call) -> Node | None:
    """A matrix product with a constant: affine. Two live operands are read by `attention`."""
    if call.operator == "linear":
        x, weight, bias = call["input"], call["weight"], call.get("bias")
        return None if isinstance(weight, Node) else _affine(builder, call, x, Dense(), constant(weight), bias)
    if call.operator == "addmm":
        bias, x, weight = call["self"], call["mat1"], call["mat2"]
        if isinstance(bias, Node) or isinstance(weight, Node) or call["alpha"] != 1 or call["beta"] != 1:
            return None
        return _affine(builder, call, x, Dense(), lambda scope: scope[weight].T, bias)
    if call.operator == "einsum":
        return _einsum(builder, call)
    left, right = call.args[:2]
    if isinstance(left, Node) and isinstance(right, Node):
        return mixing_matmul(builder, call)
    live, weight = (left, right) if isinstance(left, Node) else (right, left)
    dims, rank = len(builder.traced[live]), builder.rank(weight)
    if live is left and rank == 2:
        return _affine(builder, call, live, Dense(), lambda scope: scope[weight].T, None)
    if rank == 1 or dims == 1 or rank > dims:
        return None
    batch = "abcdefgh"[: rank - 2]
    if live is left:
        equation = f"...{batch}mk,{batch}kn->...{batch}mn"
    else:
        equation = f"...{batch}kn,{batch}mk->...{batch}mn"
    return _affine(builder, call, live, Contraction(equation), constant(weight), None)


def _einsum(builder: Builder, call: Call) -> Node | None:
    equation, tensors = call["equation"].replace(" ", ""), call["tensors"]
    live = [t for t in tensors if isinstance(t, Node)]
    if len(tensors) == len(live) == 2:
        return mixing_einsum(builder, call)
    if len(tensors) != 2 or len(live) != 1 or "->" not in equation or "." in equation:
        return None
    (left, right), out = equation.split("->")[0].split(","), equation.split("->")[1]
    if live[0] is tensors[1]:
        left, right = right, left
    if not set(left) <= set(right) | set(out):
        return None
    weight = tensors[1] if live[0] is tensors[0] else tensors[0]
    return _affine(builder, call, live[0], Contraction(f"{left},{right}->{out}"), constant(weight), None)


def _affine(builder: Builder, call: Call, x: Node, linear: Any, weight: Callable[[Scope], Tensor], bias: Any) -> Node:
    node = Affine(call.function, call.args, operator=call.operator)
    node.map, node.operand, node.weight = linear, x, weight
    node.bias = None if bias is None else constant(bias)
    return builder.add(node)


@lowers("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def batch_norm(builder: Builder, call: Call) -> Any:
    x, (mean, variance) = call["input"], (call["running_mean"], call["running_var"])
    if mean is None or variance is None or call.get("training", False):
        return None
    weight, bias, eps = call.get("weight"), call.get("bias"), call["eps"]

    def scale(scope: Scope) -> Tensor:
        inverse = torch.rsqrt(scope[variance] + eps)
        return inverse if weight is None else inverse * scope[weight]

    def offset(scope: Scope) -> Tensor:
        shift = -scope[mean] * scale(scope)
        return shift if bias is None else shift + scope[bias]

    native = "native" in call.operator
    function = (lambda *args: call.function(*args)[0]) if native else call.function
    previous = x if isinstance(x, Affine) and not isinstance(x, Mix) else None
    if previous is not None and builder.users(x) == 1 and _foldable(previous, len(builder.traced[x])):
        node: Node = _folded(builder, previous, function, call.args, scale, offset)
    else:
        dims = len(builder.traced[x])
        node = Diagonal(function, call.args, operator=call.operator)
        node.operand = x
        node.scale = lambda scope: _channels(scale(scope), dims)
        node.offset = lambda scope: _channels(offset(scope), dims)
        builder.add(node, builder.traced[x])
    return [lambda: node] if native else node


def _foldable(node: Affine, dims: int) -> bool:
    """Whether the channels of a batch norm are the outputs of the map: a linear layer has them last."""
    geometry = node.map
    return (isinstance(geometry, Dense) and dims == 2) or (
        isinstance(geometry, Convolution) and not (geometry.transposed and geometry.groups > 1)
    )


def _folded(
    builder: Builder,
    node: Affine,
    function: Callable[..., Tensor],
    args: tuple[Any, ...],
    scale: Callable[[Scope], Tensor],
    offset: Callable[[Scope], Tensor],
) -> Affine:
    """Batch norm directly behind an affine node becomes part of it (S4).

    The forward pass still runs both operators as the model does; only weight and bias that the games see are folded.
    """
    weight, bias, affine = node.weight, node.bias, node.function
    axis = 1 if isinstance(node.map, Convolution) and node.map.transposed else 0
    count = len(node.args)
    dims = len(builder.traced[node])
    rest = tuple(None if a is node else a for a in args)

    def both(*operands: Any) -> Tensor:
        z = affine(*operands[:count])
        return function(z, *operands[count + 1 :])

    def folded_weight(scope: Scope) -> Tensor:
        w = weight(scope)
        return w * scale(scope).view([-1 if d == axis else 1 for d in range(w.ndim)])

    def folded_bias(scope: Scope) -> Tensor:
        shift = _channels(offset(scope), dims)
        return shift if bias is None else shift + _channels(scale(scope), dims) * bias(scope)

    node.function, node.args = both, (*node.args, *rest)
    node.weight, node.bias = folded_weight, folded_bias
    builder.extend(node)
    return node


@lowers("add", "sub", "rsub")
def addition(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[0], call.args[1]
    alpha = call.get("alpha", 1)
    if call.operator == "rsub":
        left, right = right, left
    sign = 1 if call.operator == "add" else -1
    if isinstance(left, Node) and isinstance(right, Node):
        narrow = _statistic(builder, call, left, right)
        left, right = builder.expand(left, call.node), builder.expand(right, call.node)
        if narrow is not None:
            return _detached_offset(builder, call, (left, right), narrow, (1, sign * alpha))
        right = builder.scaled(right, sign * alpha)
        nonnegative = left.nonnegative and right.nonnegative
        return builder.add(Sum(torch.add, (left, right), operator=call.operator, nonnegative=nonnegative))
    if isinstance(left, Node):
        return _shifted(builder, call, left, right, sign * alpha, 1)
    return _shifted(builder, call, right, left, 1, sign * alpha)


def _statistic(builder: Builder, call: Call, left: Node, right: Node) -> int | None:
    """Position of an operand that is a statistic beside values (S3b).

    A mean or sum counts as one only where it is broadcast: pooled features beside features are a plain residual.
    """
    shape = list(call.node.meta["val"].shape)
    for k, (node, other) in enumerate(((left, right), (right, left))):
        broadcast = list(builder.traced[node]) != shape and list(builder.traced[other]) == shape
        if is_statistic(node) and not is_statistic(other) and (broadcast or holds_oracle(node)):
            return k
    return None


def _detached_offset(
    builder: Builder, call: Call, operands: tuple[Node, Node], narrow: int, factors: tuple[float, float]
) -> Node:
    """`x ± statistic`: the statistic is detached, mass passes to `x`."""
    node = Norm(lambda a, b: torch.add(a, b, alpha=factors[1]), operands, operator=call.operator)
    node.operand = operands[1 - narrow]
    factor = factors[1 - narrow]
    node.scale = constant(factor)
    return builder.add(node)


def _shifted(builder: Builder, call: Call, live: Node, shift: Any, times: float, factor: float) -> Node:
    """`factor · live + times · shift`: adding a constant is a bias (S2)."""
    live = builder.scaled(builder.expand(live, call.node), factor)
    value = constant(shift)
    node = Diagonal(lambda x, s: torch.add(x, s, alpha=times), (live, shift), operator=call.operator)
    node.operand, node.offset = live, lambda scope: times * value(scope)
    node.nonnegative = live.nonnegative and isinstance(shift, (int, float)) and shift * times >= 0
    return builder.add(node)


@lowers("neg")
def negation(builder: Builder, call: Call) -> Node:
    return builder.scaled(call["self"], -1)


@lowers("mul", "div", "true_divide")
def multiplication(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[0], call.args[1]
    divides = call.operator != "mul"
    if divides and call.get("rounding_mode"):
        return None
    if isinstance(left, Node) and isinstance(right, Node):
        common = common_ancestor(left, right)
        if common is not None:
            return _composite(builder, call, common)
        narrow = _statistic(builder, call, left, right)
        factors = builder.expand(left, call.node), builder.expand(right, call.node)
        if narrow is not None and not (divides and narrow == 0):
            return _detached_factor(builder, call, factors, narrow, divides)
        node = Product(torch.div if divides else torch.mul, factors, operator=call.operator)
        node.factors, node.divides = factors, divides
        node.carrying = factors[:1] if divides else carrying_factors(*factors)
        node.nonnegative = all(f.nonnegative for f in factors)
        return builder.add(node)
    if divides and isinstance(right, Node):
        return None
    live, factor = (left, right) if isinstance(left, Node) else (right, left)
    if isinstance(live, Gate) and live.gate == "composite" and isinstance(factor, (int, float)):
        return _composite(builder, call, live.operand)
    live = builder.expand(live, call.node)
    value = constant(factor)
    scaled = Diagonal(torch.div if divides else torch.mul, (live, factor), operator=call.operator)
    scaled.operand = live
    scaled.scale = (lambda scope: 1 / value(scope)) if divides else value
    scaled.nonnegative = live.nonnegative and isinstance(factor, (int, float)) and factor >= 0
    return builder.add(scaled)


def _composite(builder: Builder, call: Call, operand: Node) -> Node:
    """An elementwise function of one tensor that is spelled out in several operators is one gate (S3a)."""
    node = Gate(call.function, call.args, operator=call.operator)
    node.operand, node.gate = operand, "composite"
    node.nonnegative = all(n.nonnegative for n in node.inputs)
    return builder.add(node)


def _detached_factor(builder: Builder, call: Call, factors: tuple[Node, Node], narrow: int, divides: bool) -> Node:
    """`x · statistic` or `x / statistic`: a norm."""
    statistic = factors[narrow]
    node = Norm(torch.div if divides else torch.mul, factors, operator=call.operator)
    node.operand = factors[1 - narrow]
    node.scale = (lambda scope: 1 / scope[statistic]) if divides else (lambda scope: scope[statistic])
    return builder.add(node)


def carrying_factors(left: Node, right: Node) -> tuple[Node, ...]:
    """The factor that does not come out of a gate or a reduction carries; with none or two such, both do (S17)."""
    detached = [f for f in (left, right) if comes_from_factor_gate(f)]
    return tuple(f for f in (left, right) if f not in detached) if len(detached) == 1 else (left, right)


def comes_from_factor_gate(node: Node) -> bool:
    """Whether, seen through wires and diagonals, a node comes out of a factor gate, a softmax or a reduction."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    if isinstance(node, Gate):
        return node.operator in operators.FACTOR_GATES or node.gate == "composite"
    if isinstance(node, Oracle):
        told = operators.COMPARISONS | REDUCTIONS
        return not node.unsupported or node.operator in told
    return isinstance(node, Mix) and node.operator in operators.REDUCTIONS


@lowers("pow")
def power(builder: Builder, call: Call) -> Node | None:
    if not isinstance(call.args[0], Node) or not isinstance(call.args[1], (int, float)):
        return None
    node = Gate(call.function, call.args, operator="pow")
    node.operand, node.gate, node.nonnegative = call.args[0], "other", call.args[1] % 2 == 0
    return builder.add(node)


@lowers("addcmul")
def addcmul(builder: Builder, call: Call) -> Node | None:
    """`self + value · tensor1 · tensor2`, as the two calls that it stands for."""
    first, second, value = call["tensor1"], call["tensor2"], call.get("value", 1)
    product = Call(call.node, "mul", torch.mul, (first, second), (), {"self": first, "other": second})
    inner = multiplication(builder, product) if isinstance(first, Node) or isinstance(second, Node) else None
    if inner is None:
        return None
    named = {"self": call["self"], "other": inner, "alpha": value}
    return addition(builder, Call(call.node, "add", torch.add, (call["self"], inner), (), named))


@lowers(*operators.AVERAGES)
def average(builder: Builder, call: Call) -> Node | None:
    x = call.args[0]
    if any(isinstance(a, (Node, Ref)) for a in flat(call.args[1:])):
        return None
    node = Mix(call.function, call.args, operator=call.operator, nonnegative=x.nonnegative)
    node.operand = x
    node.map = Averaging(lambda a: call.function(a, *call.args[1:]), lambda a: _predecessors(call, a))
    node.weight = lambda scope: torch.ones((), dtype=torch.float64)
    return builder.add(node)


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


@lowers(*operators.RESAMPLINGS)
def resampling(builder: Builder, call: Call) -> Node | None:
    x = call.args[0]
    if any(isinstance(a, (Node, Ref)) for a in flat(call.args[1:])):
        return None
    sizes = [int(s) for s in builder.traced[x][2:]]
    matrices: list[Tensor] = []
    for axis, size in enumerate(sizes):
        # a channel for each input position of this axis, constant along the others: the response is the matrix
        probe = torch.eye(size, dtype=torch.float64).view(
            [1, size] + [size if a == axis else 1 for a in range(len(sizes))]
        )
        probe = probe.expand(1, size, *sizes)
        response = call.function(probe, *call.args[1:])[0]
        matrices.append(response.movedim(axis + 1, 1).flatten(2)[:, :, 0].T.contiguous())
    entries = torch.cat([m.flatten() for m in matrices])
    node = Mix(call.function, call.args, operator=call.operator, nonnegative=x.nonnegative)
    node.operand, node.map = x, Resampling(tuple((m.shape[0], m.shape[1]) for m in matrices))
    node.weight = lambda scope: entries.to(scope[x])
    return builder.add(node)


@lowers("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(builder: Builder, call: Call) -> Any:
    x = call["self"]
    dims = 1 if "1d" in call.operator else 3 if "3d" in call.operator else 2
    pool = getattr(torch.nn.functional, f"max_pool{dims}d")
    geometry = {k: call[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")}
    geometry["stride"] = geometry["stride"] or None
    node = Max(lambda a: pool(a, **geometry), (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _flat_planes(pool(a, **geometry, return_indices=True)[1], a, dims)
    shape = call.node.meta["val"]
    builder.add(node, shape[0].shape if isinstance(shape, (tuple, list)) else shape.shape)
    return [lambda: node] if "indices" in call.operator else node


def _flat_planes(index: Tensor, x: Tensor, dims: int) -> Tensor:
    """Indices within each plane of the last `dims` axes, as indices into the whole tensor."""
    plane = x[0, 0].numel() if x.ndim == dims + 2 else x[0].numel()
    planes = torch.arange(x.numel() // plane, device=x.device) * plane
    return index + planes.view(list(x.shape[:-dims]) + [1] * dims)


@lowers("adaptive_max_pool2d", "adaptive_max_pool1d", "adaptive_max_pool3d")
def adaptive_max_pool(builder: Builder, call: Call) -> list[Callable[[], Node]]:
    x, dims = call["self"], int(call.operator[-2])
    function, size = call.function, call["output_size"]
    node = Max(lambda a: function(a, size)[0], (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: _flat_planes(function(a, size)[1], a, dims)
    builder.add(node, call.node.meta["val"][0].shape)
    return [lambda: node]


@lowers("amax", "max")
def reduce_max(builder: Builder, call: Call) -> Any:
    x = call["self"]
    if isinstance(call.get("other"), Node):
        return maximum(builder, call)
    axes = call.get("dim", None)
    if axes is None or axes == []:
        return None
    axes = [axes] if isinstance(axes, int) else list(axes)
    keep = bool(call.get("keepdim", False))
    node = Max(lambda a: torch.amax(a, axes, keep), (x,), operator=call.operator, nonnegative=x.nonnegative)
    node.winner = lambda a: first_winner(a, axes, keep)
    pair = call.operator == "max"
    builder.add(node, call.node.meta["val"][0].shape if pair else None)
    return [lambda: node] if pair else node


def first_winner(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """Flat index of the first maximum over `axes` (argmax over equal values: the smallest index)."""
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    ties = x == x.amax(axes, keepdim=True)
    return torch.where(ties, index, x.numel()).amin(axes, keepdim=keep)


@lowers("maximum", "fmax")
def maximum(builder: Builder, call: Call) -> Node | None:
    left, right = call.args[:2]
    if not (isinstance(left, Node) and isinstance(right, Node)):
        return None
    left, right = builder.expand(left, call.node), builder.expand(right, call.node)
    nonnegative = left.nonnegative or right.nonnegative
    return builder.add(Max(torch.maximum, (left, right), operator=call.operator, nonnegative=nonnegative))


@lowers("softmax", "_softmax")
def softmax(builder: Builder, call: Call) -> Node:
    return builder.add(Oracle(call.function, call.args, operator="softmax", nonnegative=True))


@lowers("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "native_group_norm", "instance_norm")
def norm(builder: Builder, call: Call) -> Any:
    """Layer, RMS, group and instance norm: the map `x ↦ γ x / s` with detached statistics."""
    x = call.args[0]
    native = call.operator.startswith("native")
    function = (lambda *args: call.function(*args)[0]) if native else call.function
    node = Norm(function, call.args, operator=call.operator)
    node.operand = x
    weight, eps, shape = call.get("weight"), call["eps"], builder.traced[x]
    if "layer" in call.operator or "rms" in call.operator:
        axes = tuple(range(-len(call["normalized_shape"]), 0))
        node.average = lambda v: v.mean(axes, keepdim=True)
        centred = "rms" not in call.operator
        gain = constant(weight) if weight is not None else None
    else:
        if call.operator == "instance_norm" and not call["use_input_stats"]:
            return None
        groups = call.get("num_groups", call.get("group", shape[1]))
        node.average, centred = (lambda v: _group_mean(v, groups)), True
        gain = (lambda scope: _channels(scope[weight], len(shape))) if weight is not None else None
    average = node.average

    def spread(scope: Scope) -> Tensor:
        a = scope[x]
        departure = a - average(a) if centred else a
        return average(departure.square()) + (torch.finfo(a.dtype).eps if eps is None else eps)

    node.spread = spread
    node.scale = lambda scope: spread(scope).rsqrt() * (1.0 if gain is None else gain(scope))
    builder.add(node, shape)
    return [lambda: node] if native else node


def _group_mean(v: Tensor, groups: int) -> Tensor:
    """Mean over each group of channels and all positions, spread over the group's channels."""
    mean = v.unflatten(1, (groups, -1)).flatten(2).mean(2).repeat_interleave(v.shape[1] // groups, 1)
    return mean.view(*mean.shape, *[1] * (v.ndim - 2))
