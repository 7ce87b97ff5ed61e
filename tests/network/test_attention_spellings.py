"""Softmax weights in many spellings (S23): shared heads, masks, and weights that are processed further."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp
from closeness import assert_near
from held import gradient

pytestmark = pytest.mark.capture

F64 = torch.float64


class Attending(nn.Module):
    """Two heads on (B, 5, 8); `hold` detaches the weights in the twin."""

    def __init__(self, form, hold=lambda t: t):
        super().__init__()
        torch.manual_seed(0)
        self.form, self.hold = form, hold
        self.q, self.k, self.v, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(40, 3)
        self.voices, self.gate, self.drop = nn.Parameter(torch.randn(2, 2)), nn.Parameter(torch.randn(2)), nn.Dropout()
        self.register_buffer("seen", (torch.rand(2, 5, 5) > 0.3) | torch.eye(5, dtype=torch.bool))
        self.register_buffer("table", torch.randn(1, 2, 5, 5))
        self.double().eval()

    def forward(self, x):
        q, k, v = (layer(x).unflatten(2, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.head(self.form(self, q, k, v).flatten(1))


def weights(q, k):
    return (q @ k.mT / 2).softmax(-1)


def fused(m, q, k, v, **options):
    return functional.scaled_dot_product_attention(m.hold(q), m.hold(k), v, **options)


def gated(m, q, k, v):
    """ConViT: a mixture with a constant policy, divided by its own sum."""
    gate = torch.sigmoid(m.gate).view(1, -1, 1, 1)
    mixed = (1 - gate) * weights(q, k) + gate * m.table.softmax(-1)
    return m.hold(mixed / mixed.sum(-1, keepdim=True)) @ v


def renormalised(m, q, k, v):
    masked = weights(q, k) * m.seen
    return m.hold(masked / masked.sum(-1, keepdim=True)) @ v


def talking(m, q, k, v):
    before = torch.einsum("bhqk,hg->bgqk", q @ k.mT, m.voices).softmax(-1)
    return m.hold(torch.einsum("hg,bhqk->bgqk", m.voices, before)) @ v


def flat(m, q, k, v):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    scores = torch.baddbmm(m.table[0, :1], q, k.mT, beta=1.0, alpha=0.5)
    return torch.bmm(m.hold(scores.softmax(-1)), v).unflatten(0, (-1, 2))


def by_hand(m, q, k, v):
    scores = q @ k.mT
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return m.hold(powers / powers.sum(-1, keepdim=True)) @ v


def dotted(m, q, k, v):
    told = torch.einsum("...qd,...kd->...qk", q, k).softmax(-1)
    return torch.einsum("...qk,...kd->...qd", m.hold(told), v)


def over_heads(m, q, k, v):
    """A letter of the values alone is summed over."""
    mixed = torch.einsum("bqk,bkhd->bqd", m.hold(weights(q, k)[:, 0]), v.transpose(1, 2))
    return mixed[:, None].expand(-1, 2, -1, -1)


FORMS = {
    "one head of keys and values, fused": lambda m, q, k, v: fused(m, q, k[:, :1], v[:, :1]),
    "one head of keys and values": lambda m, q, k, v: m.hold(weights(q, k[:, :1])) @ v[:, :1],
    "one head of queries and keys": lambda m, q, k, v: m.hold(weights(q[:, :1], k[:, :1])) @ v,
    "grouped": lambda m, q, k, v: fused(m, q, k[:, :1], v[:, :1], enable_gqa=True),
    "boolean mask": lambda m, q, k, v: fused(m, q, k, v, attn_mask=m.seen),
    "additive mask": lambda m, q, k, v: fused(m, q, k, v, attn_mask=m.table),
    "broadcast mask": lambda m, q, k, v: fused(m, q, k, v, attn_mask=m.seen[:1, :1]),
    "causal": lambda m, q, k, v: fused(m, q, k, v, is_causal=True),
    "talking heads": talking,
    "gated": gated,
    "renormalised": renormalised,
    "dropout": lambda m, q, k, v: m.drop(m.hold(weights(q, k))) @ v,
    "over queries": lambda m, q, k, v: m.hold((q @ k.mT).softmax(-2)) @ v,
    "on the right": lambda m, q, k, v: (v.mT @ m.hold(weights(q, k)).mT).mT,
    "dots": dotted,
    "over heads": over_heads,
    "by hand": by_hand,
    "flat": flat,
    "difference of two": lambda m, q, k, v: m.hold(weights(q, k) - 0.5 * weights(k, q)) @ v,
    "sigmoid": lambda m, q, k, v: m.hold(torch.sigmoid(q @ k.mT)) @ v,
}


def tokens(batch=3):
    return torch.randn(batch, 5, 8, dtype=F64)


@pytest.mark.parametrize("name", FORMS)
def test_spelling(name):
    """The gradient with weights held; walks of both games, their samples and their distances."""
    model, twin = Attending(FORMS[name]), Attending(FORMS[name], torch.Tensor.detach)
    network = bp.capture(model, tokens())
    for batch in (3, 1):
        x = tokens(batch)
        _, expected = gradient(lambda t: twin(t)[:, 1], x)
        assert_near(bp.StoppingGame(network).attribute(x, 1), expected, what="gradient")
    _, plain = gradient(lambda t: model(t)[:, 1], x)
    assert (plain - expected).abs().max() > 1e-3 * expected.abs().max()
    for game in (bp.StoppingGame(network), bp.RoutingGame(network, epsilon=0.01)):
        one, two = game.play(tokens(1), 1), game.play(tokens(1), 1)
        assert one.health().mass_error < 1e-12
        assert 0 < float(bp.hellinger(one, two).distance) <= 1
        assert_near(bp.hellinger(one, two).bc_forward(), bp.hellinger(one, two).bc)
        assert float(one.sample(1000, seed=2).check()) > 1e-4
        assert bp.certify(one, states=30) < 1e-9


@pytest.mark.parametrize(
    "name, like",
    [
        ("one head of keys and values", "one head of keys and values, fused"),
        ("one head of keys and values", "grouped"),
        ("dots", "by hand"),
        ("dropout", "on the right"),
    ],
)
@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_one_function_has_one_map(name, like, tau):
    x = tokens()
    maps = [bp.RoutingGame(Attending(FORMS[form]), tau=tau).attribute(x, 1) for form in (name, like)]
    assert_near(maps[0], maps[1])


def test_shared_heads_are_repeated_heads():
    """Keys and values of one head are those of all heads: the dense reference repeats them (S23)."""
    x = tokens()
    repeat = lambda m, q, k, v: m.hold(weights(q, k[:, :1].repeat(1, 2, 1, 1))) @ v[:, :1].repeat(1, 2, 1, 1)  # noqa: E731
    for modes in ({}, {"tau": 0.5}, {"bias": "absorb", "empty_stream": "reroute"}):
        found, expected = (
            bp.RoutingGame(Attending(form), **modes).attribute(x, 2)
            for form in (FORMS["one head of keys and values"], repeat)
        )
        assert_near(found, expected)


@pytest.mark.parametrize("score", ["key", "relative", "logit"])
def test_risk_reads_any_equation(score):
    """S24: scores by einsum, by matmul and fused are the same oracle."""
    x = tokens()
    modes = {"attention_risk": -1.0, "input_variance": 0.3, "attention_score": score}
    forms = (
        lambda m, q, k, v: weights(q, k) @ v,
        lambda m, q, k, v: fused(m, q, k, v),
        lambda m, q, k, v: torch.einsum(
            "bqkh,bhkd->bhqd", (torch.einsum("bqhd,bkhd->bqkh", q.transpose(1, 2), k.transpose(1, 2)) / 2).softmax(2), v
        ),
    )
    first, *others = (bp.RoutingGame(Attending(form), **modes).attribute(x, 1) for form in forms)
    for other in others:
        assert_near(other, first, 1e-9)
