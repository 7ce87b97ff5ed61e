"""The validation grids of the registry against the paper's table, value by value."""

from itertools import product

import pytest
import torch
from torch import nn

import backplay as bp
import hand

RISKS, VARIANCES = (-5, -2, -1, -0.3, 0), (1, 2, 5, 10)
ANCHOR = {"gamma_conv": 0.25, "gamma_lin": 0.05, "epsilon_attn": 0.25}


def routing():
    """The product of all ranges; without any risk σ² changes nothing, so those points count once."""
    ranges = product((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), RISKS, (-50, -10, -5, -2, -1, 0), VARIANCES, (0.1, 0.25, 0.5, 1.0))
    for tau, risk, oracle, variance, epsilon in ranges:
        risky = {"input_variance": variance} if risk or oracle else {}
        yield {"tau": tau, "risk": risk, "attention_risk": oracle, "epsilon": epsilon, **risky}


def stopping():
    for risk, variance, gate in product(RISKS, VARIANCES, ("exact", "noisy")):
        yield {"gate": gate, **({"risk": risk, "input_variance": variance} if risk else {})}


TABLE = {  # tab:main-search-grid: method -> its points, and how many the table says there are
    "gradient": ([{}], 1),
    "smoothgrad": (
        [{"n": 10, "sigma": s, "aggregate": a} for s in (0.05, 0.1, 0.15, 0.2, 0.3) for a in ("mean", "std")]
        + [{"n": 30, "sigma": s, "aggregate": "mean"} for s in (0.1, 0.2)],
        12,
    ),
    "integrated_gradients": ([{"steps": n} for n in (5, 10, 20, 50, 100)], 5),
    "deeplift": ([{}, *({"rule": "gamma", "gamma": g} for g in (0.1, 0.25, 0.5)), {"rule": "zplus"}], 5),
    "dave": ([{"n": n, "max_angle": 20, "max_shift": 0.1, "flip": 0.5, "noise": 0.5} for n in (25, 50)], 2),
    "sg": (list(stopping()), None),
    "lrp_epsilon": ([{"epsilon": e, "bias": "absorb"} for e in (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2)], 7),
    "lrp_gamma": (
        [{"epsilon": e, "gamma": g, "bias": "absorb"} for e in (0.1, 0.25, 0.5) for g in (0.1, 0.25, 0.5, 1, 2)],
        15,
    ),
    "lrp_abs": ([{}], 1),
    "attn_lrp": (
        [{"epsilon": e, "gamma_conv": 0, "gamma_lin": 0, "epsilon_attn": 0} for e in (0.05, 0.1, 0.25, 0.5, 1.0)]
        + [ANCHOR]
        + [ANCHOR | {"gamma_lin": g} for g in (0.01, 0.025, 0.1, 0.25)]
        + [ANCHOR | {"gamma_conv": g} for g in (0.1, 0.5, 1.0)]
        + [ANCHOR | {"epsilon_attn": e} for e in (0.05, 0.1, 0.5, 1.0)],
        17,
    ),
    "tibav": ([{}], 1),
    "gae": ([{}], 1),
    "rg": (list(routing()), None),
    "rg_eq": ([point | {"n": 50} for point in routing()], None),
    "rollout": ([{"residual_weight": w} for w in (0.0, 0.25, 0.5, 0.75, 1.0)], 5),
    "layercam": ([{}], 1),
    "gradcam_pp": ([{}], 1),
}


def points(name, grid):
    """Every point with all parameters of its method, defaults filled in, as a set."""
    info = bp.methods()[name]
    return {frozenset((k, _key(v)) for k, v in info.check(point).items()) for point in grid}


def _key(value):
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


@pytest.mark.parametrize("name", TABLE)
def test_validation_grid(name):
    """tab:main-search-grid: the registry holds the points of the table, each once, and no others."""
    expected, count = TABLE[name]
    grid = bp.methods()[name].grid
    assert points(name, grid) == points(name, expected)
    assert len(grid) == len(points(name, grid)), "no point twice"
    if count is not None:
        assert len(grid) == count
    anchor = {"alpha": 2.0, "beta": 1.0, "epsilon": 0.5, "tau": 1.0}
    if name in ("rg", "rg_eq"):  # the theorem-driven reference is a point of the grid
        assert points(name, [anchor]) <= points(name, grid)


def test_attention_risk_is_for_attention():
    """tab:main-search-grid: λ_sm is swept on networks with attention alone."""
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    with_attention = bp.capture(hand.attention(), x)
    without = bp.capture(nn.Sequential(nn.Flatten(), nn.Linear(9, 2)).double(), x)
    info = bp.methods()["rg"]
    assert info.grid_for(with_attention) == info.grid
    left = info.grid_for(without)
    assert left and all(not point.get("attention_risk") for point in left)
    assert points("rg", left) == points("rg", [p for p in routing() if not p["attention_risk"]])
