"""Monotone facts about the modes: what grows, what shrinks, what is the anchor's limit and what is not."""

import itertools

import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from closeness import l1_relative

pytestmark = pytest.mark.usefixtures("without_gradients")

TEMPERATURES = [0.3, 0.5, 0.7, 1.0, 2.0, 5.0]


def entropy(p):
    return float(-torch.special.xlogy(p, p).sum())


def streams(play, name, element):
    """Full distributions of both stream states, outside option last."""
    answer = []
    for moved in next(iter(play.policy(name, element).values())):
        p = 2 * moved[element[0]].flatten().clamp(min=0)
        answer.append(torch.cat([p, (1 - p.sum()).clamp(min=0)[None]]))
    return answer


def strictly(values):
    """Whether every number is larger than the one before."""
    return all(b > a for a, b in itertools.pairwise(values))


class Conv(nn.Module):
    """A small CNN with pooling of both kinds."""

    def __init__(self, gate=nn.ReLU):
        super().__init__()
        self.conv, self.gate, self.pool = nn.Conv2d(2, 4, 3, padding=1), gate(), nn.MaxPool2d(2)
        self.deep, self.gate2, self.mean = nn.Conv2d(4, 9, 3, padding=1), gate(), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(9, 3)

    def forward(self, x):
        return self.head(self.mean(self.gate2(self.deep(self.pool(self.gate(self.conv(x)))))).flatten(1))


def conv(gate=nn.ReLU):
    return Conv(gate).double().eval(), torch.randn(2, 2, 6, 6, dtype=torch.float64)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_entropy_grows_with_temperature(epsilon):
    """eq:routing-gibbs-general-tau: each stream's distribution, outside option included, flattens as τ grows."""
    model, x = conv()
    game = bp.RoutingGame(alike(model, x), epsilon=epsilon)
    plays = [game.replace(tau=tau).play(x, 0) for tau in TEMPERATURES]
    for name, element in (("head", (0, 0)), ("deep", (1, 2, 1, 1)), ("conv", (0, 3, 2, 4))):
        for k in (0, 1):
            found = [entropy(streams(play, name, element)[k]) for play in plays]
            assert strictly(found), (name, k, found)
    shares = [play.policy("mean", (0, 1, 0, 0))["gate2"][0].flatten() for play in plays]
    assert strictly([entropy(p) for p in shares])


def test_key_entropy_grows_with_temperature():
    """S23: the key policy `(A ṽ)^{1/τ}` of an attention flattens too."""
    model, x = hand.attention(), torch.randn(1, 3, 3, dtype=torch.float64)
    found, game = [], bp.RoutingGame(alike(model, x), epsilon=0.0)
    for tau in TEMPERATURES:
        play = game.replace(tau=tau).play(x, 0)
        (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
        (moved,) = play.policy(node.name, (0, 1, 2, 0)).values()
        found.append([entropy(2 * m[0].sum(-1)) for m in moved])
    for k in (0, 1):
        assert strictly([f[k] for f in found]), found


def test_cemetery_grows_with_epsilon():
    """S13: the outside option takes more as ε grows, on a CNN and through attention."""
    for model, x in (conv(), (hand.attention(), torch.randn(2, 3, 3, dtype=torch.float64))):
        game = bp.RoutingGame(alike(model, x))
        for tau in (0.5, 1.0, 2.0):
            ends = [game.replace(epsilon=e, tau=tau).play(x, 0).cemetery for e in (0.0, 1e-3, 0.1, 0.5, 2.0)]
            for b in range(2):
                assert strictly([float(e[b]) for e in ends])


@pytest.mark.filterwarnings("ignore:risk=-1.0 is idle")  # a variance of 0 is one of those compared
@pytest.mark.parametrize("gate", [nn.ReLU, nn.GELU])
@pytest.mark.parametrize("game", [bp.RoutingGame, bp.StoppingGame])
def test_small_variance_is_the_anchor(gate, game):
    """S20: `input_variance → 0` at fixed λ gives the anchor, on ReLU and GELU networks alike."""
    model, x = conv(gate)
    plain = game(model)
    anchor, averse = plain.attribute(x, 1), plain.replace(risk=-1.0)
    variances = (1e-2, 1e-6, 1e-10, 1e-14)
    errors = [l1_relative(averse.replace(input_variance=v).attribute(x, 1), anchor) for v in variances]
    assert errors[0] > 1e-3
    assert errors[2] < 2e-3 * errors[0] + 1e-12 and errors[3] < 1e-5
    assert l1_relative(averse.attribute(x, 1), anchor) < 1e-12


def test_alive_set_grows_with_risk():
    """S20: `V_λ` grows with λ, so a gate that is open stays open."""
    model, x = conv()
    game = bp.RoutingGame(alike(model, x), input_variance=0.3)
    for name in ("gate", "gate2"):
        before, sizes = None, []
        for risk in (-3.0, -2.0, -1.0, -0.5, -0.1, 0.1, 0.5, 2.0):
            play = game.replace(risk=risk).play(x, 0)
            alive = play.policy(name) > 0
            assert torch.equal(alive, play.observed(name) > 0)
            if before is not None:
                assert (alive | ~before).all()
            before = alive
            sizes.append(int(alive.sum()))
        assert sizes[0] < sizes[-1]


@pytest.mark.parametrize("kind", [bp.RoutingGame, bp.StoppingGame])
def test_vanishing_risk_is_not_the_anchor(kind):
    """S20: at fixed σ² the limit λ → 0 shows `E ReLU(z + noise) > 0` at every gate, so that shut gates open and open
    ones shift: on ReLU networks that is not the anchor. It is `σ² → 0` that gives the anchor, at these λ too."""
    model, x = conv()
    game = kind(model, input_variance=0.3)
    anchor, limit, nearer = (game.replace(risk=r).play(x, 0) for r in (0.0, -1e-9, -1e-11))
    assert l1_relative(limit.attribution(), nearer.attribution()) < 1e-6
    assert l1_relative(limit.attribution(), anchor.attribution()) > 1e-2
    shut = anchor.observed("gate") == 0
    assert shut.any() and (limit.observed("gate") > 0).all()
    assert (limit.observed("gate") > anchor.observed("gate"))[~shut].all()
    moments = bp.moments(alike(model, x), x, 0.3)
    mean, _ = hand.relu_moments(hand.numbers(model.conv(x)), hand.numbers(moments["conv"].variance))
    assert l1_relative(limit.observed("gate"), mean) < 1e-8
    certain = game.replace(risk=-1e-9, input_variance=1e-14)
    assert l1_relative(certain.attribute(x, 0), anchor.attribution()) < 1e-5


@pytest.mark.parametrize("score", ["key", "relative", "logit"])
def test_attention_turns_to_certain_keys(score):
    """eq:risk-attn-policy: as λ_sm falls, the mean uncertainty of the chosen key falls (an exponential tilt of it)."""
    model, x = hand.attention(), torch.randn(1, 3, 3, dtype=torch.float64)
    game = bp.RoutingGame(alike(model, x), input_variance=0.5, attention_score=score, epsilon=0.0)
    moments = bp.moments(alike(model, x), x, 0.5)
    h = torch.relu(model.embed(x))
    query, key = model.split(model.q(h))[0, 1, 2], model.split(model.k(h))[0, 1]
    spread_q, spread_k = (model.split(moments[n].variance)[0, 1] for n in ("q", "k"))
    deviation = {
        "key": spread_k.mean(-1).sqrt(),
        "relative": spread_k.mean(-1).sqrt() / key.square().mean(-1).sqrt(),
        "logit": (spread_k @ query.square() + key.square() @ spread_q[2]).sqrt(),
    }[score]
    assert deviation.std() > 1e-2
    means = []
    for risk in (2.0, 0.0, -1.0, -3.0, -6.0):
        play = game.replace(attention_risk=risk).play(x, 0)
        (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
        (moved,) = play.policy(node.name, (0, 1, 2, 0)).values()
        means.append([float((m[0].sum(-1) / m[0].sum() * deviation).sum()) for m in moved])
    for k in (0, 1):
        assert strictly([-m[k] for m in means]), means
