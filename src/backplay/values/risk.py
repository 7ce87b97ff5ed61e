"""Risk (S20, S24): lower-confidence values at gates and uncertain keys at oracles."""

from __future__ import annotations

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.network.attention import Attention
from backplay.network.nodes import Gate, rerun
from backplay.values.forward import Values
from backplay.values.moments import Moment, Moments


def lower_confidence(gate: Gate, moment: Moment, risk: float) -> Tensor:
    """`V_λ = μ_a + λ σ_a`, cut at 0 for gates with range ≥ 0 (app:adf-variance)."""
    value = moment.variance.sqrt().mul_(risk).add_(moment.mean)
    return value.clamp_(min=0) if gate.nonnegative else value


def averse_weights(node: Attention, values: Values, moments: Moments, risk: float, score: str) -> Tensor:
    """The softmax of `e_qk + λ_sm ŝ` (eq:risk-attn-policy, eq:risk-attn-policy-softmax); backward only."""
    scores = node.scores
    if scores is None:
        raise UnsupportedError(
            f"attention_risk needs the queries and keys of {node.name!r}, which are not found behind its softmax."
        )
    shift = risk * _uncertainty(node, values, moments, score)
    if scores.product is None:
        assert node.logits is not None
        return torch.softmax(node.logits(values) + shift, -1).nan_to_num(0.0)
    assert node.weights_node is not None
    product = values[scores.product]
    return rerun(node.weights_node, {scores.product: product + shift / scores.factor(values).to(product.dtype)}, values)


def _uncertainty(node: Attention, values: Values, moments: Moments, score: str) -> Tensor:
    """`ŝ_qk`: deviation of the key, of the key relative to its size, or of the logit itself."""
    scores = node.scores
    assert scores is not None
    key, spread = values[scores.key], moments.variance(scores.key)
    if score == "logit":
        query, query_spread = values[scores.query], moments.variance(scores.query)
        variance = scores.raw(query.square(), spread) + scores.raw(query_spread, key.square())
        return variance.sqrt() * scores.factor(values).abs().to(variance.dtype)
    # the mean over a key's features, the same for every query: its product with queries of equal entries
    even = torch.ones_like(values[scores.query])
    features = scores.raw(even, torch.ones_like(key))
    deviation = (scores.raw(even, spread) / features).sqrt()
    if score == "relative":
        size = (scores.raw(even, key.square()) / features).sqrt()
        deviation = torch.where(size > 0, deviation / size, 0)
    return deviation
