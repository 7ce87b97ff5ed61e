"""S11: masses stay in range through any depth, whatever the few entries that a pass looks at."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.kernels.kernel import DIFFERENCE
from backplay.trajectory.passes import pull

WIDE = 600  # so wide that a pass which is not careful leaves out most entries


def chain(*factors):
    """Diagonal layers without bias: on one channel by these factors, on all others by 1."""
    layers = [nn.Linear(WIDE, WIDE, bias=False) for _ in factors]
    for layer, factor in zip(layers, factors, strict=True):
        layer.weight.data = torch.eye(WIDE)
        layer.weight.data[1, 1] = factor
    head = nn.Linear(WIDE, 1, bias=False)
    head.weight.data = torch.ones(1, WIDE)
    return nn.Sequential(*layers, head).float()


def test_an_entry_that_is_not_looked_at():
    """A channel between the sampled ones leaves float32 on its way back and returns: its map is that of float64."""
    factors, x = (1e-30, 1e-30, 1e30, 1e30), torch.ones(1, WIDE)
    found = bp.StoppingGame(chain(*factors)).attribute(x, 0)
    expected = bp.StoppingGame(chain(*factors).double()).attribute(x.double(), 0)
    torch.testing.assert_close(found[0, 1].double(), expected[0, 1], rtol=1e-5, atol=0)


def test_the_careless_pass_alone_would_fail():
    """What the test above rests on: without a second look the channel is infinite at the input."""
    play = bp.StoppingGame(chain(1e-30, 1e-30, 1e30, 1e30)).play(torch.ones(1, WIDE), 0)
    seen = pull(
        play.network, play.kernel, play.start, play.root(DIFFERENCE), DIFFERENCE, done=lambda node: None, careful=False
    )
    assert not seen.finite
    assert play.passed(DIFFERENCE).finite


@pytest.mark.parametrize("depth", [2, 6])
def test_small_masses_are_seen_by_any_entry(depth):
    """All channels shrink far below float32's range and grow again: no digit is lost."""
    layers = [nn.Linear(WIDE, WIDE, bias=False) for _ in range(2 * depth)]
    for k, layer in enumerate(layers):
        layer.weight.data = torch.eye(WIDE) * (1e-12 if k < depth else 1e12)
    head = nn.Linear(WIDE, 2, bias=False)
    model = nn.Sequential(*reversed(layers), head).float()
    found = bp.StoppingGame(model).attribute(torch.ones(1, WIDE) * 1e-10, 1)
    torch.testing.assert_close(found[0], head.weight[1].detach(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "weight, options, expected",
    [
        ([1.0, -2e-38], {"alpha": 1.0, "beta": 0.0, "epsilon": 0.0}, [100.0, 0.0]),
        ([1.0, 2.0], {"epsilon": 1e-37, "empty_stream": "reroute"}, [100 / 3, 200 / 3]),
    ],
)
def test_a_stream_that_nobody_enters(weight, options, expected):
    """Mass over a tiny denominator overflows; times a chance of 0 it is 0 all the same."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).float()
    model[0].weight.data = torch.tensor([weight])
    found = bp.RoutingGame(model, output="one", **options).attribute(torch.ones(1, 2), torch.tensor([[100.0]]))
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=1e-5, atol=1e-20)


def test_survival_beyond_float32():
    """In float64 one step's survival may lie below 2⁻²⁵⁰: the law given survival still sums to 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    game = bp.RoutingGame(model, epsilon=1e90)
    a, b = (game.play(torch.rand(1, 2, dtype=torch.float64) + k, 0) for k in (0, 1))
    maps = [bp.hellinger(a, b, conditioning=way).map(conditioned=True) for way in ("kernel", "post-hoc")]
    torch.testing.assert_close(*maps, rtol=1e-6, atol=1e-12)
