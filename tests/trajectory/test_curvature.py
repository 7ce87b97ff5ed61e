"""The curvature of Softplus networks (app:softplus-dombrowski): gate by gate, and of the whole map."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import backplay as bp
import hand
from closeness import array, assert_near
from refusals import refused

F64 = torch.float64
THETAS = (0.05, 0.3, 1.0)


class Residual(nn.Module):
    """Convolution with batch norm, a skip connection, copies of each pixel, a mean, a head."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3, padding=1),
        )
        self.relu, self.pool, self.head = nn.ReLU(), nn.AvgPool2d(2), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.tensor([0.5, -2.0, 1.0, 1.5]).view(4, 1, 1))

    def forward(self, x):
        h = self.relu(self.norm(self.first(x)))
        h = self.relu(self.second(h) + h) * self.scale
        wide = torch.cat([h, F.interpolate(h, scale_factor=2)[..., ::2, ::2]], 1)
        return self.head(self.pool(wide).mean((2, 3)))


def mlp():
    layers = [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)]
    return nn.Sequential(*layers), (5,)


def spread():
    """Each input element is read three times."""

    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.relu, self.head = nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.relu(self.first(x.repeat(1, 3))))

    return Repeated(), (4,)


NETWORKS = {"mlp": mlp, "residual": lambda: (Residual(), (2, 6, 6)), "repeated": spread}


def build(name):
    torch.manual_seed(3)
    model, shape = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.double().eval(), shape


def softened(model, theta):
    """The model with Softplus(θ) in place of every ReLU module."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Softplus(beta=1 / theta, threshold=40.0))
    return twin


def slopes(model, x, weights):
    """Gradient of `Σ w · logit` of every sample, by autograd."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad((model(x) * weights).sum(), x)[0]


def pairs(shape, count=40):
    """Pairs of inputs, from far apart to nearly the same."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, *shape, dtype=F64, generator=generator)
    step = torch.randn(count, *shape, dtype=F64, generator=generator)
    reach = torch.logspace(-6, 1, count, dtype=F64).view(-1, *(1,) * len(shape))
    return x, x + reach * step


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_map_changes_no_faster(name, theta):
    """app:softplus-dombrowski: ‖∇f(x) − ∇f(x')‖ ≤ C ‖x − x'‖; autograd on the Softplus network is the oracle."""
    model, shape = build(name)
    x, y = pairs(shape)
    weights = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, -1.0]], dtype=F64).repeat(20, 1)
    twin = softened(model, theta)
    play = bp.StoppingGame(model, softplus=theta).play(x, weights)
    before, after = (slopes(twin, t, weights) for t in (x, y))
    assert_near(play.attribution(), before, what="the map is the gradient")
    bound = bp.bounds.curvature(play)
    assert bound.shape == (40,) and bool(torch.isfinite(bound).all())
    measured = (after - before).flatten(1).norm(dim=1) / (y - x).flatten(1).norm(dim=1)
    assert bool((measured <= bound).all()) and float(measured.max()) > 0


@pytest.mark.parametrize("theta", THETAS)
def test_the_recursion_by_hand(theta):
    """J and H written out for a perceptron: W: both times √(‖W‖₁‖W‖_∞); a gate: H ← H + J²/(4θ); the target's row."""
    model, shape = build("mlp")
    x, _ = pairs(shape, 2)
    slope, change = 1.0, 0.0
    for layer in (model[0], model[2]):
        weight = np.abs(array(layer.weight))
        norm = math.sqrt(weight.sum(0).max() * weight.sum(1).max())
        assert norm >= np.linalg.norm(array(layer.weight), 2)
        slope, change = slope * norm, change * norm
        change += slope**2 / (4 * theta)
    rows = np.linalg.norm(array(model[4].weight), axis=1)
    found = bp.bounds.curvature(bp.StoppingGame(model, softplus=theta).play(x, [2, 0]))
    assert_near(found, change * rows[[2, 0]])


class Copied(nn.Module):
    """All of the input, and its first two elements once more."""

    def __init__(self):
        super().__init__()
        self.first, self.relu, self.head = nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.relu(self.first(torch.cat([x, x[:, :2]], 1))))


def test_copies_of_an_element_by_hand():
    """A wire that repeats an element is a map of norm √2, one that leaves elements out of norm 1."""
    torch.manual_seed(3)
    model, theta = Copied().double().eval(), 0.4
    weight = np.abs(array(model.first.weight))
    slope = math.sqrt(2 * weight.sum(0).max() * weight.sum(1).max())
    row = np.linalg.norm(array(model.head.weight)[1])
    play = bp.StoppingGame(model, softplus=theta).play(torch.randn(2, 5, dtype=F64), 1)
    assert_near(bp.bounds.curvature(play), [row * slope**2 / (4 * theta)] * 2)


def test_the_bound_is_reached():
    """One neuron `softplus_θ(w x)`: the bound w²/(4θ) is the slope's own slope at 0, and nothing less would do."""
    theta, w = 0.3, 2.5
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double().eval()
    with torch.no_grad():
        model[0].weight.fill_(w)
        model[2].weight.fill_(1.0)
    x = torch.tensor([[-1e-4], [1e-4]], dtype=F64)
    play = bp.StoppingGame(model, softplus=theta).play(x, 0)
    first, second = play.attribution()
    assert_near(bp.bounds.curvature(play), [w**2 / (4 * theta)] * 2)
    assert_near((second - first) / 2e-4, [w**2 / (4 * theta)], 1e-6)


@pytest.mark.parametrize("theta", THETAS)
def test_gates_change_no_faster(theta):
    """app:softplus-dombrowski gate by gate, on any network: |c(z) − c(z')| ≤ |z − z'|/(4θ), and nearly so at 0."""
    layers = [
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 40),
        nn.ReLU(),
        nn.Linear(40, 3),
    ]
    model = nn.Sequential(*layers).double().eval()
    x, y = pairs((2, 6, 6))
    game = bp.StoppingGame(model, softplus=theta)
    one, other = game.play(x, 0), game.play(y, 0)
    for name in ("1", "5"):
        moved = (one.values(name).action - other.values(name).action).abs()
        changed = (one.policy(name) - other.policy(name)).abs()
        assert bool((changed <= moved / (4 * theta) + 1e-15).all())
        assert float((changed / moved)[moved > 1e-6].max()) > 0.9 / (4 * theta), "some gate comes near it"


def test_native_softplus_and_relu():
    """nn.Softplus(β) bends as θ = 1/β does; a ReLU has no bound, unless there is no gate at all."""
    model, shape = build("mlp")
    x, _ = pairs(shape, 2)
    native = nn.Sequential(*(nn.Softplus(beta=4.0) if isinstance(m, nn.ReLU) else m for m in model))
    expected = bp.bounds.curvature(bp.StoppingGame(model, softplus=0.25).play(x, 1))
    assert_near(bp.bounds.curvature(bp.StoppingGame(native).play(x, 1)), expected)
    assert bp.bounds.curvature(bp.StoppingGame(model).play(x, 1)).tolist() == [math.inf] * 2
    linear = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double().eval()
    assert bp.bounds.curvature(bp.StoppingGame(linear).play(x, 1)).tolist() == [0.0, 0.0]


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.left(x) * self.right(x))


REFUSED = {
    "max": (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.MaxPool1d(2), nn.Linear(4, 2)), (4,), "'2', of kind max"),
    "norm": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)), (4,), "'1', of kind norm"),
    "gelu": (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)), (4,), "the gate '1', gelu"),
    "product": (Product(), (4,), "of kind product"),
    "attention": (hand.attention(), (3, 3), "of kind mix"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    """Nodes without a bound are named, with what the bound knows."""
    model, shape, words = REFUSED[name]
    play = bp.StoppingGame(model.double().eval(), softplus=0.5).play(torch.randn(2, *shape, dtype=F64), 0)
    said = refused(lambda: bp.bounds.curvature(play), words, "the bound knows", kind=RuntimeError)
    assert "\n" not in said


def test_other_plays_are_refused():
    """The bound is one on the gradient: other games and modes have another map."""
    model, shape = build("mlp")
    x, _ = pairs(shape, 2)
    for game in (bp.RoutingGame(model), bp.StoppingGame(model, gate="noisy"), bp.StoppingGame(model, entropy_bias=0.1)):
        refused(lambda g=game: bp.bounds.curvature(g.play(x, 0)), "softplus", type(game).__name__, kind=RuntimeError)
    refused(lambda: bp.bounds.curvature(x), "takes a play", kind=TypeError)
