"""Survival far below what float32, or any float, can hold: logarithmic scales keep its digits (S30)."""

import copy

import pytest
import torch

import backplay as bp
from closeness import assert_near
from narrow import SHAPES, Residual

GAMES = {"stopping": (bp.StoppingGame, {}), "routing": (bp.RoutingGame, {"epsilon": 0.5})}
DEPTHS = {"below 1e-30": (5, 1e-10, -70.0), "below 1e-300": (19, 1e-18, -691.0)}


CASES = [
    pytest.param(kind, *depth, marks=[pytest.mark.slow] if kind is Residual and depth[0] > 10 else [])
    for kind in SHAPES
    for depth in DEPTHS.values()
]


@pytest.mark.slow
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
