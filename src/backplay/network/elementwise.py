"""Normal forms of elementwise sub-graphs (S3): composite gates and detached statistics."""

from __future__ import annotations

from backplay.network.nodes import Diagonal, Gate, Mix, Node, Norm, Oracle, Product, Sum, Wire

# operators that summarise a sample: what depends on live values only through them is a statistic
REDUCTIONS = frozenset(
    "mean sum var std var_mean std_mean norm linalg_vector_norm linalg_norm amax amin max adaptive_avg_pool2d".split()
)

UNARY = frozenset("pow rsqrt sqrt clamp clamp_min clamp_max reciprocal exp square abs neg".split())


def is_statistic(node: Node) -> bool:
    """Whether a node depends on live values only through reductions, by elementwise steps (S3b)."""
    if node.operator in REDUCTIONS and isinstance(node, (Mix, Oracle)):
        return True
    steps = isinstance(node, (Gate, Diagonal, Product, Sum, Norm, Wire)) or node.operator in UNARY
    return steps and bool(node.inputs) and all(is_statistic(n) for n in node.inputs)


def holds_oracle(node: Node) -> bool:
    """Whether a statistic rests on a reduction that carries no mass, such as a norm or a variance."""
    return isinstance(node, Oracle) or (not isinstance(node, Mix) and any(holds_oracle(n) for n in node.inputs))


def unexpanded(node: Node) -> Node:
    """A tensor before it is broadcast."""
    while isinstance(node, Wire) and node.operator == "expand":
        node = node.inputs[0]
    return node


_POWERS = {
    "square": 2.0,
    "sqrt": 0.5,
    "rsqrt": -0.5,
    "reciprocal": -1.0,
    "std": 1.0,
    "var": 2.0,
    **dict.fromkeys("abs clamp clamp_min clamp_max maximum mean sum norm linalg_vector_norm".split(), 1.0),
}
_SUMS = frozenset({"sum", "norm", "linalg_vector_norm"})


def growth(node: Node) -> float | None:
    """With which power of a sample's size a statistic grows: −1 for the inverse deviation; None where it is unclear."""
    if isinstance(node, Wire) or (isinstance(node, Diagonal) and node.scale is None):  # broadcast; `+ eps`
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
    return node.operator in _SUMS or (is_statistic(node) and any(sums_up(n) for n in node.inputs))


def ancestors(node: Node) -> list[Node]:
    """The tensors that a value is an elementwise function of, nearest first; found once for each node."""
    if node.ancestry is None:
        node.ancestry = _climb(node)
    return node.ancestry


def _climb(node: Node) -> list[Node]:
    chain = [node]
    while True:
        node = chain[-1]
        if isinstance(node, Gate) or (isinstance(node, Diagonal) and scalar(node)):
            chain.append(node.operand)
        elif isinstance(node, (Sum, Product)) and (common := common_ancestor(*node.inputs[:2])) is not None:
            chain.append(common)
        elif node.operator in UNARY and len(node.inputs) == 1:
            chain.append(node.inputs[0])
        else:
            return chain


def scalar(node: Diagonal) -> bool:
    """Whether a diagonal acts alike on all elements: its constants are numbers."""
    return all(isinstance(a, (int, float, Node)) for a in node.args)


def common_ancestor(left: Node, right: Node) -> Node | None:
    """The nearest tensor that both are elementwise functions of."""
    others = set(ancestors(right))
    return next((n for n in ancestors(left) if n in others), None)
