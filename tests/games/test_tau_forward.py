"""The exact game at τ ≠ 1 (S19, app:abl-tau-forward): the players know τ, and so does the forward pass."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from backplay import zoo
from closeness import assert_near, l1_relative

pytestmark = pytest.mark.usefixtures("without_gradients")


def tempered(weight, bias, below, epsilon, tau):
    """`(ε^{1/τ} + Σ ([c]⁺)^{1/τ})^τ − (ε^{1/τ} + Σ ([c]⁻)^{1/τ})^τ + b`."""
    c = weight * below[None, :]
    aside = epsilon ** (1 / tau) if epsilon > 0 else 0.0
    plus, minus = (((aside + (np.maximum(s * c, 0) ** (1 / tau)).sum(1)) ** tau) for s in (1, -1))
    return plus - minus + bias


@pytest.mark.parametrize("tau", [0.5, 0.8, 2.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.4])
def test_mlp(tau, epsilon):
    """S19: every affine value, the deformed logit and the map, by hand, with biases and an outside option."""
    model, x = hand.mlp(5, 8, 7, 3), 3 * torch.randn(2, 5, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), tau=tau, epsilon=epsilon, tau_forward=True).play(x, 1)
    layers = [(hand.numbers(m.weight), hand.numbers(m.bias)) for m in model[::2]]
    for b in range(2):
        z1 = tempered(*layers[0], hand.numbers(x[b]), epsilon, tau)
        a1 = np.maximum(z1, 0)
        z2 = tempered(*layers[1], a1, epsilon, tau)
        a2 = np.maximum(z2, 0)
        value = tempered(*layers[2], a2, epsilon, tau)[1]
        assert_near(play.observed("0")[b], z1)
        assert_near(play.observed("3")[b], a2)
        assert_near(play.value[b], value)
        assert_near(play.policy("1")[b], z1 > 0)
        assert abs(value - float(model(x)[b, 1])) > 1e-4
        mass = hand.route(hand.unit(3, 1), layers[2][0], a2, epsilon, tau) * (z2 > 0)
        mass = hand.route(mass, layers[1][0], a1, epsilon, tau) * (z1 > 0)
        mass = hand.route(mass, layers[0][0], hand.numbers(x[b]), epsilon, tau)
        assert_near(play.attribution()[b], mass * value)


def test_convolution_and_mix():
    """S19: convolutions with padding are affine; a mix of non-negative things keeps its value."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 2)
    ).double().eval()  # fmt: skip
    x, tau, epsilon = torch.randn(1, 1, 4, 4, dtype=torch.float64), 0.6, 0.2
    play = bp.RoutingGame(alike(model, x), tau=tau, epsilon=epsilon, tau_forward=True).play(x, 0)
    weight, bias = hand.matrix(model[0], (1, 4, 4))
    z = tempered(weight, bias, hand.numbers(x).ravel(), epsilon, tau)
    assert_near(play.observed("0").flatten(), z)
    mean = nn.functional.avg_pool2d(torch.tensor(np.maximum(z, 0)).view(1, 2, 4, 4), 2)
    head = hand.numbers(model[4].weight), hand.numbers(model[4].bias)
    assert_near(play.value[0], tempered(*head, hand.numbers(mean).ravel(), epsilon, tau)[0])


def test_norms_are_recomputed():
    """S19: norms see the deformed values."""
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)).double().eval()
    x = torch.randn(1, 4, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), tau=0.5, epsilon=0.1, tau_forward=True).play(x, 0)
    z = tempered(hand.numbers(model[0].weight), hand.numbers(model[0].bias), hand.numbers(x)[0], 0.1, 0.5)
    assert_near(play.observed("1"), model[1](torch.tensor(z)[None]))


@pytest.mark.parametrize("fused", [True, False])
def test_attention(fused):
    """S19, S23: softmax is recomputed from deformed queries and keys, and keys and inputs of the values know τ."""
    model, x = hand.attention(fused), torch.randn(1, 3, 3, dtype=torch.float64)
    tau, epsilon = 0.5, 0.2
    play = bp.RoutingGame(alike(model, x), tau=tau, epsilon=epsilon, tau_forward=True).play(x, 0)

    def rows(layer, below):
        weight, bias = hand.numbers(layer.weight), hand.numbers(layer.bias)
        return torch.tensor(np.stack([tempered(weight, bias, row, epsilon, tau) for row in hand.numbers(below)]))

    h = torch.relu(rows(model.embed, x[0]))
    q, k = (rows(f, h).unflatten(-1, (2, 2)).transpose(0, 1) for f in (model.q, model.k))
    (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
    a = torch.softmax(q @ k.mT / 2**0.5, -1)
    assert_near(play.attention(node.name)[0], a)
    c = h[:, None, :] * model.v.weight  # (token, feature, input)
    mixed = torch.tensor(hand.numbers(model.v.bias)).view(2, 1, 2).expand(2, 3, 2).clone()
    for sign in (1, -1):
        worth = (sign * c).clamp(min=0).pow(1 / tau).sum(-1).pow(tau).unflatten(-1, (2, 2)).transpose(0, 1)
        total = (a[..., None] * worth[:, None]).pow(1 / tau).sum(2)  # keys
        mixed += sign * (epsilon ** (1 / tau) + total).pow(tau)
    assert_near(play.observed(node.name)[0], mixed)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_limit(epsilon):
    """S19: τ → 1 gives the anchor's value and map, with an outside option too (ε cancels in the value); τ = 1 is it."""
    for model, shape in ((hand.mlp(5, 8, 7, 3), (2, 5)), (hand.attention(), (2, 3, 3))):
        x = torch.randn(*shape, dtype=torch.float64)
        game = bp.RoutingGame(alike(model, x), epsilon=epsilon, tau_forward=True)
        anchor = bp.RoutingGame(alike(model, x), epsilon=epsilon).play(x, 1)
        for close in (1e-7, -1e-7):
            play = game.replace(tau=1 + close).play(x, 1)
            assert_near(play.value, anchor.value, 1e-5)
            assert l1_relative(play.attribution(), anchor.attribution()) < 1e-4
        assert_near(game.attribute(x, 1), anchor.attribution(), 1e-13)
        assert_near(anchor.value, model(x)[:, 1])


def test_a_vgg_is_not_insensitive():
    """tab:abl-tau-forward-vgg says that a VGG's map hardly changes at τ = 0.8; under S19 even its ranks do."""
    x, target, mask = zoo.images(12)
    plain = bp.RoutingGame(zoo.load("vgg"), tau=0.8)
    maps = [g.attribute(x, target).sum(1).abs().flatten(1).double() for g in (plain, plain.replace(tau_forward=True))]
    ranks = [m.argsort(1).argsort(1).double() for m in maps]
    alike_by_rank = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(*ranks, strict=True)])
    inside = [float(((m * mask.flatten(1)).sum(1) / m.sum(1)).mean()) for m in maps]
    assert 0.4 < float(alike_by_rank.mean()) < 0.55
    assert inside == pytest.approx([0.57, 0.40], abs=0.02)
