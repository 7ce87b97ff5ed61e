"""Convolutions, linear layers and other products with a constant or between tensors, by the names of operators (S3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from backplay.network.contraction import Einsum, Equation
from backplay.network.linear import Convolution, Dense
from backplay.network.nodes import Affine, Node, Scope
from backplay.network.reading.arithmetic import addition
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant, reading
from backplay.network.reading.mixes import averaging
from backplay.network.reading.products import contract
from backplay.network.reading.wires import zero_padded
from backplay.network.wires import Wire

# ---------------------------------------------------------------- convolutions


@reading
def convolution(builder: Builder, call: Call) -> Node | None:
    """A convolution with a constant kernel; uneven padding is a wire in front of it."""
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if not isinstance(x, Node) or isinstance(weight, Node):
        return None
    padding = call["padding"]
    if isinstance(padding, str):
        x, padding = _padded(builder, call, x, padding)
    dims, space = len(builder.traced[x]), builder.rank(weight) - 2

    def full(numbers: Sequence[int], default: int) -> tuple[int, ...]:
        """One for each dimension of the image: torch takes a single one for all, and none for the default."""
        given = tuple(numbers) or (default,)
        return given * space if len(given) == 1 else given

    linear = Convolution(
        stride=full(call["stride"], 1),
        padding=full(padding, 0),
        dilation=full(call["dilation"], 1),
        output_padding=full(call.get("output_padding", ()), 0),
        transposed="transpose" in call.operator or bool(call.get("transposed", False)),
        groups=call["groups"],
    )

    def without_padding(a: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return linear.apply(a, w) if b is None else linear.apply(a, w) + channels(b, w.ndim)

    same = x is call["input"]
    node = Affine(
        call.function if same else without_padding,
        call.args if same else (x, weight, bias),
        call.operator,
        operand=x,
        map=linear,
        weight=constant(weight),
        bias=None if bias is None else lambda scope: channels(scope[bias], dims),
    )
    return builder.add(node)


def channels(vector: Tensor, dims: int) -> Tensor:
    """One number a channel, broadcastable against (B, channels, …)."""
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
    widths = [p for t in reversed(total) for p in (t // 2, t - t // 2)]
    shape = list(builder.traced[x])
    for axis, t in enumerate(total, 2):
        shape[axis] = shape[axis] + t
    return zero_padded(builder, x, widths, torch.Size(shape)), [0] * len(kernel)


# ---------------------------------------------------------------- linear layers and matrix products


def _dense(builder: Builder, call: Call, x: Node, weight: Callable[[Scope], Tensor], bias: Any) -> Node:
    node = Affine(*call.itself, operand=x, map=Dense(), weight=weight, bias=None if bias is None else constant(bias))
    return builder.add(node)


@reading
def linear(builder: Builder, call: Call) -> Node | None:
    """`x Wᵀ + b`; a live weight makes it a product of two live tensors."""
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if isinstance(x, Node) and not isinstance(weight, Node) and not isinstance(bias, Node):
        return _dense(builder, call, x, constant(weight), bias)
    equation = Equation.linear(builder.rank(x), builder.rank(weight))
    product = contract(builder, call, equation, x, weight)
    return product if bias is None or product is None else _sum(builder, call, product, bias)


@reading
def added_product(builder: Builder, call: Call) -> Node | None:
    """`β · self + α · (left @ right)`, as the calls that it stands for; one affine node where it is one."""
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}[call.operator]
    term, left, right = call["self"], *(call[name] for name in names)
    beta, alpha = call.get("beta", 1), call.get("alpha", 1)
    plain = isinstance(left, Node) and not isinstance(right, Node) and not isinstance(term, Node)
    if plain and call.operator == "addmm" and alpha == beta == 1:
        return _dense(builder, call, left, lambda scope: scope[right].T, term)
    if isinstance(left, Node) or isinstance(right, Node):
        equation = Equation.matmul(builder.rank(left), builder.rank(right))
        product: Any = contract(builder, call, equation, left, right)
    else:
        product = builder.computed(torch.matmul, left, right)
    return None if product is None else _sum(builder, call, product, term, alpha, beta)


def _sum(builder: Builder, call: Call, product: Any, term: Any, alpha: float = 1, beta: float = 1) -> Node | None:
    """`α · product + β · term`, read as sums and multiples are."""
    if beta == 0:
        return builder.scaled(product, alpha) if isinstance(product, Node) else None
    if isinstance(product, Node) and alpha != 1:
        product = builder.scaled(product, alpha)
        alpha = 1
    if isinstance(term, Node):
        term = builder.scaled(term, beta)
    elif beta != 1:
        term = builder.computed(lambda t: beta * t, term)
    named = {"self": term, "other": product, "alpha": alpha}
    return addition(builder, Call(call.node, "add", torch.add, (term, product), (), named))


@reading
def product_of_two(builder: Builder, call: Call) -> Node | None:
    """Matrix products and their relatives, as an equation over axes; behind a constant matrix a linear layer."""
    left, right = call.args[:2]
    ranks = builder.rank(left), builder.rank(right)
    if call.operator == "tensordot":
        equation = _tensordot(ranks, call["dims_self"], call["dims_other"])
    elif call.operator == "linalg_vecdot":
        if call.get("dim", -1) not in (-1, ranks[0] - 1) or ranks[0] != ranks[1]:
            return None
        lead = "abcdefgh"[: ranks[0] - 1]
        equation = Equation(f"{lead}y", f"{lead}y", lead)
    elif call.operator == "inner":
        equation = Equation.linear(*ranks)
    else:
        equation = Equation.matmul(*ranks)
        if isinstance(left, Node) and not isinstance(right, Node) and ranks[1] == 2:
            return _dense(builder, call, left, lambda scope: scope[right].T, None)
    plain = call.operator in ("mm", "matmul", "bmm", "mv")
    return contract(builder, call, equation, left, right, call.function if plain else None)


def _tensordot(ranks: tuple[int, int], mine: list[int], its: list[int]) -> Equation:
    left, right = list("abcdefgh"[: ranks[0]]), list("stuvwxyz"[: ranks[1]])
    for a, b in zip(mine, its, strict=True):
        right[b] = left[a]
    summed = {left[a] for a in mine}
    out = [c for c in left + right if c not in summed]
    return Equation("".join(left), "".join(right), "".join(out))


# ---------------------------------------------------------------- any number of tensors


@reading
def bilinear(builder: Builder, call: Call) -> Node | None:
    """`x₁ᵀ W x₂ + b`: the weight meets the first operand, and both the second."""
    tensors, bias = [call["input1"], call["weight"], call["input2"]], call.get("bias")
    product = _contract_all(builder, call, "...i,kij,...j->...k", tensors)
    return product if bias is None or product is None else _sum(builder, call, product, bias)


@reading
def einsum(builder: Builder, call: Call) -> Node | None:
    return _contract_all(builder, call, call["equation"], list(call["tensors"]))


def _contract_all(builder: Builder, call: Call, text: str, tensors: list[Any]) -> Node | None:
    """An einsum of any number of tensors: two by two from left to right, constants first."""
    einsum = Einsum.read(text, [builder.rank(t) for t in tensors])
    pairs = [_distinct(builder, t, letters) for t, letters in zip(tensors, einsum.operands, strict=True)]
    pairs.sort(key=lambda pair: isinstance(pair[0], Node))  # constants first, else as they stand
    operands, left = [t for t, _ in pairs], Einsum(tuple(letters for _, letters in pairs), einsum.out)
    while len(operands) > 1:
        equation, left = left.pair()
        one, other = operands[:2]
        if isinstance(one, Node) or isinstance(other, Node):
            product: Any = contract(builder, call, equation, one, other)
        else:
            product = builder.computed(lambda a, b, text=equation.text: torch.einsum(text, a, b), one, other)
        if product is None:
            return None
        operands = [product, *operands[2:]]
    return _reduced(builder, call, operands[0], left)


def _distinct(builder: Builder, tensor: Any, letters: str) -> tuple[Any, str]:
    """A diagonal where a letter stands twice in one operand: a wire."""
    once = "".join(dict.fromkeys(letters))
    if once == letters:
        return tensor, letters

    def diagonal(t: Tensor) -> Tensor:
        return torch.einsum(f"{letters}->{once}", t)

    if not isinstance(tensor, Node):
        return builder.computed(diagonal, tensor), once
    wire = Wire(diagonal, (tensor,), "diagonal", nonnegative=tensor.nonnegative, helper=True)
    shape = builder.traced[tensor]
    return builder.add(wire, torch.Size([shape[letters.index(c)] for c in once])), once


def _reduced(builder: Builder, call: Call, x: Node, einsum: Einsum) -> Node:
    """One operand alone: a sum over the axes that the output has not, a mix, then a permutation, a wire."""
    (letters,), out = einsum.operands, einsum.out
    axes = [k for k, c in enumerate(letters) if c not in out]
    if axes:
        named = {"self": x, "dim": axes, "keepdim": False}
        shape = torch.Size([s for k, s in enumerate(builder.traced[x]) if k not in axes])
        x = averaging(builder, Call(call.node, "sum", torch.sum, (x, axes), (), named), x, shape)
        letters = "".join(c for c in letters if c in out)
    if letters == out:
        return x
    args = x, [letters.index(c) for c in out]
    return builder.add(Wire(torch.permute, args, "permute", nonnegative=x.nonnegative))
