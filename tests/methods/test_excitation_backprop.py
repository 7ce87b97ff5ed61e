"""Excitation Backprop (Zhang 2018) as the Routing Game with α = 1 and β = 0."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from backplay import zoo
from closeness import assert_near

F64 = torch.float64


def network():
    """Convolutions with biases, both poolings, two linear layers."""
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def winning(model, x, target):
    """Marginal winning probabilities layer by layer: `P(i | j) ∝ a_i W⁺_ij`, biases left out; a maximum has one winner.

    Each linear layer is run with its positive weights alone, and autograd carries `P / (W⁺ a)` back through it.
    """
    below = [x]
    for layer in model:
        below.append(layer(below[-1]))
    mass = torch.zeros_like(below[-1])
    mass[torch.arange(len(x)), torch.tensor(target)] = 1.0
    for layer, a in zip(reversed(list(model)), reversed(below[:-1]), strict=True):
        a = a.detach().clone().requires_grad_()
        if isinstance(layer, nn.ReLU):
            continue
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            run = nn.functional.conv2d if isinstance(layer, nn.Conv2d) else nn.functional.linear
            geometry = {"padding": layer.padding} if isinstance(layer, nn.Conv2d) else {}
            out = run(a, layer.weight.detach().clamp(min=0), **geometry)
        else:
            out = layer(a)
        if isinstance(layer, (nn.MaxPool2d, nn.Flatten)):
            (mass,) = torch.autograd.grad(out, a, mass)
        else:
            share = torch.where(out > 0, mass / out, 0).detach()
            (mass,) = torch.autograd.grad(out, a, share)
            mass = mass * a.detach()
    return mass


def test_it_is_the_routing_game_at_alpha_1():
    """[Zhang2018excitation] by thm:ab-recovery at α = 1, β = 0, ε = 0: the walk that follows excitation alone."""
    torch.manual_seed(0)
    model, x, target = network().double().eval(), torch.rand(2, 3, 8, 8, dtype=F64), [2, 0]
    expected = winning(model, x, target)
    found = bp.explain(model, x, target, method="excitation_backprop")
    assert_near(found, expected, what="marginal winning probabilities")
    assert found.min() >= -1e-15 and bool((found.flatten(1).sum(1) <= 1 + 1e-12).all())
    game = bp.RoutingGame(model, alpha=1.0, beta=0.0, epsilon=0.0, output="one")
    assert_near(game.attribute(x, target), expected, what="the game")
    info = bp.methods()["excitation_backprop"]
    assert info.family == "relevance" and info.params == {} and "Zhang" in info.reference


class Sum(nn.Module):
    """ReLU outputs added up, whose shares can be read off: 1 + 3 and 2 + 2."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = (nn.Linear(2, 2, bias=False), *(nn.Linear(2, n, bias=False) for n in (2, 1)))
        with torch.no_grad():
            self.left.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
            self.right.weight.copy_(torch.tensor([[0.0, 3.0], [2.0, 0.0]]))
            self.head.weight.copy_(torch.tensor([[1.0, 3.0]]))

    def forward(self, x):
        return self.head(torch.relu(self.left(x)) + torch.relu(self.right(x)))


def test_sums_by_size():
    """By hand: a sum is a layer of weights 1, so its operands win in proportion to their values."""
    x = torch.ones(1, 2, dtype=F64)
    found = bp.explain(Sum().double().eval(), x, 0, method="excitation_backprop")
    # the sum is (4, 4), of which the head takes 1/4 and 3/4; they come from (x₁: 1/4, x₂: 3/4) and (x₂: 2/4, x₁: 2/4)
    assert_near(found, np.array([[1 / 16 + 3 / 8, 3 / 16 + 3 / 8]]))


@pytest.mark.slow
def test_on_the_bundled_networks():
    """A map of every bundled network, none of whose walks counts negatively."""
    batch = zoo.images(2)
    for name in ("vgg", "resnet", "vit"):
        found = bp.explain(zoo.load(name), batch.x, batch.target, method="excitation_backprop")
        assert found.shape == batch.x.shape and float(found.max()) > 0
        assert float(found.min()) >= -1e-6 * float(found.max())
