"""Normal forms of elementwise sub-graphs (S3a, S3b): what a value is a function of, and what that function is like.

An elementwise function that is spelled out in several operators shows what it is on a grid of numbers in place of its
operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network.choices import Max
from backplay.network.nodes import Diagonal, Gate, Node, Product, Scope, Sum, rerun
from backplay.network.wires import Wire

_CLOSE = 1e-6  # of two functions on the grid
_AXES = 8

# ---------------------------------------------------------------- what a value is a function of


def ancestors(node: Node) -> list[Node]:
    """The tensors that a value is an elementwise function of, nearest first, itself included; kept at the node."""
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
    pointwise = isinstance(node, (Gate, Diagonal, Sum, Product)) or node.facts.pointwise
    if not pointwise and not (isinstance(node, Max) and node.winner is None):
        return None
    return common_ancestor(*dict.fromkeys(node.inputs))


def is_copy(node: Node) -> bool:
    """Whether a node is its operand under another name, as in-place operators on a copy leave behind (S3)."""
    return isinstance(node, Wire) and node.facts.copies


def common_ancestor(*nodes: Node) -> Node | None:
    """The nearest tensor that all of these are elementwise functions of."""
    if not nodes:
        return None
    first, *rest = nodes
    others = [set(ancestors(node)) for node in rest]
    return next((n for n in ancestors(first) if all(n in known for known in others)), None)


def between(node: Node, operand: Node) -> list[Node]:
    """The nodes of an elementwise function from its operand on, the operand left out."""
    inside: dict[Node, None] = {node: None}
    waiting = [node]
    while waiting:
        for below in waiting.pop().inputs:
            if below is not operand and below not in inside:
                inside[below] = None
                waiting.append(below)
    return list(inside)


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


def multiplier(node: Gate, z: Tensor, scope: Scope) -> Tensor:
    """`h(z)` of a composite gate `z · h(z)`, without the constants behind it."""
    assert node.factors is not None
    return product_of(node.factors, {node.operand: z}, scope).to(z.dtype)


def product_of(parts: tuple[Any, ...], changed: dict[Node, Tensor], scope: Scope) -> Tensor:
    """The product of functions of changed tensors, and of constants."""
    product: Tensor = torch.ones((), dtype=torch.float64)
    for part in parts:
        product = product * (rerun(part, changed, scope) if isinstance(part, Node) else part(scope))
    return product


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
