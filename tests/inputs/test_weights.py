"""Weights over the logits as a target (S26b), against trajectories written out, autograd and single classes."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import backplay as bp
from against_laws import compare
from closeness import array, assert_near, unscaled
from enumerated import examples, solved, tensor
from oracles import laws, strategies
from oracles.walks import MINUS, PLUS, Routing, Stopping, TooManyTrajectories, count_trajectories, enumerate_walks

pytestmark = pytest.mark.capture

F64 = torch.float64


def net(seed=0, outputs=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, outputs)).double().eval()


def batch(n=3):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1), dtype=F64)


def gradient(model, x, weights):
    x = x.clone().requires_grad_()
    return torch.autograd.grad((model(x) * weights).sum(), x)[0]


GAMES = [
    lambda m: bp.StoppingGame(m),
    lambda m: bp.RoutingGame(m, epsilon=0.1),
    lambda m: bp.RoutingGame(m, tau=0.6),
    lambda m: bp.RoutingGame(m, output="one"),
]


# against trajectories -------------------------------------------------------------------------------
class Side:
    """A play on weights, the walks of its samples and their laws."""

    def __init__(self, dag, network, x, weights, kind, options):
        nodes, found = solved(dag, x)
        self.walks = [Stopping(nodes, v) if kind == "stopping" else Routing(nodes, v, **options) for v in found]
        self.logits = np.array([v[-1] for v in found])
        assume(all(count_trajectories(w, k) <= 1500 for w in self.walks for k in range(len(weights[0]))))
        try:
            self.laws = [laws.mixture(w, row) for w, row in zip(self.walks, weights, strict=True)]
        except TooManyTrajectories:
            assume(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            game = bp.StoppingGame(network) if kind == "stopping" else bp.RoutingGame(network, **options)
        self.play = game.play(tensor(dag, x), torch.as_tensor(weights))
        self.weights, self.kind = weights, kind


def compare_play(side):
    """Occupation is the pull of w, marginals and ends are those of the walk from `|w| / Σ|w|`."""
    play = side.play
    occupation = play.occupation("input")
    plus, minus = (unscaled(part, occupation.log_scale) for part in (occupation.plus, occupation.minus))
    for n, (walk, row) in enumerate(zip(side.walks, side.weights, strict=True)):
        gamma, marginal, ends, total = 0.0, 0.0, np.zeros(2), np.abs(row).sum()
        for k, w in enumerate(row):
            if w == 0:
                continue
            outcome = enumerate_walks(walk, k, player=MINUS if w < 0 else PLUS)
            gamma = gamma + abs(w) * outcome.occupation[0]
            marginal = marginal + abs(w) / total * outcome.marginal[0]
            ends += abs(w) / total * np.array([outcome.cemetery, outcome.constant])
        size = max(1.0, np.abs(gamma).max())
        assert_near(array(plus)[n], gamma[PLUS], scale=size, what="Γ₊")
        assert_near(array(minus)[n], gamma[MINUS], scale=size, what="Γ₋")
        assert_near(play.marginal("input")[n], marginal, scale=1.0, what="marginal")
        assert_near(torch.stack([play.cemetery[n], play.constant[n]]), ends, scale=1.0, what="ends")
    assert_near(play.value, (side.weights * side.logits).sum(1), scale=max(1, np.abs(side.logits).max()), what="value")
    assert play.health().ok, play.health()


@pytest.mark.slow
@examples(8)
@given(st.data())
def test_against_trajectories(data):
    """Plays of weights, and distances between two of them: of other weights, of the same, of a class."""
    dag = data.draw(strategies.dense_dags())
    outputs = dag.size(len(dag.steps) - 1)
    x = data.draw(strategies.inputs(dag, batch=2))
    rows = st.lists(st.integers(-3, 3), min_size=outputs, max_size=outputs).filter(any)
    weights, others = (np.array([data.draw(rows), data.draw(rows)]) / 2.0 for _ in range(2))
    network = bp.capture(dag.module(), tensor(dag, x))
    options = data.draw(strategies.routing_options())
    for kind in ("stopping", "routing"):
        a = Side(dag, network, x, weights, kind, options)
        compare_play(a)
        for second in (others, weights[:, ::-1].copy()):
            b = Side(dag, network, x[::-1].copy(), second, kind, options)
            compare(a.play, b.play, list(zip(a.laws, b.laws, strict=True)))


# against single classes -----------------------------------------------------------------------------
@pytest.mark.parametrize("make", GAMES)
def test_one_hot_weights_are_the_class(make):
    """Everything that a play tells, whatever the size of the one weight."""
    game, x, target = make(net()), batch(), [2, 0, 3]
    hot = nn.functional.one_hot(torch.tensor(target), 4).double()
    plain, weighted = game.play(x, target), game.play(x, hot)
    assert_near(weighted.value, plain.value)
    assert_near(weighted.attribution(), plain.attribution(), 1e-12)
    for name in ("input", "2"):
        assert_near(weighted.marginal(name), plain.marginal(name), 1e-12)
        assert_near(weighted.occupation(name).difference, plain.occupation(name).difference, 1e-12)
    assert_near(weighted.cemetery, plain.cemetery, 1e-12)
    assert str(weighted.health()) == str(plain.health())
    assert torch.equal(weighted.sample(40).ends, plain.sample(40).ends), "nothing is drawn at the root"
    other = game.play(batch(3) + 0.3, 1)
    pairs = [
        (bp.hellinger(p, other), bp.hellinger(q, other)) for p, q in ((weighted, plain), (game.play(x, 7 * hot), plain))
    ]
    for found, expected in pairs:
        assert_near(found.distance, expected.distance, 1e-10)
        assert_near(found.surviving, expected.surviving, 1e-10)
        assert_near(found.disagreement, expected.disagreement, 1e-10)
    assert_near(bp.hellinger(weighted, plain).distance, torch.zeros(3), scale=1e3, what="one law")
    assert_near(game.attribute(x, 7 * hot), 7 * game.attribute(x, target))


@pytest.mark.parametrize("make", GAMES)
def test_maps_add_up_over_targets(make):
    """Σ_k w_k times the map of class k; one set of weights serves every sample."""
    game, x = make(net()), batch()
    weights = torch.tensor([0.5, -2.0, 0.0, 1.5], dtype=F64)
    expected = sum(float(w) * game.attribute(x, k) for k, w in enumerate(weights))
    assert_near(game.attribute(x, weights), expected)
    assert_near(game.attribute(x, weights.expand(3, 4)), expected)
    assert_near(game.attribute(x, weights.numpy()), expected)
    assert_near(game.play(x, weights).attribution(), expected)
    assert_near(game.play(x, weights.float()).value, (net()(x) * weights).sum(1))


def test_stopping_map_is_the_gradient_of_the_value():
    """ "Why A rather than B" is the gradient of a difference."""
    model, x = net(), batch()
    weights = torch.randn(3, 4, dtype=F64)
    assert_near(bp.StoppingGame(model).attribute(x, weights), gradient(model, x, weights))
    against = torch.tensor([1.0, 0, -1, 0], dtype=F64)
    assert_near(bp.StoppingGame(model).attribute(x, against), gradient(model, x, against))


def test_segmentation_summed_over_pixels():
    """Weights like (B, K, H, W) explain a region."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)).double().eval()
    x, weights = torch.randn(2, 2, 5, 5, dtype=F64), torch.zeros(3, 5, 5, dtype=F64)
    weights[1, 1:4, 2:] = 1.0
    assert_near(bp.StoppingGame(model).attribute(x, weights), gradient(model, x, weights))
    parts = [bp.RoutingGame(model).attribute(x, (1, r, c)) for r in range(1, 4) for c in range(2, 5)]
    assert_near(bp.RoutingGame(model).attribute(x, weights), torch.stack(parts).sum(0))


def test_sampling_starts_at_every_weighted_logit():
    """Starts are drawn by `|w| / Σ|w|`, with the player of the weight's sign."""
    play = bp.StoppingGame(net()).play(batch(), torch.tensor([1.0, 0, -3, 0], dtype=F64))
    walks = play.sample(4000, seed=3)
    first = play.network.output.name
    starts, players = walks.states[first], walks.players[first]
    assert set(starts.unique().tolist()) == {0, 2}
    assert ((players == 1) == (starts == 0)).all() and ((players == -1) == (starts == 2)).all()
    assert ((starts == 2).double().mean(1) - 0.75).abs().max() < 0.03
    assert (walks.check("input") > 1e-4).all()


METHODS = "gradient gradient_x_input smoothgrad integrated_gradients deeplift sg rg lrp_epsilon cp_lrp lrp_box"


@pytest.mark.parametrize("method", METHODS.split())
def test_methods_take_weights(method):
    """Linear methods add up over targets; one-hot weights are the class in all of them."""
    model, x = net(), batch()
    weights = torch.tensor([0.5, -2.0, 0.0, 1.5], dtype=F64)
    maps = [bp.explain(model, x, k, method=method) for k in range(4)]
    assert_near(bp.explain(model, x, torch.eye(4, dtype=F64)[2], method=method), maps[2])
    assert_near(
        bp.explain(model, x, weights, method=method), sum(float(w) * m for w, m in zip(weights, maps, strict=True))
    )


def test_images_take_weights():
    """Class activation maps are linear in the gradient; an average keeps the weights."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).double()
    x, weights = torch.randn(2, 3, 8, 8, dtype=F64), torch.tensor([1.0, -1.0, 0.5], dtype=F64)
    for method, params in (("gradcam", {}), ("hirescam", {}), ("rg_eq", {"n": 3})):
        maps = [bp.explain(model, x, k, method=method, **params) for k in range(3)]
        expected = sum(float(w) * m for w, m in zip(weights, maps, strict=True))
        assert_near(bp.explain(model, x, weights, method=method, **params), expected, what=method)


# refusals -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "weights, kind, word",
    [
        (torch.zeros(4), ValueError, "all 0"),
        (torch.cat([torch.ones(2, 4), torch.zeros(1, 4)]), ValueError, "sample 2"),
        (torch.tensor([1.0, float("nan"), 0, 0]), ValueError, "NaN"),
        (torch.tensor([1.0, float("inf"), 0, 0]), ValueError, "infinite"),
        (torch.ones(5), ValueError, "weights"),
        (torch.ones(2, 4), ValueError, "weights"),
        (torch.ones(3, 4, 1), ValueError, "weights"),
    ],
)
def test_bad_weights(weights, kind, word):
    """What was given and what is accepted."""
    for call in (bp.StoppingGame(net()).attribute, bp.RoutingGame(net()).play, lambda x, t: bp.explain(net(), x, t)):
        with pytest.raises(bp.BackplayError, match=word) as caught:
            call(batch(), weights.double())
        assert isinstance(caught.value, kind)
