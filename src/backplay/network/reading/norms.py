"""Batch norm, folded or diagonal (S4), and norms with detached statistics (S3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from backplay.network.linear import Convolution, Dense
from backplay.network.nodes import Affine, Diagonal, Mix, Node, Norm, Scope
from backplay.network.reading.affine import channels
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant, reading


@reading
def batch_norm(builder: Builder, call: Call) -> Any:
    """Batch norm in eval mode: part of the affine node in front of it, or a diagonal."""
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
        diagonal = Diagonal(
            function,
            call.args,
            call.operator,
            operand=x,
            scale=lambda scope: channels(scale(scope), dims),
            offset=lambda scope: channels(offset(scope), dims),
        )
        node = builder.add(diagonal, builder.traced[x])
    return [lambda: node] if native else node


def _foldable(node: Affine, dims: int) -> bool:
    """Whether the channels of a batch norm are the outputs of the map: a linear layer has them last."""
    return (isinstance(node.map, Dense) and dims == 2) or isinstance(node.map, Convolution)


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
    transposed = node.map if isinstance(node.map, Convolution) and node.map.transposed else None
    count = len(node.args)
    dims = len(builder.traced[node])
    rest = tuple(None if a is node else a for a in args)

    def both(*operands: Any) -> Tensor:
        z = affine(*operands[:count])
        return function(z, *operands[count + 1 :])

    def folded_weight(scope: Scope) -> Tensor:
        w, s = weight(scope), scale(scope)
        if transposed is None:
            return w * s.view([-1] + [1] * (w.ndim - 1))
        # (inputs, outputs of a group, …): each group of inputs has outputs of its own
        groups = w.unflatten(0, (transposed.groups, -1))
        return (groups * s.view([transposed.groups, 1, -1] + [1] * (w.ndim - 2))).flatten(0, 1)

    def folded_bias(scope: Scope) -> Tensor:
        shift = channels(offset(scope), dims)
        return shift if bias is None else shift + channels(scale(scope), dims) * bias(scope)

    node.function = both
    node.rewire(*node.args, *rest)
    node.weight, node.bias = folded_weight, folded_bias
    builder.extend(node)
    return node


@reading
def norm(builder: Builder, call: Call) -> Any:
    """Layer, RMS, group and instance norm: the map `x ↦ γ x / s` with detached statistics."""
    x = call.args[0]
    native = call.operator.startswith("native")
    function = (lambda *args: call.function(*args)[0]) if native else call.function
    weight, eps, shape = call.get("weight"), call["eps"], builder.traced[x]
    centres, nonnegative = "rms" not in call.operator, False
    if "layer" in call.operator or not centres:
        axes = tuple(range(-len(call["normalized_shape"]), 0))
        average: Callable[[Tensor], Tensor] = partial(torch.mean, dim=axes, keepdim=True)
        if not centres and x.nonnegative:  # a norm that does not centre keeps signs, but for its gain's (S5)
            nonnegative = weight is None or builder.decide(lambda constants: bool((constants[weight] >= 0).all()))
        gain = constant(weight) if weight is not None else None
    else:
        if call.operator == "instance_norm" and not call["use_input_stats"]:
            return None
        groups = call.get("num_groups", call.get("group", shape[1]))
        average = partial(_group_mean, groups=groups)
        gain = (lambda scope: channels(scope[weight], len(shape))) if weight is not None else None

    def spread(scope: Scope) -> Tensor:
        a = scope[x]
        departure = a - average(a) if centres else a
        return average(departure.square()) + (torch.finfo(a.dtype).eps if eps is None else eps)

    node = Norm(
        function,
        call.args,
        call.operator,
        operand=x,
        scale=lambda scope: spread(scope).rsqrt() * (1.0 if gain is None else gain(scope)),
        spread=spread,
        average=average,
        centres=centres,
        nonnegative=nonnegative,
    )
    builder.add(node, shape)
    return [lambda: node] if native else node


def _group_mean(v: Tensor, groups: int) -> Tensor:
    """Mean over each group of channels and all positions, spread over the group's channels."""
    mean = v.unflatten(1, (groups, -1)).flatten(2).mean(2).repeat_interleave(v.shape[1] // groups, 1)
    return mean.view(*mean.shape, *[1] * (v.ndim - 2))
