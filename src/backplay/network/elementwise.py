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
