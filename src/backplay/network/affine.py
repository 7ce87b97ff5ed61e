"""Convolutions: affine nodes (S3)."""

from __future__ import annotations

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.builder import Builder, Call, constant, lowers
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine, Fill, Node, Wire


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
    node = Wire(torch.nn.functional.pad, (x, pads, "constant", Fill(0.0)), operator="pad", nonnegative=x.nonnegative)
    node.pads = node.constants = True
    shape = list(builder.traced[x])
    for axis, t in enumerate(total, 2):
        shape[axis] = shape[axis] + t
    return builder.add(node, torch.Size(shape)), [0] * len(kernel)
