"""Walks of games in their modes: what players know, see and do is worked out here in numpy, by S8 and S19-S24.

For networks of affine nodes, ReLUs, sums, wires and, in `Averse`, one attention block.
"""

import copy
import math

import numpy as np

from . import gates
from .attention import FEATURES, HEADS, INNER, RoutingWalk, softmax
from .dag import _value
from .walks import Routing, Stopping, cemetery

cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2.0)), otypes=[float])


def relu_moments(mean, variance):
    """gast2018lightweight: mean and variance of ReLU(X), X ~ N(mean, variance)."""
    deviation = np.sqrt(variance)
    ratio = mean / deviation
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    first = mean * cdf(ratio) + deviation * density
    second = (mean**2 + variance) * cdf(ratio) + mean * deviation * density
    return first, np.maximum(second - first**2, 0.0)


def fan_in_entropy(weight):
    """H̃ of each row, over a fan-in of all columns (app:entropy-mode)."""
    found = []
    for row in np.abs(weight):
        p = row[row > 0] / row.sum()
        found.append(-(p * np.log(p)).sum() / math.log(len(row)))
    return np.array(found)


class Known:
    """Values, variances and what gates show, node by node, for one flat sample."""

    def __init__(self, nodes, x, modes):
        self.nodes, self.modes = nodes, modes
        self.values, self.variances, self.shown, self.open = [], [], [], []
        for node in nodes:
            operands = [self.values[i] for i in node.inputs]
            value = self.forward(node, operands, x)
            self.variances.append(self.variance(node, value))
            self.values.append(value)
            self.shown.append(value)
            self.open.append(None)
            if node.kind == "gate":
                self.gate(node, operands[0])
            elif node.kind in ("sum", "wire"):  # they hand on what they see below (S20)
                self.shown[-1] = _value(node, [self.shown[i] for i in node.inputs], x)

    def forward(self, node, operands, x):
        m = self.modes
        if node.kind == "affine" and m.get("tau_forward"):
            return self.tempered(node, operands[0])
        if node.kind == "gate" and m.get("softplus"):
            return gates.softplus(operands[0], m["softplus"])
        return _value(node, operands, x)

    def tempered(self, node, a):
        """S19: the soft values of both streams."""
        tau, epsilon = self.modes["tau"], self.modes["epsilon"]
        c = node.data["weight"] * a
        soft = [(epsilon ** (1 / tau) + (np.maximum(s * c, 0) ** (1 / tau)).sum(1)) ** tau for s in (1, -1)]
        return soft[0] - soft[1] + node.data["bias"]

    def variance(self, node, value):
        """S22, with the real pre-activations as means."""
        below = [self.variances[i] for i in node.inputs]
        if node.kind == "input":
            return np.full(len(value), self.modes.get("input_variance", 0.0))
        if node.kind == "affine":
            return node.data["weight"] ** 2 @ below[0]
        if node.kind == "gate":
            z = self.values[node.inputs[0]]
            return relu_moments(z, below[0])[1] if below[0].all() else 0 * z
        if node.kind == "wire":  # constants are certain
            return np.array([0.0 if k == "constant" else below[k][i] for k, i in node.data["sources"]])
        return below[0] + below[1]

    def gate(self, node, z):
        """S20, S21: what the gate shows and how open it is; with `forward`, what it shows is what is computed on."""
        m, n = self.modes, node.inputs[0]
        risk = m.get("risk", 0.0)
        biased = z - m.get("entropy_bias", 0.0) * (
            fan_in_entropy(self.nodes[n].data["weight"]) if m.get("entropy_bias") else 0
        )
        self.open[-1] = (biased > 0).astype(float)
        self.shown[-1] = self.values[-1] if "softplus" in m else np.maximum(biased, 0)
        if risk:
            first, second = relu_moments(biased, self.variances[n])
            self.shown[-1] = np.maximum(0.0, first + risk * np.sqrt(second))
            self.open[-1] = (self.shown[-1] > 0).astype(float)
        if m.get("gate") == "noisy":
            self.open[-1] = cdf((biased + risk * np.sqrt(self.variances[n])) / m["gate_noise"])
        if "softplus" in m:
            self.open[-1] = gates.sigmoid(z / m["softplus"])
        if m.get("forward"):
            self.values[-1] = self.shown[-1]


class Moded:
    """Mixed into a walk: players see `shown`, gates are `open`."""

    def see(self, known):
        self.known = known
        return self

    def operand(self, node, k=0):
        return self.known.shown[node.inputs[k]]

    def gate(self, node, state):
        n, j, player = state
        c = float(self.known.open[n][j])
        return [((node.inputs[0], j, player), c, 1.0), (cemetery("gate"), 1.0 - c, 1.0)]


class ModedRouting(Moded, Routing):
    """The Routing Game in a mode."""


class ModedStopping(Moded, Stopping):
    """The Stopping Game in a mode."""


PLAIN = ("alpha", "beta", "epsilon", "tau", "residual", "bias", "empty_stream")


def routing(nodes, x, options):
    """The walk of `RoutingGame(**options)` on one flat sample."""
    plain = {k: v for k, v in options.items() if k in PLAIN}
    known = Known(nodes, x, {"forward": options.get("risk_forward"), "tau": 1.0, "epsilon": 0.5, **options})
    return ModedRouting(nodes, known.values, **plain).see(known)


def stopping(nodes, x, options):
    """The walk of `StoppingGame(**options)`; with risk it always computes on what gates show (S20)."""
    known = Known(nodes, x, {**options, "forward": bool(options.get("risk"))})
    return ModedStopping(nodes, known.values).see(known)


# attention ------------------------------------------------------------------------------------------------------------
def averse(block, sample, options):
    """The walk of `RoutingGame(attention_risk=λ_sm, attention_score="key", input_variance=σ², …)` on a described block.

    S24: the oracle's logits become e + λ_sm ŝ, ŝ the root mean variance of a key over its head's features.
    """
    state = {k: v.detach().numpy() for k, v in block.state_dict().items()}
    form, length = block.form, block.form.length
    variance = options["input_variance"] * (state["embed.weight"] ** 2).sum(1)
    variance = np.tile(variance, (length, 1))
    if form.class_token:
        variance[0] = 0.0
    before = sample.grid(sample.paths["position"])
    spread = before.var(1, keepdims=True) + 1e-5 + variance.mean(1, keepdims=True)
    variance = variance * state["norm1.weight"] ** 2 / spread
    score = np.sqrt((variance @ state["k.weight"].T ** 2).reshape(length, HEADS, FEATURES).mean(2))  # (keys, heads)
    weights = softmax(np.log(sample.weights) + options["attention_risk"] * score.T[:, None, :])
    nodes = copy.deepcopy(sample.nodes)
    matrix = nodes[sample.paths["attend"]].data["weight"]
    for h in range(HEADS):
        for d in range(FEATURES):
            places = np.arange(length) * INNER + h * FEATURES + d
            matrix[np.ix_(places, places)] = weights[h]
    return RoutingWalk(nodes, sample.values, **{k: v for k, v in options.items() if k in PLAIN})
