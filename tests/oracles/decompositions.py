"""Non-negative pairs at every node, node by node from the paper's formulas (S10).

`decompose` returns for every node a pair of arrays (plus, minus). The canonical non-negative map is eq:split-pos and
eq:split-neg; the three decomposition functions are eq:stop-relu, eq:dc-relu and eq:softplus-decomp.
"""

import numpy as np

from . import gates


def positive(a):
    """a⁺."""
    return np.maximum(a, 0.0)


def negative(a):
    """a⁻, non-negative."""
    return np.maximum(-a, 0.0)


def split_affine(weight, bias, plus, minus):
    """eq:split-pos, eq:split-neg."""
    up, down = positive(weight), negative(weight)
    return up @ plus + down @ minus + positive(bias), up @ minus + down @ plus + negative(bias)


def stopping_gate(name, plus, minus):
    """eq:stop-relu and its like: both streams times c(z); what is missing to the value joins the stream of its sign."""
    z = plus - minus
    c = gates.passing(name, z, "stopping")
    if np.any(c < 0):
        raise ValueError("no decreasing gates here")
    rest = gates.value(name, z) - c * z
    if name in ("relu", *gates.SELF_GATED):
        rest = np.zeros_like(z)
    return c * plus + positive(rest), c * minus + negative(rest)


def mixing_gate(eta, plus, minus):
    """eq:dc-relu."""
    up = eta * np.maximum(plus, minus) + (1 - eta) * plus
    down = eta * minus + (1 - eta) * np.minimum(plus, minus)
    return up, down


def softplus_gate(theta, plus, minus):
    """eq:softplus-decomp: the Gibbs weight on both streams, its entropy on the + stream."""
    p = gates.sigmoid((plus - minus) / theta)
    t = np.abs(plus - minus) / theta  # the entropy is even in z, and this form keeps its digits on both sides
    entropy = np.log1p(np.exp(-t)) + t * gates.sigmoid(-t)
    return p * plus + theta * entropy, p * minus


def decompose(nodes, x, kind="stopping", eta=1.0, theta=1.0):
    """(plus, minus) at every node (None for a folded convolution)."""
    pairs = []
    for node in nodes:
        operands = [pairs[i] for i in node.inputs]
        pairs.append(None if node.kind == "folded" else _pair(node, operands, x, kind, eta, theta))
    return pairs


def _pair(node, operands, x, kind, eta, theta):
    data = node.data
    if node.kind == "input":
        return positive(np.asarray(x, dtype=float)), negative(np.asarray(x, dtype=float))
    if node.kind in ("affine", "mix"):
        return split_affine(data["weight"], data.get("bias", np.zeros(node.size)), *operands[0])
    if node.kind == "diagonal":
        return split_affine(np.diag(data["scale"]), data["shift"], *operands[0])
    if node.kind == "gate":
        return _gate(data["name"], *operands[0], kind, eta, theta)
    if node.kind == "sum":
        pairs = [pair if sign > 0 else pair[::-1] for pair, sign in zip(operands, data["signs"], strict=True)]
        return pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]
    if node.kind == "max":
        return _winner(data["groups"], operands)
    if node.kind == "wire":
        return tuple(np.array([_wired(s, operands, data, sign) for s in data["sources"]]) for sign in (0, 1))
    raise KeyError(node.kind)


def _gate(name, plus, minus, kind, eta, theta):
    if kind == "stopping":
        return stopping_gate(name, plus, minus)
    if name != "relu":
        raise ValueError(f"{kind} speaks of ReLU networks")
    return mixing_gate(eta, plus, minus) if kind == "mixing" else softplus_gate(theta, plus, minus)


def _winner(groups, operands):
    plus, minus = [], []
    for group in groups:
        best = max(operands[k][0][i] - operands[k][1][i] for k, i in group)
        k, i = next((k, i) for k, i in group if operands[k][0][i] - operands[k][1][i] == best)
        plus.append(operands[k][0][i])
        minus.append(operands[k][1][i])
    return np.array(plus), np.array(minus)


def _wired(source, operands, data, sign):
    if source is None:
        return 0.0
    where, index = source
    if where == "constant":
        return (positive, negative)[sign](data["constant"][index])
    return operands[where][sign][index]
