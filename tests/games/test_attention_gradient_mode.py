"""`attention="gradient"` (S25, app:abl-gradient-fallback): through autograd of the block, all around it by the game."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from closeness import array, assert_near
from oracles.matrices import negative, positive, ratio

F64 = torch.float64
TOKENS, WIDTH, INNER = 3, 4, 4


class Net(nn.Module):
    """Embedding, attention with an output projection, residual sum, head; fused, spelled out or packed."""

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.embed, self.out = nn.Linear(2, WIDTH), nn.Linear(INNER, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * INNER)
        self.q, self.k, self.v = (nn.Linear(WIDTH, INNER) for _ in range(3))
        self.head = nn.Linear(TOKENS * WIDTH, 3)
        self.double().eval()

    def block(self, x):
        """From the projections' common input to O before the output projection."""
        parts = self.qkv(x).chunk(3, -1) if self.spelling == "packed" else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in parts)
        if self.spelling == "fused":
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-2, -1) * 2**-0.5).softmax(-1) @ v
        return y.transpose(1, 2).flatten(2)

    def forward(self, x):
        x = self.embed(x)
        return self.head((x + self.out(self.block(x))).flatten(1))


def alpha_beta(weight, a, relevance, alpha, beta, epsilon):
    """eq:lrp-eps-recursion of one dense layer."""
    c = weight * a
    up, down = positive(c), negative(c)
    kernel = alpha * ratio(up, up.sum(1, keepdims=True) + epsilon + np.zeros_like(up))
    kernel -= beta * ratio(down, down.sum(1, keepdims=True) + epsilon + np.zeros_like(up))
    return kernel.T @ relevance


def expected_map(model, x, target, alpha, beta, epsilon):
    """One sample, layer by layer."""
    tokens = model.embed(x[None]).detach()
    leaf = tokens.clone().requires_grad_()
    mixed = model.block(leaf)
    after = tokens + model.out(mixed)
    logits = model.head(after.flatten(1))
    relevance = np.zeros(3)
    relevance[target] = float(logits[0, target].detach())
    rule = (alpha, beta, epsilon)
    at_sum = alpha_beta(array(model.head.weight), array(after).reshape(-1), relevance, *rule) / 2
    at_sum = at_sum.reshape(TOKENS, WIDTH)
    at_mixed = np.stack(
        [alpha_beta(array(model.out.weight), array(mixed[0, t]), at_sum[t], *rule) for t in range(TOKENS)]
    )
    sent = torch.as_tensor(at_mixed) / (mixed[0] + mixed[0].sign() * 1e-6).detach()
    (slope,) = torch.autograd.grad((mixed[0] * sent).sum(), leaf)
    at_tokens = at_sum + array(slope[0] * tokens[0])
    return np.stack([alpha_beta(array(model.embed.weight), array(x[t]), at_tokens[t], *rule) for t in range(TOKENS)])


@pytest.mark.parametrize("alpha, beta, epsilon", [(2.0, 1.0, 0.5), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize("spelling", ["fused", "spelled out", "packed"])
def test_rule(spelling, alpha, beta, epsilon):
    """S25: R / (O + sign(O)·1e-6), through autograd of the block, queries and keys included, times its input."""
    model = Net(spelling)
    x = torch.randn(2, TOKENS, 2, dtype=F64)
    game = bp.RoutingGame(model, attention="gradient", alpha=alpha, beta=beta, epsilon=epsilon)
    found = game.attribute(x, [0, 2])
    expected = np.stack([expected_map(model, x[n], t, alpha, beta, epsilon) for n, t in ((0, 0), (1, 2))])
    assert_near(found, expected, 1e-9, what="map")
    other = bp.RoutingGame(model, alpha=alpha, beta=beta, epsilon=epsilon).attribute(x, [0, 2])
    assert (found - other).abs().max() > 1e-3 * found.abs().max(), "the fallback is another rule"


def test_without_attention():
    """Where there is no attention the fallback changes nothing."""
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)).double().eval()
    x = torch.randn(2, 4, dtype=F64)
    assert_near(
        bp.RoutingGame(model, attention="gradient").attribute(x, 0), bp.RoutingGame(model).attribute(x, 0), 1e-12
    )


def test_unknown_mode():
    """Only "value" and "gradient" exist."""
    with pytest.raises(ValueError, match="attention"):
        bp.RoutingGame(Net("fused"), attention="rollout")
