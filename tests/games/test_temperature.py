"""Temperatures (app:routing-temp, S13, S37): every τ finite, equal to a log-space reference, float32 near float64."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from closeness import assert_near, l1_relative

pytestmark = pytest.mark.usefixtures("without_gradients")

TEMPERATURES = [0.3, 0.5, 0.7, 1.0, 2.0, 5.0]


@pytest.mark.parametrize("tau", TEMPERATURES)
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.5])
def test_log_space_reference(tau, epsilon):
    """S13: a strided, padded convolution, a gate and a linear layer against policies computed in log space."""
    conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).double().eval()
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64) * torch.logspace(-4, 2, 36).view(6, 6).double()
    first, bias = hand.matrix(conv, (2, 6, 6))
    z = first @ hand.numbers(x).ravel() + bias
    mass = hand.route(hand.unit(3, 2), hand.numbers(model[3].weight), np.maximum(z, 0), epsilon, tau) * (z > 0)
    mass = hand.route(mass, first, hand.numbers(x).ravel(), epsilon, tau) * float(model(x)[0, 2])
    assert_near(bp.RoutingGame(alike(model, x), tau=tau, epsilon=epsilon).attribute(x, 2).flatten(), mass, 1e-9)
    found = bp.RoutingGame(copy.deepcopy(model).float(), tau=tau, epsilon=epsilon).attribute(x.float(), 2)
    assert l1_relative(found.flatten(), mass) < 1e-4


@pytest.mark.parametrize("size", [1e-25, 1e25])
@pytest.mark.parametrize("tau", [0.3, 5.0])
def test_extreme_scales(size, tau):
    """S37: with ε = 0 the Routing Game does not see the scale of a layer; powers of it leave float32's range."""
    model = hand.mlp(5, 8, 3).float()
    x = torch.randn(2, 5)
    for layer in (model[0], model[2]):
        layer.bias.zero_()
    plain = bp.RoutingGame(alike(model, x), tau=tau, epsilon=0.0, output="one").attribute(x, 1)
    found = bp.RoutingGame(alike(model, x), tau=tau, epsilon=0.0, output="one").attribute(x * size, 1)
    assert plain.abs().max() > 0 and l1_relative(found, plain) < 1e-4


def test_far_left_of_gelu():
    """S37: τ > 1 lifts tiny GELU values, whose digits come from erfc and not from float32's `1 + erf`."""
    model = hand.mlp(3, 3, 2, gate=nn.GELU)
    model[0].weight.copy_(torch.eye(3))
    model[0].bias.zero_()
    model[2].weight.copy_(torch.tensor([[1.0, -1.0, -2.0], [1.0, 1.0, -1.0]]))
    x = torch.tensor([[-6.0, -6.5, -7.0]], dtype=torch.float64)
    play = bp.RoutingGame(model.float(), tau=5.0, epsilon=0.0).play(x.float(), 0)
    z = hand.numbers(x)[0]
    np.testing.assert_allclose(hand.numbers(play.observed("1"))[0], z * hand.cdf(z), rtol=1e-4)
    kept, _ = play.policy("2", (0, 0))["1"]
    plus, _ = hand.policies(np.array([[1.0, -1.0, -2.0]]) * z * hand.cdf(z), 0.0, 5.0)
    np.testing.assert_allclose(2 * hand.numbers(kept)[0], plus[0], rtol=1e-4)
