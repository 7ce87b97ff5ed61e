"""Each kernel of a single layer in dense matrix form, written the way the rule stands in the paper.

A kernel is a pair of matrices (kept, switched) of shape (out, in): how much mass at an output element goes to an input
element with the player kept, and with the player switched. `kept - switched` moves the difference Γ₊ − Γ₋,
`kept + switched` the sum. The walk's kernel has every discount 1 and needs one matrix only.
"""

import numpy as np

from . import gates


def positive(a):
    """a⁺."""
    return np.maximum(a, 0.0)


def negative(a):
    """a⁻, non-negative."""
    return np.maximum(-a, 0.0)


def ratio(numerator, denominator):
    """numerator / denominator with 0/0 = 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


# Stopping Game --------------------------------------------------------------------------------------------------------
def stopping_linear(weight):
    """eq:adf-kernel times its discount γ: W⁺ keeps the player, W⁻ switches (S6)."""
    return positive(weight), negative(weight)


def stopping_linear_walk(weight):
    """|W| / γ."""
    return ratio(np.abs(weight), np.abs(weight).sum(1, keepdims=True) + np.zeros_like(weight))


def stopping_gate(name, z):
    """The derivative, or c(z) (S8), on the diagonal."""
    factor = gates.passing(name, z, "stopping")
    return stopping_linear(np.diag(factor))


def stopping_gate_walk(name, z):
    """Probability min(|g|, 1)."""
    return np.diag(np.minimum(np.abs(gates.passing(name, z, "stopping")), 1.0))


def stopping_diagonal(scale):
    """Discount |scale|, player switched where the scale is negative (S7)."""
    return stopping_linear(np.diag(scale))


def stopping_diagonal_walk(scale):
    """The single predecessor; scale 0 → †."""
    return np.diag((np.asarray(scale) != 0).astype(float))


# Routing Game ---------------------------------------------------------------------------------------------------------
def stream_policy(weight, a, bias, sign, epsilon, tau, absorb):
    """π_σ(i|j), eq:lrp-eps-policy with temperature (S13), bias in the denominator if it is absorbed (S15)."""
    part = positive if sign > 0 else negative
    scores = _power(part(weight * a), tau)
    rest = _power(np.array(epsilon), tau)
    if absorb:
        rest = rest + _power(part(bias), tau)[:, None]
    return ratio(scores, np.broadcast_to(scores.sum(1, keepdims=True) + rest, scores.shape))


def _power(a, tau):
    return np.where(a > 0, np.where(a > 0, a, 1.0) ** (1.0 / tau), 0.0)


def routing_linear(
    weight, a, bias, alpha=2.0, beta=1.0, epsilon=0.5, tau=1.0, bias_mode="ignore", empty_stream="cemetery"
):
    """eq:lrp-eps-recursion in its two streams: α π₊ keeps the player, β π₋ switches

    The recursion for each player is eq:routing-per-state-recursion.
    """
    up, down, lone_up, lone_down = _streams(weight, a, bias, epsilon, tau, bias_mode, empty_stream)
    kept, switched = alpha * up, beta * down
    kept = np.where(lone_up, (alpha - beta) * up, kept)
    kept = np.where(lone_down, (alpha - beta) * down, kept)
    return kept, np.where(lone_down, 0.0, switched)


def routing_linear_walk(
    weight, a, bias, alpha=2.0, beta=1.0, epsilon=0.5, tau=1.0, bias_mode="ignore", empty_stream="cemetery"
):
    """The sign oracle takes each stream with probability 1/2; a rerouted stream has probability 1 (S16)."""
    up, down, lone_up, lone_down = _streams(weight, a, bias, epsilon, tau, bias_mode, empty_stream)
    return 0.5 * (up + down) * np.where(lone_up | lone_down, 2.0, 1.0)


def _streams(weight, a, bias, epsilon, tau, bias_mode, empty_stream):
    """Both policies, and the rows whose only non-empty stream takes everything."""
    policies = [stream_policy(weight, a, bias, s, epsilon, tau, bias_mode == "absorb") for s in (1, -1)]
    full = [policy.any(1, keepdims=True) for policy in policies]
    reroute = empty_stream == "reroute"
    return *policies, reroute & full[0] & ~full[1], reroute & full[1] & ~full[0]


def routing_mix(weight, a, tau=1.0):
    """One stream, no oracle, no outside option (S18)."""
    scores = _power(weight * a, tau)
    return ratio(scores, np.broadcast_to(scores.sum(1, keepdims=True), scores.shape))


def routing_gate(name, z):
    """Mass times c(z), or 1 where the value is not 0 (S8, S17)."""
    return np.diag(gates.passing(name, z, "routing"))


# both games -----------------------------------------------------------------------------------------------------------
def winner(groups, a):
    """The winner of smallest index (S7)."""
    matrix = np.zeros((len(groups), len(a)))
    for row, group in enumerate(groups):
        matrix[row, group[int(np.argmax(a[group]))]] = 1.0
    return matrix


def lrp(layers, x, target, alpha=2.0, beta=1.0, epsilon=0.0):
    """αβ-LRP-ε of a ReLU network `[(W, b), …]` whose last layer has no ReLU: relevance at every layer.

    eq:lrp-eps-recursion written with loops over neurons; R at the output is the target logit.
    """
    activations, last = [np.asarray(x, dtype=float)], len(layers) - 1
    for n, (weight, bias) in enumerate(layers):
        z = weight @ activations[-1] + bias
        activations.append(z if n == last else np.maximum(z, 0.0))
    relevance = np.zeros(len(activations[-1]))
    relevance[target] = activations[-1][target]
    found = [relevance]
    for (weight, _), a in zip(reversed(layers), reversed(activations[:-1]), strict=True):
        relevance = _lrp_step(weight, a, relevance, alpha, beta, epsilon)
        found.insert(0, relevance)
    return found


def _lrp_step(weight, a, relevance, alpha, beta, epsilon):
    lower = np.zeros(len(a))
    for j, row in enumerate(weight):
        up = sum(max(w * v, 0.0) for w, v in zip(row, a, strict=True))
        down = sum(max(-w * v, 0.0) for w, v in zip(row, a, strict=True))
        for i, (w, v) in enumerate(zip(row, a, strict=True)):
            c = w * v
            if c > 0:
                lower[i] += alpha * c / (epsilon + up) * relevance[j]
            elif c < 0:
                lower[i] -= beta * -c / (epsilon + down) * relevance[j]
    return lower
