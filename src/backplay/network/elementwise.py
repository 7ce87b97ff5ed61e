"""Normal forms of elementwise sub-graphs (S3a, S3b): what a value is a function of, and what that function is like.

An elementwise function that is spelled out in several operators shows what it is on a grid of numbers in place of its
operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.nodes import Diagonal, Gate, Max, Mix, Node, Norm, Product, Scope, Sum, Wire, rerun

_CLOSE = 1e-6  # of two functions on the grid
_AXES = 8

# ---------------------------------------------------------------- what a value is a function of


def ancestors(node: Node) -> list[Node]:
    """The tensors that a value is an elementwise function of, nearest first, itself included; found once."""
    if node.ancestry is None:
        chain = [node]
        while (below := _below(chain[-1])) is not None:
            chain.append(below)
        node.ancestry = chain
    return node.ancestry


def _below(node: Node) -> Node | None:
    """The nearest tensor that a node is an elementwise function of; None where it is no such function."""
    if isinstance(node, Gate) and node.gate != "composite":
        return node.operand
    if is_copy(node):
        return node.inputs[0]
    pointwise = isinstance(node, (Gate, Diagonal, Sum, Product)) or node.operator in operators.POINTWISE
    if not pointwise and not (isinstance(node, Max) and node.winner is None):
        return None
    return common_ancestor(*dict.fromkeys(node.inputs))


def is_copy(node: Node) -> bool:
    """Whether a node is its operand under another name, as in-place operators on a copy leave behind (S3)."""
    return isinstance(node, Wire) and node.operator in operators.COPIES


def common_ancestor(*nodes: Node) -> Node | None:
    """The nearest tensor that all of these are elementwise functions of."""
    if not nodes:
        return None
    first, *rest = nodes
    others = [set(ancestors(node)) for node in rest]
    return next((n for n in ancestors(first) if all(n in known for known in others)), None)


def between(node: Node, operand: Node) -> list[Node]:
    """The nodes of an elementwise function from its operand on, the operand left out."""
    found: dict[Node, None] = {node: None}
    waiting = [node]
    while waiting:
        for below in waiting.pop().inputs:
            if below is not operand and below not in found:
                found[below] = None
                waiting.append(below)
    return list(found)


def same(left: Any, right: Any) -> bool:
    """Whether two values are one, written down once or twice: the same operators on the same tensors."""
    if left is right:
        return True
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Node) and isinstance(right, Node):
        return _below(left) is not None and left.operator == right.operator and same(left.args, right.args)
    return not isinstance(left, Node) and not isinstance(right, Node) and left == right


# ---------------------------------------------------------------- what that function is like


def grid() -> Tensor:
    """Numbers of either sign, 0 left out, with axes behind them for every constant that may stand beside a value."""
    half = torch.cat([torch.linspace(0.01, 12, 300, dtype=torch.float64), torch.tensor([20.0, 50.0, 100.0, 500.0])])
    return torch.cat([-half.flip(0), half]).view([-1] + [1] * _AXES)


def replay(node: Gate, z: Tensor, scope: Scope) -> Tensor:
    """A gate on another pre-activation; a composite one runs all of its operators again."""
    return rerun(node, {node.operand: z}, scope)


def multiplier(node: Gate, z: Tensor, scope: Scope) -> Tensor:
    """`h(z)` of a composite gate `z · h(z)`, without the constants behind it."""
    assert node.factors is not None
    return product_of(node.factors, {node.operand: z}, scope).to(z.dtype)


def product_of(parts: tuple[Any, ...], changed: dict[Node, Tensor], scope: Scope) -> Tensor:
    """The product of functions of changed tensors, and of constants."""
    found: Tensor = torch.ones((), dtype=torch.float64)
    for part in parts:
        value = rerun(part, changed, scope) if isinstance(part, Node) else part(scope)
        found = found * value
    return found


def agree(first: Tensor, second: Tensor) -> bool:
    """Whether two functions are one on a grid, wherever a spelled-out formula does not overflow."""
    gap = (first - second).abs()
    return bool((gap[torch.isfinite(gap)] <= _CLOSE).all())


def is_probability(values: Tensor) -> bool:
    """Whether a function stays within [0, 1] on a grid."""
    values = values[torch.isfinite(values)]
    return bool(((values >= -_CLOSE) & (values <= 1 + _CLOSE)).all())


def is_bounded(node: Node, constants: Scope) -> bool:
    """Whether a value is a function, with values within [0, 1], of one of its ancestors: it weighs like a sigmoid."""
    return any(_holds(node, z, constants, is_probability) for z in ancestors(node)[1:])


def is_nonnegative(gate: Gate, constants: Scope) -> bool:
    """Whether no value of a composite gate on the grid is negative (S5)."""
    return _holds(gate, gate.operand, constants, lambda values: bool((values[torch.isfinite(values)] >= 0).all()))


def _holds(node: Node, z: Node, constants: Scope, check: Callable[[Tensor], bool]) -> bool:
    """Whether a property holds on the grid; not where constants are unknown before the model is played."""
    try:
        values = rerun(node, {z: grid()}, constants)
    except (KeyError, RuntimeError):
        return False
    return isinstance(values, Tensor) and check(values.double())


# ---------------------------------------------------------------- statistics


def is_statistic(node: Node) -> bool:
    """Whether a node depends on live values only through reductions, by elementwise steps (S3b)."""
    if isinstance(node, Mix):
        return node.operator in operators.REDUCTIONS
    steps = isinstance(node, (Gate, Diagonal, Product, Sum, Norm, Wire)) or node.operator in operators.POINTWISE
    return steps and bool(node.inputs) and all(is_statistic(n) for n in node.inputs)


def unexpanded(node: Node) -> Node:
    """A tensor before it is broadcast."""
    while isinstance(node, Wire) and node.operator == "expand":
        node = node.inputs[0]
    return node


def source(node: Node) -> Node:
    """A tensor before wires and constant scales moved and scaled it."""
    while isinstance(node, (Wire, Diagonal)) and len(node.carriers) == 1:
        node = node.carriers[0]
    return node


def literal_scale(node: Node) -> float | None:
    """The number that a diagonal multiplies its operand by; None where it is none, or adds something."""
    if not isinstance(node, Diagonal) or node.offset is not None:
        return None
    number = next((a for a in node.args if isinstance(a, (int, float))), None)
    return None if number is None else 1 / number if node.operator in ("div", "true_divide") else float(number)


def unscaled(node: Node) -> tuple[Node, float, list[Any]]:
    """A tensor before it was reshaped, scaled and shifted, the number it was scaled by, and the other constants."""
    times, gains = 1.0, list[Any]()
    while True:
        if isinstance(node, Wire) and node.operator in operators.SHAPES and len(node.inputs) == 1:
            node = node.inputs[0]
        elif isinstance(node, Diagonal) and node.scale is None:
            node = node.operand
        elif (number := literal_scale(node)) is not None:
            times, node = times * number, node.inputs[0]
        elif isinstance(node, Diagonal) and node.offset is None:
            gains += [a for a in node.args if a is not node.operand]
            node = node.operand
        else:
            return node, times, gains


def mean_of(node: Node, x: Node) -> float | None:
    """Where a value is the mean of a tensor times a number, that number.

    Of a sum that is divided by a constant tensor, such as the number of elements that count, only the sign is known.
    """
    mean, times, gains = unscaled(node)
    if not isinstance(mean, Mix) or mean.operator not in operators.REDUCTIONS or mean.count is None:
        return None
    operand, its, own = unscaled(mean.operand)
    other, mine, gain = unscaled(x)
    if operand is not other or mine == 0:
        return None
    share = times * its / mine * (mean.count if mean.operator == "sum" else 1)
    return share if not gains and own == gain else math.copysign(1, share)


def centred(node: Node) -> tuple[Node, Node] | None:
    """`x` and its mean, where a node is `x − mean`: a sum one of whose terms is minus the mean of the other (S3b)."""
    if not isinstance(node, Sum):
        return None
    for x, mean in (node.inputs, node.inputs[::-1]):
        share = mean_of(mean, x)
        if share is not None and math.isclose(share, -1):
            return x, mean
    return None


def summarises(statistic: Node, x: Node) -> bool:
    """Whether a statistic summarises a tensor: through its reductions it depends on `x` or on `x − mean` alone."""
    if isinstance(statistic, Mix):
        return source(x) in _summarised(statistic.operand)
    return bool(statistic.inputs) and all(summarises(node, x) for node in statistic.inputs)


def _summarised(node: Node) -> list[Node]:
    """What a reduction may be said to be taken of: its operand, and what that is a power or deviation of."""
    found = [source(node)]
    while True:
        node = found[-1]
        pair = centred(node)
        if pair is not None:
            node = pair[0]
        elif isinstance(node, Gate) or (isinstance(node, Norm) and node.statistic is None and not node.centres):
            node = node.operand
        else:
            return found
        found.append(source(node))


_POWERS = {
    "square": 2.0,
    "sqrt": 0.5,
    "rsqrt": -0.5,
    "reciprocal": -1.0,
    **dict.fromkeys("abs clamp clamp_min clamp_max maximum mean sum".split(), 1.0),
    **dict.fromkeys(operators.REDUCTIONS, 1.0),
}


def growth(node: Node) -> float | None:
    """With which power of a sample's size a statistic grows: −1 for the inverse deviation; None where it is unclear."""
    if isinstance(node, (Wire, Diagonal)):  # broadcast; `+ eps`; a constant factor
        return growth(node.inputs[0])
    if node.operator == "mul" and len(set(node.inputs)) == 1:
        factor: float | None = 2.0
    elif node.operator == "pow" and isinstance(node.args[1], (int, float)):
        factor = float(node.args[1])
    else:
        factor = _POWERS.get(node.operator)
    if factor is None:
        return None if is_statistic(node) else 1.0  # the sample itself
    below = growth(node.inputs[0])
    return None if below is None else factor * below


def sums_up(node: Node) -> bool:
    """Whether a statistic rests on a sum over the sample, not on a mean."""
    return node.operator == "sum" or (is_statistic(node) and any(sums_up(n) for n in node.inputs))
