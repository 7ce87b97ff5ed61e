"""Convolutions and products with a constant matrix: affine nodes (S3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.attention import mixing_einsum, mixing_matmul
from backplay.network.builder import Builder, Call, constant, lowers
from backplay.network.linear import Contraction, Convolution, Dense
from backplay.network.nodes import Affine, Node, Scope, Wire


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
        node.function = lambda a, w, b: plain.apply(a, w) if b is None else plain.apply(a, w) + channels(b, w.ndim)
        node.args = (x, weight, bias)
    node.operand, node.weight = x, constant(weight)
    if bias is not None:
        dims = builder.traced[x].__len__()
        node.bias = lambda scope: channels(scope[bias], dims)
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
