"""Gates (S8): with which probability a player goes on, in each game.

Gates `a = z · h(z)`, such as ReLU and GELU, let players go on with probability `h(z)` in both games; Softplus does so
with its slope. For any other gate the Stopping Game uses the derivative `g`: probability `min(|g|, 1)`, discount
`max(|g|, 1)`, and the turn goes over where `g < 0`. The Routing Game goes on where the value is not 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backplay.network.elementwise import multiplier, product_of
from backplay.network.forms import FACTORS, Form, Options
from backplay.network.indicator import nonzero
from backplay.network.nodes import Gate, Scope

_TAILS = 18.0  # e⁻¹⁸ is below the last digit of float32
_BEND_WIDTHS = {"gelu": 6.0, "hardswish": 3.0, "hardsigmoid": 3.0, "tanh": 9.0, "leaky_relu": 1.0, "prelu": 1.0}

_PIECEWISE = frozenset({"leaky_relu", "prelu"})  # value and slope agree, whatever the slope


def stopping_slope(node: Gate, scope: Scope, form: Form) -> Tensor:
    """What a gate of the Stopping Game multiplies by, with its sign: probability `min(|g|, 1)`, discount the rest.

    Of ReLU 1 where `z > 0` and 0 at a tie (eq:adf-spne-policy), of Softplus its sigmoid (eq:softplus-policy), of GELU
    the factor `Φ(z)` of `z Φ(z)` (app:gelu-noisy-gate), of other products `z h(z)` their factor too, of all else the
    derivative. The form's scale is left out.
    """
    z = scope[node.operand]
    if form.name in _PIECEWISE:
        return FACTORS[form.name](z, form.options)
    if form.name in FACTORS:
        return _probable(form, z)
    if form.name == "factor":
        return _own_factor(node, scope, form, lambda: derivative(lambda a: node.on(a, scope), z))
    if form.name in ("hardtanh", "clamp"):
        return _inside(z, form.options).to(z.dtype)
    if form.name == "hardsigmoid":  # its backward formula rounds 1/6 to float32
        return (z.abs() < 3).to(z.dtype) / 6
    return derivative(lambda a: node.on(a, scope), z)


def routing_probability(node: Gate, scope: Scope, form: Form) -> Tensor:
    """`c(z)` of a gate in the Routing Game (eq:routing-spne-stop, eq:routing-forward-stop).

    Of ReLU 1 where `z > 0`, of GELU `Φ(z)`, of SiLU its sigmoid; of gates without a formula 1 where they are not 0.
    """
    z = scope[node.operand]
    if form.name in FACTORS:
        return _probable(form, z)
    if form.name == "factor":
        return _own_factor(node, scope, form, lambda: nonzero(scope[node]))
    return nonzero(scope[node])


def _probable(form: Form, z: Tensor) -> Tensor:
    factor = FACTORS[form.name](z, form.options)
    return factor if form.name in ("relu", "silu") else factor.clamp_(0, 1)


def _own_factor(node: Gate, scope: Scope, form: Form, outside: Callable[[], Tensor]) -> Tensor:
    """`h(z)` of a product without a name, constants folded in; `outside` where that is no probability."""
    z = scope[node.operand]
    factor = (multiplier(node, z, scope) * float(product_of(node.behind, {}, scope))).clamp(0, 1)
    return torch.where(form.options["inside"], factor, outside()) if "inside" in form.options else factor


def accurate_tail(node: Gate, scope: Scope, form: Form) -> Tensor | None:
    """`z · h(z)` where the operator's own formula has no correct digits far left of 0 (S37)."""
    z = scope[node.operand]
    return z * FACTORS["gelu"](z, form.options) * form.scale if form.name == "gelu" else None


def bend_width(form: Form) -> float:
    """How far from 0 a gate bends: the moments of wide Gaussians look closely there alone (`values.gaussian`)."""
    if form.name in ("hardtanh", "clamp"):
        bounds = [form.options.get(name) for name in ("min_val", "max_val", "min", "max")]
        return max([float(torch.as_tensor(b).abs().amax()) for b in bounds if b is not None] or [1.0]) or 1.0
    if form.name == "softplus":
        return _TAILS / form.options.get("beta", 1.0)
    return _BEND_WIDTHS.get(form.name, _TAILS)


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
    with torch.enable_grad():
        point = z.detach().clone().requires_grad_()
        value = function(point)
        if not value.requires_grad:  # a constant, whatever the operand
            return torch.zeros_like(z)
        (slope,) = torch.autograd.grad(value.sum(), point)
    return slope
