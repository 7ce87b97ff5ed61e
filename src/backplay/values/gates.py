"""Gates (S8): with which probability a player goes on, in each game.

Most gates are `a = z · h(z)`: players continue with probability `h(z)` in both games. Where value and slope part, the
Stopping Game follows the slope and the Routing Game asks whether there is a value at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backplay.network.nodes import Gate, Scope, rerun, resolve
from backplay.values.normal import normal_cdf

Options = dict[str, Any]


def _gelu(z: Tensor, options: Options) -> Tensor:
    if options.get("approximate", "none") == "none":
        return normal_cdf(z)
    # ½(1 + tanh u) = sigmoid(2u), which keeps its digits for u → −∞
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))


def _softplus(z: Tensor, options: Options) -> Tensor:
    return torch.sigmoid(z * options.get("beta", 1.0))


def _leaky(z: Tensor, options: Options) -> Tensor:
    slope = options.get("negative_slope")
    if slope is None:  # rrelu in eval mode
        slope = (options["lower"] + options["upper"]) / 2
    return torch.where(z > 0, 1.0, torch.as_tensor(slope, dtype=z.dtype))


def _prelu(z: Tensor, options: Options) -> Tensor:
    weight: Tensor = options["weight"]
    channels = weight.view([-1] + [1] * (z.ndim - 2)) if weight.numel() > 1 and z.ndim > 1 else weight
    return torch.where(z > 0, torch.ones((), dtype=z.dtype), channels.to(z.dtype))


_FACTORS: dict[str, Callable[[Tensor, Options], Tensor]] = {
    "relu": lambda z, _: (z > 0).to(z.dtype),
    "gelu": _gelu,
    "silu": lambda z, _: torch.sigmoid(z),
    "hardswish": lambda z, _: ((z + 3) / 6).clamp(0, 1),
    "mish": lambda z, _: torch.tanh(functional.softplus(z)),
    "softplus": _softplus,
    "leaky_relu": _leaky,
    "prelu": _prelu,
}

_TAILS = 18.0  # e⁻¹⁸ is below the last digit of float32
_REACH = {"gelu": 6.0, "hardswish": 3.0, "tanh": 9.0, "leaky_relu": 1.0, "prelu": 1.0}

_PIECEWISE = frozenset({"leaky_relu", "prelu"})  # value and slope agree, whatever the slope


def stopping_slope(node: Gate, scope: Scope) -> Tensor:
    """Signed slope of a gate in the Stopping Game: probability `min(|g|, 1)`, discount `max(|g|, 1)`."""
    z = scope[node.operand]
    options = resolve_options(node, scope)
    if node.gate in _PIECEWISE:
        return _FACTORS[node.gate](z, options)
    if node.gate in _FACTORS:
        return _FACTORS[node.gate](z, options).clamp(0, 1)
    if node.gate in ("hardtanh", "clamp"):
        return _inside(z, options).to(z.dtype)
    if node.operator == "hardsigmoid":  # its backward formula rounds 1/6 to float32
        return (z.abs() < 3).to(z.dtype) / 6
    if node.gate == "composite" and _vanishes_at_zero(node, scope):
        return _composite(node, scope)
    return derivative(lambda a: replay(node, a, scope), z)


def routing_probability(node: Gate, scope: Scope) -> Tensor:
    """`c(z)` of a gate in the Routing Game."""
    z = scope[node.operand]
    if node.gate in _FACTORS:
        return _FACTORS[node.gate](z, resolve_options(node, scope)).clamp(0, 1)
    if node.gate == "composite" and _vanishes_at_zero(node, scope):
        return _composite(node, scope)
    return (scope[node] != 0).to(z.dtype)


def accurate_tail(node: Gate, scope: Scope) -> Tensor | None:
    """`z · h(z)` where the operator's own formula has no correct digits far left of 0 (S37)."""
    z = scope[node.operand]
    return z * _FACTORS["gelu"](z, resolve_options(node, scope)) if node.gate == "gelu" else None


def reach(node: Gate, scope: Scope) -> float:
    """How far from 0 a gate bends; beyond, it is a straight line or will never be one."""
    options = resolve_options(node, scope)
    if node.gate in ("hardtanh", "clamp"):
        bounds = [options.get(name) for name in ("min_val", "max_val", "min", "max")]
        return max([abs(float(b)) for b in bounds if b is not None] or [1.0]) or 1.0
    if node.gate == "softplus":
        return _TAILS / options.get("beta", 1.0)
    return _REACH.get(node.gate, 3.0 if node.operator == "hardsigmoid" else _TAILS)


def resolve_options(node: Gate, scope: Scope) -> Options:
    return {k: resolve(v, scope) for k, v in node.options.items()}


def replay(node: Gate, z: Tensor, scope: Scope) -> Tensor:
    """The gate on another pre-activation; a composite one runs all of its operators again."""
    return rerun(node, {node.operand: z}, scope)


def _vanishes_at_zero(node: Gate, scope: Scope) -> bool:
    zero = torch.zeros((1,) * scope[node.operand].ndim, dtype=scope[node.operand].dtype)
    return bool((replay(node, zero, scope) == 0).all())


def _composite(node: Gate, scope: Scope) -> Tensor:
    """`clip(g(z)/z, 0, 1)` (S3a); the slope at 0."""
    z = scope[node.operand]
    at_zero = derivative(lambda a: replay(node, a, scope), torch.zeros_like(z)) if bool((z == 0).any()) else z
    return torch.where(z == 0, at_zero, scope[node] / torch.where(z == 0, 1.0, z)).clamp(0, 1)


def _inside(z: Tensor, options: Options) -> Tensor:
    low = options.get("min_val", options.get("min"))
    high = options.get("max_val", options.get("max"))
    inside = torch.ones_like(z, dtype=torch.bool)
    if low is not None:
        inside &= z > low
    if high is not None:
        inside &= z < high
    return inside


def derivative(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Elementwise derivative of an activation."""
    with torch.inference_mode(False), torch.enable_grad():
        point = z.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope
