"""Survival far below what float32, or any float, can hold: logarithmic scales keep its digits (S30)."""

import copy

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near

WIDE = 3


def tighten(layer, width):
    """The wide road leads to a dead neuron, and biases keep the others alive: few walks go on, in both games."""
    with torch.no_grad():
        road = torch.tensor([width, 2 * width, 1.0]).view(1, WIDE, *[1] * (layer.weight.ndim - 2))
        layer.weight.copy_(torch.rand_like(layer.weight) * road)
        layer.bias.copy_(torch.tensor([1.0, 0.5, -50.0]))
    return layer


def mlp(depth, width):
    layers = [layer for _ in range(depth) for layer in (tighten(nn.Linear(WIDE, WIDE), width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDE, 2))


def cnn(depth, width):
    layers = [layer for _ in range(depth) for layer in (tighten(nn.Conv2d(WIDE, WIDE, 3, padding=1), width), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDE, 2))


class Residual(nn.Module):
    """Residual sums around attention, a narrow layer before each."""

    def __init__(self, depth, width):
        super().__init__()
        self.narrow = nn.ModuleList(tighten(nn.Linear(WIDE, WIDE), width) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(WIDE, 3 * WIDE) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(depth))
        self.head = nn.Linear(WIDE, 2)
        with torch.no_grad():
            for out in self.out:  # the dead channel stays dead behind the sum
                out.weight[2], out.bias[2] = 0.0, 0.0

    def forward(self, x):
        for narrow, qkv, out in zip(self.narrow, self.qkv, self.out, strict=True):
            x = torch.relu(narrow(x))
            q, k, v = qkv(x).chunk(3, -1)
            x = x + out(nn.functional.scaled_dot_product_attention(q, k, v))
        return self.head(x.mean(1))


SHAPES = {mlp: (2, WIDE), cnn: (1, WIDE, 4, 4), Residual: (2, 2, WIDE)}
GAMES = {"stopping": (bp.StoppingGame, {}), "routing": (bp.RoutingGame, {"epsilon": 0.5})}
DEPTHS = {"below 1e-30": (5, 1e-10, -70.0), "below 1e-300": (19, 1e-18, -691.0)}


CASES = [
    pytest.param(kind, *depth, marks=[pytest.mark.slow] if kind is Residual and depth[0] > 10 else [])
    for kind in SHAPES
    for depth in DEPTHS.values()
]


@pytest.mark.parametrize("kind, depth, width, least", CASES)
def test_float32(kind, depth, width, least):
    """`Z`, BC given survival and the conditioned maps agree with float64 to float32's own precision, by both routes."""
    torch.manual_seed(1)
    model = kind(depth, width).double().eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
    x = torch.rand(SHAPES[kind], dtype=torch.float64) + 0.5
    network = bp.capture(model, x)
    networks = [network, network.on(other)]
    single = [network.on(copy.deepcopy(m).float()) for m in (model, other)]
    for game, options in GAMES.values():
        exact = bp.hellinger(*(game(n, **options).play(x, 0) for n in networks))
        assert (exact.log_survival_a < least).all() and (exact.log_survival_b < least).all()
        assert (exact.bc_surviving < 0.999).all() and (exact.bc_surviving > 1e-3).all()
        plays = [game(n, **options).play(x.float(), 0) for n in single]
        for route in ("post-hoc", "kernel"):
            found = bp.hellinger(*plays, conditioning=route)
            assert_near(found.log_survival_a, exact.log_survival_a, 1e-3, scale=1.0, what=f"log Z_A, {route}")
            assert_near(found.log_survival_b, exact.log_survival_b, 1e-3, scale=1.0, what=f"log Z_B, {route}")
            assert_near(found.bc_surviving, exact.bc_surviving, 1e-3, what=f"BC given survival, {route}")
            for part in ("trajectory", "marginal"):
                expected = exact.map(part, conditioned=True)
                assert_near(found.map(part, conditioned=True), expected, 1e-5, scale=1.0, what=f"live {part} map")
