"""Risk-averse attention (S24, app:risk-attn): the oracle's logits become `e + λ_sm ŝ`, backward only."""

import math

import numpy as np
import pytest
import torch

import backplay as bp
import hand
from alike import alike
from closeness import assert_near

pytestmark = pytest.mark.usefixtures("without_gradients")

VARIANCE, RISK = 0.5, -3.0


def by_hand(model, x, score, risk=RISK, epsilon=0.2, tau=1.0):
    """The map of target 1 on one sample, and the averse reference policy (heads, queries, keys)."""
    z, v = model.embed(x), VARIANCE * model.embed.weight.square().sum(1).expand(3, 4)
    v = torch.tensor(hand.relu_moments(hand.numbers(z), hand.numbers(v))[1])
    h = torch.relu(z)

    def heads(t):
        return t.unflatten(-1, (2, 2)).transpose(0, 1)

    q, k = heads(model.q(h)), heads(model.k(h))
    var_q, var_k = heads(v @ model.q.weight.square().T), heads(v @ model.k.weight.square().T)
    s = torch.zeros(2, 3, 3, dtype=torch.float64)
    for n in range(2):
        for i in range(3):
            for j in range(3):
                if score == "logit":
                    total = sum(q[n, i, d] ** 2 * var_k[n, j, d] + k[n, j, d] ** 2 * var_q[n, i, d] for d in range(2))
                    s[n, i, j] = total.sqrt() / math.sqrt(2)
                else:
                    s[n, i, j] = var_k[n, j].mean().sqrt()
                    if score == "relative":
                        s[n, i, j] /= k[n, j].square().mean().sqrt()
    e = q @ k.mT / math.sqrt(2)
    real, averse = torch.softmax(e, -1), torch.softmax(e + risk * s, -1)
    o = (real @ heads(model.v(h))).transpose(0, 1).flatten(1)
    above = model.proj(o).flatten()
    mass = hand.route(hand.unit(3, 1), hand.numbers(model.head.weight), hand.numbers(above), epsilon, tau)
    mass = np.stack(
        [
            hand.route(row, hand.numbers(model.proj.weight), hand.numbers(value), epsilon, tau)
            for row, value in zip(mass.reshape(3, 4), o, strict=True)
        ]
    )
    below = np.zeros((3, 4))
    for n in range(2):
        for i in range(3):
            for d in range(2):
                weight = hand.numbers(model.v.weight)[2 * n + d]
                c = hand.numbers(h) * weight  # (key, input)
                for sign, factor in ((1, 2.0), (-1, -1.0)):
                    part = np.maximum(sign * c, 0)
                    keys = (hand.numbers(averse)[n, i] * part.sum(1)) ** (1 / tau)
                    inputs = part ** (1 / tau)
                    total = inputs.sum(1, keepdims=True)
                    inputs = np.where(total > 0, inputs / np.where(total > 0, total, 1), 0)
                    keys = keys / (epsilon ** (1 / tau) + keys.sum())
                    below += mass[i, 2 * n + d] * factor * keys[:, None] * inputs
    below = below * hand.numbers(z > 0)
    found = [
        hand.route(row, hand.numbers(model.embed.weight), hand.numbers(value), epsilon, tau)
        for row, value in zip(below, x, strict=True)
    ]
    return np.stack(found) * float(model.head(above)[1]), averse, real


@pytest.mark.parametrize("score", ["key", "relative", "logit"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_scores(score, fused, tau):
    """S24: three scores by hand, fused and spelled out, map included; the forward pass stays real."""
    model, x = hand.attention(fused), torch.randn(2, 3, 3, dtype=torch.float64)
    game = bp.RoutingGame(alike(model, x), epsilon=0.2, tau=tau, input_variance=VARIANCE, attention_score=score)
    play = game.replace(attention_risk=RISK).play(x, 1)
    assert_near(play.value, model(x)[:, 1])
    plain = game.attribute(x, 1)
    for b in range(2):
        expected, averse, real = by_hand(model, x[b], score, tau=tau)
        assert (averse - real).abs().max() > 0.05
        assert_near(play.attribution()[b], expected, 1e-9)
        assert_near(plain[b], by_hand(model, x[b], score, risk=0.0, tau=tau)[0], 1e-9)


@pytest.mark.parametrize("fused", [True, False])
def test_key_policy(fused):
    """eq:risk-attn-policy-softmax: the key policy at a query is `Ã_qk ṽ_k / Σ` with the averse row."""
    model, x = hand.attention(fused), torch.randn(1, 3, 3, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), epsilon=0.0, input_variance=VARIANCE, attention_risk=RISK).play(x, 1)
    (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
    _, averse, _ = by_hand(model, x[0], "key")
    worth = (torch.relu(model.embed(x[0])) * model.v.weight[3]).clamp(min=0).sum(1)
    (moved,) = play.policy(node.name, (0, 1, 0, 1)).values()
    assert_near(2 * moved[0][0].sum(-1), averse[1, 0] * worth / (averse[1, 0] * worth).sum(), 1e-9)


def test_no_variance_no_shift():
    """S24: scores are deviations, so σ² = 0 is the plain game; and λ alone leaves the oracle as it is."""
    model, x = hand.attention(), torch.randn(2, 3, 3, dtype=torch.float64)
    game = bp.RoutingGame(alike(model, x))
    with pytest.warns(UserWarning, match="idle while input_variance is 0"):
        idle = game.replace(attention_risk=-10.0)
    assert_near(idle.attribute(x, 1), game.attribute(x, 1))
    play = game.replace(attention_risk=-10.0, input_variance=0.5).play(x, 1)
    assert_near(play.observed("relu"), game.play(x, 1).observed("relu"), 1e-13)  # S20: λ = 0 gates are real


def test_masked_keys_stay_masked():
    """S24: a shift of finite size opens no key that a mask has closed."""

    class Causal(hand.Attention):
        def forward(self, x):
            h = self.relu(self.embed(x))
            q, k, v = (self.split(f(h)) for f in (self.q, self.k, self.v))
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.head(self.proj(o.transpose(1, 2).flatten(2)).flatten(1))

    model, x = Causal(True).double().eval(), torch.rand(1, 3, 3, dtype=torch.float64)
    model.embed.bias.add_(1.0)
    play = bp.RoutingGame(alike(model, x), attention_risk=-30.0, input_variance=1.0, epsilon=0.0).play(x, 0)
    (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
    (moved,) = play.policy(node.name, (0, 0, 1, 0)).values()
    keys = (moved[0] + moved[1])[0].sum(-1)
    assert keys[2].abs() < 1e-15 and (keys[:2] > 0).any()


@pytest.mark.parametrize("score", ["key", "relative", "logit"])
def test_grouped_heads(score):
    """S24: heads of keys that the fused operator repeats are averse as repeated ones are."""

    class Grouped(hand.Attention):
        repeated = False

        def forward(self, x):
            h = self.relu(self.embed(x))
            q = self.split(self.q(h))
            k, v = (self.split(f(h))[:, :1] for f in (self.k, self.v))
            if self.repeated:
                k, v = (t.repeat_interleave(2, 1) for t in (k, v))
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=not self.repeated)
            return self.head(self.proj(o.transpose(1, 2).flatten(2)).flatten(1))

    model, x = Grouped(True).double().eval(), torch.randn(2, 3, 3, dtype=torch.float64)
    options = {"input_variance": VARIANCE, "attention_score": score}
    found = bp.RoutingGame(alike(model, x), attention_risk=RISK, **options).attribute(x, 1)
    plain = bp.RoutingGame(alike(model, x), **options).attribute(x, 1)
    model.repeated = True
    assert_near(found, bp.RoutingGame(alike(model, x), attention_risk=RISK, **options).attribute(x, 1))
    assert (found - plain).abs().max() > 1e-3 * plain.abs().max()
