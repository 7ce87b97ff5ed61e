"""Walks that arrive, drawn without a walk in vain (S30, S32): against rejection, against laws written out."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from backplay.trajectory.sampling import _p_value
from closeness import assert_near
from mixed import GAMES, Mixed
from narrow import SHAPES, Residual
from sampled import CASES, routing_law


def all_arrive(drawn):
    return bool((drawn.ends == 0).all()) and bool((drawn.states["input"] >= 0).all())


@pytest.mark.parametrize("game, options", GAMES)
@pytest.mark.parametrize("model, shape", CASES)
def test_frequencies(model, shape, game, options):
    """χ² against `α h / Z`, at the input against the marginal over `Z`: attention, pools, sums, maxima."""
    play = game(model().double().eval(), **options).play(torch.randn(shape, dtype=torch.float64), 1)
    drawn = play.sample(4000, seed=1, arriving=True)
    assert all_arrive(drawn)
    for name in drawn.states:
        assert (drawn.check(name) > 1e-4).all(), name
    marginal = play.marginal("input")
    share = marginal.flatten(1).sum(1)
    assert_near(drawn.share, share, what="Z")
    assert_near(drawn.expected("input"), marginal / share.view(-1, *[1] * (marginal.ndim - 1)), what="given arrival")


@pytest.mark.slow
@pytest.mark.parametrize("game, options", GAMES[:4])
@pytest.mark.parametrize("model, shape", CASES)
def test_rejection(model, shape, game, options):
    """The same as drawing all walks and keeping those that arrive: states, players and streams at every node."""
    options = {**options, "epsilon": 1e-3} if game is bp.RoutingGame else options  # enough walks arrive to keep some
    play = game(model().double().eval(), **options).play(torch.randn(1, *shape[1:], dtype=torch.float64), 1)
    drawn, every = play.sample(3000, seed=1, arriving=True), play.sample(60_000, seed=2)
    kept = every.ends[0] == 0
    assert kept.sum() > 300
    for name in drawn.states:
        for table in ("states", "players", "streams"):
            if name in getattr(drawn, table):
                one, other = getattr(drawn, table)[name][0], getattr(every, table)[name][0][kept]
                assert same_law(one, other) > 1e-4, (name, table)


def same_law(one, other):
    """p-value of the χ² test that two samples of whole numbers have one law."""
    values = torch.cat([one, other]).unique()
    table = torch.stack([(sample[:, None] == values).sum(0).double() for sample in (one, other)])
    rare = table.sum(0) < 40
    table = torch.cat([table[:, ~rare], table[:, rare].sum(1, keepdim=True)], 1)
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return 1.0
    expected = table.sum(0) * table.sum(1, keepdim=True) / table.sum()
    statistic = ((table - expected).square() / expected).sum() / 2
    freedom = torch.tensor((table.shape[1] - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic))


@pytest.mark.parametrize("epsilon, tau", [(0.5, 1.0), (20.0, 0.5), (0.3, 2.0)])
def test_whole_trajectories(epsilon, tau):
    """Every trajectory as often as its probability over `Z`, by numpy: logits, streams, neurons, pixels."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    with torch.no_grad():
        model[0].bias.add_(1.0)  # several neurons live, and walks survive them unlike often
    x = torch.randn(1, 4, dtype=torch.float64)
    play = bp.RoutingGame(model, epsilon=epsilon, tau=tau).play(x, 0)
    assert (play.marginal("1") > 0).sum() >= 3
    drawn = play.sample(20_000, seed=2, arriving=True)
    law = routing_law(model, x, drawn, epsilon, tau) / float(play.marginal("input").sum())
    columns = [drawn.states["2"], drawn.streams["2"], drawn.states["0"], drawn.streams["0"], drawn.states["input"]]
    paths = list(zip(*(c[0].tolist() for c in columns), strict=True))
    seen, probability = Counter(paths), dict(zip(paths, law, strict=True))
    assert 1 - 1e-3 < sum(probability.values()) < 1 + 1e-9  # nearly every trajectory that can arrive was drawn
    expected = torch.tensor([probability[p] * drawn.n for p in seen])
    found = torch.tensor([float(seen[p]) for p in seen], dtype=torch.float64)
    assert _p_value(found, expected.double(), drawn.n, 5.0) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("game, options", [(bp.StoppingGame, {}), (bp.RoutingGame, {"epsilon": 0.5})])
def test_tiny_survival(kind, game, options, dtype):
    """One walk in 1e30 arrives, or fewer, and still every drawn one does; residual sums, attention, convolutions."""
    torch.manual_seed(1)
    model = kind(5, 1e-10).to(dtype).eval()
    play = game(model, **options).play(torch.rand(SHAPES[kind], dtype=dtype) + 0.5, 0)
    drawn = play.sample(2000, seed=1, arriving=True)
    assert (drawn.log_share < np.log(1e-30)).all() and torch.isfinite(drawn.log_share).all()
    assert not (play.sample(2000, seed=1).ends == 0).any()
    assert all_arrive(drawn)
    for name in drawn.states:
        assert (drawn.check(name) > 1e-4).all(), name
    # without the survival function: what arrived, over its sum
    log = play.marginal("input", log=True).double()
    assert_near(drawn.expected("input"), log.flatten(1).softmax(1).view(log.shape), 1e-4, what="given arrival")


def test_below_any_float():
    """`Z` itself is 0 as a number; its logarithm and the walks are right."""
    torch.manual_seed(1)
    model = Residual(19, 1e-18).eval()
    play = bp.RoutingGame(model).play(torch.rand(SHAPES[Residual]) + 0.5, 0)
    drawn = play.sample(300, seed=1, arriving=True)
    assert (drawn.log_share < -691.0).all() and not drawn.share.any()
    assert all_arrive(drawn) and (drawn.check("input") > 1e-4).all()


def test_roots():
    """Of several logits those that arrive more often are started at more often; players by the sign of the weight."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    x, weights = torch.randn(2, 4, dtype=torch.float64), torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, -1.0]]).double()
    game = bp.RoutingGame(model, epsilon=1.0)
    drawn = game.play(x, weights).sample(20_000, seed=3, arriving=True)
    shares = torch.stack([game.play(x, k).marginal("input").sum(1) for k in range(3)], 1) * weights.abs()
    expected = shares / shares.sum(1, keepdim=True)
    assert_near(drawn.frequencies("2"), expected, 0.03, scale=1.0, what="first logit")
    signs = weights.sign().gather(1, drawn.states["2"]).long()
    assert torch.equal(drawn.players["2"], signs)


def test_seed_and_words():
    play = bp.RoutingGame(Mixed().double().eval()).play(torch.randn(2, 3, 3, dtype=torch.float64), 1)
    first, second, other = (play.sample(200, seed=s, arriving=True) for s in (4, 4, 5))
    assert all(torch.equal(first.states[n], second.states[n]) for n in first.states)
    assert any(not torch.equal(first.states[n], other.states[n]) for n in first.states)
    assert "all reach the input" in repr(first) and first.arriving and not play.sample(5).arriving
    assert_near(play.sample(5).share, first.share, what="Z")


def test_refusals():
    """Where no walk arrives there is none to draw; the samples are named."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    play = bp.StoppingGame(model).play(torch.tensor([[1.0, 1.0], [-1.0, -2.0]], dtype=torch.float64), 1)
    with pytest.raises(bp.BackplayError, match=r"no walk of samples \[1\] reaches the input") as error:
        play.sample(10, arriving=True)
    assert len(str(error.value).splitlines()) <= 2
    assert (play.sample(10).ends[1] != 0).all()
    for wrong in (1, "yes", None):
        with pytest.raises(ValueError, match="arriving="):
            play.sample(10, arriving=wrong)
