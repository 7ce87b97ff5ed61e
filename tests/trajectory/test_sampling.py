"""Sampled trajectories against the marginals and against each other (S32)."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from closeness import assert_near
from mixed import GAMES
from sampled import CASES, Picture, routing_law


@pytest.mark.parametrize("game, options", GAMES)
@pytest.mark.parametrize("model, shape", CASES)
def test_frequencies(model, shape, game, options):
    """def:trajectory-distribution: χ² at every node, and the ends; p-values of one fixed seed."""
    model, x = model().double().eval(), torch.randn(shape, dtype=torch.float64)
    play = game(alike(model, x), **options).play(x, 1)
    drawn = play.sample(4000, seed=1)
    mixing = [n for n in play.visited() if n.kind == "mix" and play.kernel(n).crossed is not None]
    crossed = {node for n in mixing for node in (n.projection, *n.wires)}  # V projections and what follows them (S23)
    assert set(drawn.states) <= {n.name for n in {*play.visited(), *crossed}}
    for name in drawn.states:
        assert (drawn.check(name) > 1e-4).all(), name
    assert_near((drawn.ends == -1).double().mean(1), play.cemetery, scale=1.0, relative=0.04, what="†")
    assert_near((drawn.ends == -2).double().mean(1), play.constant, scale=1.0, relative=0.04, what="constants")
    assert_near(drawn.frequencies("input").flatten(1).sum(1), (drawn.ends == 0).double().mean(1), what="survivors")


def test_seed_and_players():
    """A seed fixes every draw; players and streams are ±1 where a walk stands, and switch on −."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    play = bp.RoutingGame(model).play(torch.randn(3, 4, dtype=torch.float64), 0)
    first, second, other = play.sample(50, seed=4), play.sample(50, seed=4), play.sample(50, seed=5)
    assert all(torch.equal(first.states[n], second.states[n]) for n in first.states)
    assert any(not torch.equal(first.states[n], other.states[n]) for n in first.states)
    for name, states in first.states.items():
        assert torch.equal(states >= 0, first.players[name] != 0)
    gone_on = first.players["1"] != 0
    assert torch.equal(first.players["1"][gone_on], (first.players["2"] * first.streams["2"])[gone_on])


def test_overlap_by_monte_carlo():
    """BC = E_A √(Π_B / Π_A): sampled trajectories of A, weighed by the kernels of both plays."""
    torch.manual_seed(3)
    first, second = (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval() for _ in range(2))
    x = torch.randn(1, 4, dtype=torch.float64)
    a, b = (bp.StoppingGame(m).play(x, 0) for m in (first, second))
    drawn = a.sample(40_000, seed=2)
    weight = torch.ones(1, drawn.n, dtype=torch.float64)
    hidden, pixel = drawn.states["1"], drawn.states["input"]
    for below, model_index, alive in ((hidden, 2, None), (pixel, 0, drawn.states["0"])):
        rows = [m[model_index].weight / m[model_index].weight.abs().sum(1, keepdim=True) for m in (first, second)]
        row = torch.zeros_like(below) if alive is None else alive
        there = (below >= 0) & (row >= 0)
        p, q = (r.detach()[row.clamp(min=0), below.clamp(min=0)] for r in rows)
        ratio = torch.where(p * q > 0, (q / p).clamp(min=0).sqrt(), 0)
        weight = torch.where(there, weight * ratio, weight)
    gates = [m[0](x)[0] > 0 for m in (first, second)]
    agree = (gates[0] == gates[1])[hidden]
    weight = weight * agree
    h = bp.hellinger(a, b)
    spread = float(weight.std() / drawn.n**0.5)
    assert abs(float(weight.mean() - h.bc[0])) < 5 * spread + 1e-9


@pytest.mark.parametrize("epsilon, tau", [(0.5, 1.0), (0.1, 0.5), (0.3, 2.0)])
def test_routing_overlap_by_monte_carlo(epsilon, tau):
    """BC, overlap in † and overlap given survival from trajectories of A, weighed by both laws written out."""
    torch.manual_seed(3)
    models = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval() for _ in range(2)]
    x = torch.randn(1, 4, dtype=torch.float64)
    a, b = (bp.RoutingGame(alike(m, x), epsilon=epsilon, tau=tau).play(x, 0) for m in models)
    drawn, h = a.sample(40_000, seed=2), bp.hellinger(a, b)
    own, other = (routing_law(m, x, drawn, epsilon, tau) for m in models)
    assert (own > 0).all()  # what is drawn is possible
    weight, ends = np.sqrt(other / own), drawn.ends[0].numpy()
    expected = {
        "BC": (weight, h.bc),
        "β(†)": (weight * (ends == -1), h.cemetery_overlap),
        "survivors": (weight * (ends == 0), h.bc_surviving * (h.survival_a * h.survival_b).sqrt()),
        "Z_A": (1.0 * (ends == 0), h.survival_a),
    }
    for name, (sample, found) in expected.items():
        spread = sample.std() / np.sqrt(drawn.n)
        assert abs(sample.mean() - float(found[0])) < 4 * spread + 1e-9, name
    assert 0.01 < float(h.bc[0]) < 0.99


def test_errors():
    play = bp.StoppingGame(Picture().double().eval()).play(torch.randn(1, 3, 8, 8, dtype=torch.float64), 1)
    for n in (0, 1.5, True):
        with pytest.raises(ValueError, match="n="):
            play.sample(n)


class SequenceFirst(nn.Module):
    """Tokens before samples, as `nn.Transformer` has them by default, and an ensemble whose members are stacked."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(3))

    def forward(self, x):
        pooled = self.encoder(x.transpose(0, 1)).mean(0)
        return torch.stack([head(pooled) for head in self.heads]).mean(0)


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_samples_that_do_not_lie_first(game):
    """Walks are drawn wherever the samples of a batch lie, as many samples as there are members or not."""
    model = SequenceFirst().double().eval()
    for batch in (3, 1):
        play = game(model).play(torch.randn(batch, 5, 4, dtype=torch.float64), 1)
        drawn = play.sample(2000, seed=2)
        for name in drawn.states:
            assert (drawn.check(name) > 1e-4).all(), name
