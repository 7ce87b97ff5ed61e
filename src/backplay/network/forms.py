"""Which gate an activation is (S3a, S8): its name, its numbers, and what it multiplies its operand by.

Most gates are `a = z · h(z)`. One that is spelled out in several operators is compared with the known ones on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backplay.network.elementwise import agree, grid, multiplier, product_of
from backplay.network.indicator import above
from backplay.network.nodes import Gate, Node, Scope, rerun, resolve

Options = dict[str, Any]


def _gelu(z: Tensor, options: Options) -> Tensor:
    if options.get("approximate", "none") == "none":
        return 0.5 * torch.erfc(-z / math.sqrt(2))  # keeps its digits in the left tail
    # ½(1 + tanh u) = sigmoid(2u), which keeps its digits for u → −∞
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))


def _softplus(z: Tensor, options: Options) -> Tensor:
    """The slope; beyond its threshold softplus is the identity."""
    steep = z * options.get("beta", 1.0)
    return torch.maximum(torch.sigmoid(steep), above(steep, options.get("threshold", 20.0)))


def _leaky(z: Tensor, options: Options) -> Tensor:
    slope = options.get("negative_slope")
    if slope is None:  # rrelu in eval mode
        slope = (options["lower"] + options["upper"]) / 2
    return _slopes(z, torch.as_tensor(slope, dtype=z.dtype))


def _prelu(z: Tensor, options: Options) -> Tensor:
    weight: Tensor = options["weight"]
    channels = weight.view([-1] + [1] * (z.ndim - 2)) if weight.numel() > 1 and z.ndim > 1 else weight
    return _slopes(z, channels.to(z.dtype))


def _slopes(z: Tensor, left: Tensor) -> Tensor:
    """1 right of 0, another slope left of it."""
    right = above(z, 0)
    return right + (1 - right) * left


# `h(z)` of gates `z h(z)`; of softplus, which is no such product, the slope takes its place
FACTORS: dict[str, Callable[[Tensor, Options], Tensor]] = {
    "relu": lambda z, _: above(z, 0),
    "gelu": _gelu,
    "silu": lambda z, _: torch.sigmoid(z),
    "hardswish": lambda z, _: ((z + 3) / 6).clamp(0, 1),
    "mish": lambda z, _: torch.tanh(functional.softplus(z)),
    "softplus": _softplus,
    "leaky_relu": _leaky,
    "prelu": _prelu,
}

# gates `z · h(z)` that people spell out, with their numbers
_SPELLED: tuple[tuple[str, Options], ...] = (
    ("relu", {}),
    ("silu", {}),
    ("gelu", {}),
    ("gelu", {"approximate": "tanh"}),
    ("hardswish", {}),
    ("mish", {}),
)


@dataclass(frozen=True)
class Form:
    """What a gate is (S3a): a name of S8 and its numbers, times a constant `scale`, which is a diagonal behind it.

    "factor" is a product `z · h(z)` without a name, "other" every activation that follows its slope. A product whose
    constants make `h` a probability in some places alone is a factor `inside` these, and follows its slope elsewhere.
    """

    name: str
    options: Options = field(default_factory=dict[str, Any])
    scale: float = 1.0


def form_of(node: Gate, scope: Scope) -> Form:
    """The form of a gate; a composite one is compared with the known gates on a grid of its operand."""
    options = {k: resolve(v, scope) for k, v in node.options.items()}
    if node.gate == "clamp" and options.get("max") is None and _is_zero(options.get("min")):
        return Form("relu")
    if node.gate != "composite":
        return Form(node.gate, options)
    device = scope[node.operand].device if node.operand in scope else None
    try:
        return _composite(node, grid().to(device), scope)
    except RuntimeError:  # an operator that asks for the dtype of its constants
        return _composite(node, grid().float().to(device), scope)


def _composite(node: Gate, z: Tensor, scope: Scope) -> Form:
    if node.factors is None:
        return _quotient(z, node.on(z, scope))
    return _product(z, multiplier(node, z, scope), float(product_of(node.behind, {}, scope)))


def _is_zero(bound: Any) -> bool:
    return bound is not None and bool((torch.as_tensor(bound) == 0).all())


def _product(z: Tensor, h: Tensor, behind: float) -> Form:
    """A product `z · h(z)`: a known gate times a number, or a gate of its own where `h` is a probability."""
    size = _largest(h)
    if size >= 1:
        for name, options in _SPELLED:
            if agree(h / size, FACTORS[name](z, options)):
                return Form(name, options, size * behind)
    inside = _squeezed(((h * behind).nan_to_num(0.5, 0.5, 0.5) - 0.5).abs().amax(0) <= 0.5 + 1e-6)
    if bool(inside.all()):
        return Form("factor")
    return Form("factor", {"inside": inside}) if bool(inside.any()) else Form("other")


def _largest(values: Tensor) -> float:
    """The largest finite value, rounded to 1 where it means 1."""
    finite = values[torch.isfinite(values)]
    size = float(finite.amax()) if finite.numel() else 0.0
    return 1.0 if abs(size - 1) <= 1e-6 else size


def _quotient(z: Tensor, value: Tensor) -> Form:
    """Any other composite: a known gate times a number, or one that follows its slope."""
    ratio = value / z  # the grid leaves 0 out
    size = _largest(ratio)
    for name, options in _SPELLED:
        if size > 0 and agree(ratio / size, FACTORS[name](z, options)):
            return Form(name, options, size)
    slope = _along_constants(ratio, z < 0)
    if agree(ratio, torch.where(z > 0, 1.0, slope)):
        return Form("leaky_relu", {"negative_slope": slope})
    return Form("other")


def _along_constants(ratio: Tensor, where: Tensor) -> Tensor:
    """What a function of a grid is on one side of it, in the shape of its constants."""
    some = ratio[where.flatten()]
    mean = torch.where(torch.isfinite(some), some, 0).sum(0) / torch.isfinite(some).sum(0).clamp(min=1)
    return _squeezed(mean)


def _squeezed(values: Tensor) -> Tensor:
    """Values in the shape of a function's constants, without the leading axes that those do not have."""
    while values.ndim and values.shape[0] == 1:
        values = values[0]
    return values


def is_softplus(node: Node, z: Node, constants: Scope) -> bool:
    """Whether a value is `log(1 + exp z)` under another name."""
    points = grid()
    return agree(rerun(node, {z: points}, constants), functional.softplus(points))


def known_form(node: Gate, constants: Scope) -> str | None:
    """The name of a gate that is spelled out, if it shows before the model is played."""
    if node.gate != "composite":
        return None
    try:
        return form_of(node, constants).name
    except (KeyError, RuntimeError):
        return None
