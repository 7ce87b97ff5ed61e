"""Modes by layer: every node plays by its own modes; patterns are module paths, later ones win (S13-S24)."""

import functools
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import backplay as bp
import hand
from against_laws import compare as compare_laws
from attention_blocks import drawn
from closeness import assert_near
from enumerated import compare_play, draw_inputs, examples, require, solved, tensor
from oracles import by_layer, laws, strategies
from oracles.attention import RoutingWalk, describe
from oracles.dag import Dag
from oracles.walks import count_trajectories, enumerate_walks

pytestmark = pytest.mark.usefixtures("without_gradients")


# against the enumeration of every trajectory --------------------------------------------------------------------------
def drawn_layers(data, dag):
    """For some steps of a network, keywords that hold there."""
    steps = [n for _, n in dag.addresses() if n > 0]
    chosen = data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=4))
    return [(n, data.draw(strategies.routing_options())) for n in chosen]


def play_routing(data, dag):
    x, targets = draw_inputs(data, dag)
    nodes, found = solved(dag, x)
    options, layers = data.draw(strategies.routing_options()), drawn_layers(data, dag)
    walks = [by_layer.routing(nodes, v, options, layers) for v in found]
    require(all(count_trajectories(w, t) <= 4000 for w, t in zip(walks, targets, strict=True)))
    outcomes = [enumerate_walks(w, t) for w, t in zip(walks, targets, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alpha − beta ≠ 1 warns once
        game = bp.RoutingGame(dag.module(), **options, layers={f"steps.{n - 1}": k for n, k in layers})
        play = game.play(tensor(dag, x), targets)
        compare_play(play, outcomes, [v[-1][t] for v, t in zip(found, targets, strict=True)], dag.addresses())
        logits = np.array([v[-1][t] for v, t in zip(found, targets, strict=True)])[:, None]
        relevance = np.stack([o.difference(0) for o in outcomes]) * logits
        largest = max(o.occupation[0].max() for o in outcomes) * np.abs(logits).max()
        scale = np.abs(relevance).max() + 1e-3 * largest
        assert_near(game.attribute(tensor(dag, x), targets), relevance, scale=scale, what="attribute")


@examples(20)
@given(st.data())
def test_dense_networks(data):
    """S12-S18 node by node: α, β, ε, τ, bias, empty streams and sums, drawn for some layers each."""
    play_routing(data, data.draw(strategies.dense_dags()))


@pytest.mark.slow
@examples(20)
@given(st.data())
def test_convolutional_networks(data):
    """The same with convolutions, pools, batch norms folded or not."""
    play_routing(data, data.draw(strategies.conv_dags()))


def residual(seed):
    """Two ReLU layers, a residual sum of the second with the first, a constant, a third layer and a head.

    Steps: linear 1, gate 2, linear 3, gate 4, sum 5, constant 6, linear 7, gate 8, linear 9.
    """
    generator = np.random.default_rng(seed)

    def weights(*shape):
        return generator.normal(size=shape)

    dag = Dag((3,))
    first = dag.gate(dag.linear(0, weights(3, 3), weights(3)), "relu")
    both = dag.add(first, dag.gate(dag.linear(first, weights(3, 3), weights(3)), "relu"))
    hidden = dag.gate(dag.linear(dag.cat_constant(both, [0.75]), weights(4, 4), weights(4)), "relu")
    dag.linear(hidden, weights(2, 4), weights(2))
    return dag


@functools.cache
def captured():
    """Two networks of one graph, captured once."""
    dags = residual(1), residual(2)
    return [(dag, bp.capture(dag.module(), torch.ones(2, 3, dtype=torch.float64))) for dag in dags]


X = np.array([[1.0, -0.5, 0.75], [0.5, 1.25, -1.0]])
Y = np.array([[0.75, 0.25, 1.0], [-1.5, 0.5, 0.25]])

ROUTING = {
    "temperatures": ({"epsilon": 0.1}, [(3, {"tau": 0.5}), (7, {"tau": 2.0, "epsilon": 0.05})]),
    "risk in one layer": ({"input_variance": 0.1}, [(4, {"risk": -0.5})]),
    "risk but in one layer": ({"input_variance": 0.1, "risk": -0.7}, [(2, {"risk": 0.0}), (8, {"risk": 0.3})]),
    "risk_forward": ({"input_variance": 0.1, "risk_forward": True}, [(2, {"risk": -0.5}), (8, {"risk": -0.3})]),
    "noise in one layer": ({"gate": "noisy", "gate_noise": 0.7}, [(4, {"gate": "exact"})]),
    "noisy risk": ({"input_variance": 0.1, "risk": -0.5}, [(8, {"gate": "noisy", "gate_noise": 0.3, "risk": -1.0})]),
    "entropy bias": ({}, [(2, {"entropy_bias": 0.3}), (8, {"entropy_bias": 0.1})]),
    "players who know τ": ({"tau_forward": True, "epsilon": 0.1}, [(1, {"tau": 0.5}), (7, {"tau": 2.0})]),
    "streams": ({}, [(1, {"bias": "absorb"}), (7, {"empty_stream": "reroute"}), (5, {"residual": "proportional"})]),
    "discounts": ({}, [(1, {"alpha": 1.0, "beta": 0.0}), (9, {"alpha": 1.5, "beta": 0.5})]),
}
STOPPING = {
    "risk": ({"input_variance": 0.1}, [(2, {"risk": -0.5}), (8, {"risk": -0.2})]),
    "softplus": ({}, [(2, {"softplus": 0.4}), (8, {"softplus": 1.5})]),
    "softplus but in one layer": ({"softplus": 0.4}, [(4, {"softplus": None})]),
    "noise": ({}, [(4, {"gate": "noisy", "gate_noise": 0.7})]),
    "entropy bias": ({"entropy_bias": 1.0}, [(2, {"entropy_bias": 0.0})]),
}


def sides(kind, options, layers):
    """Plays and laws of two networks on two inputs, the second pair with another target."""
    patterns = {f"steps.{n - 1}": keywords for n, keywords in layers}
    for (dag, network), x, targets in zip(captured(), (X, Y), ([0, 0], [0, 1]), strict=True):
        game = (bp.RoutingGame if kind == "routing" else bp.StoppingGame)(network, **options, layers=patterns)
        walk = by_layer.moded_routing if kind == "routing" else by_layer.moded_stopping
        walks = [walk(dag.nodes(), sample, options, layers) for sample in x]
        yield game.play(torch.as_tensor(x), targets), walks, targets, dag


@pytest.mark.parametrize("kind, mode", [*(("routing", m) for m in ROUTING), *(("stopping", m) for m in STOPPING)])
def test_modes_by_layer(kind, mode):
    """What gates show, how open they are, forward passes and policies: occupations, ends, distances (S19-S21, S28)."""
    options, layers = (ROUTING if kind == "routing" else STOPPING)[mode]
    found = list(sides(kind, options, layers))
    for play, walks, targets, dag in found:
        outcomes = [enumerate_walks(w, t) for w, t in zip(walks, targets, strict=True)]
        logits = np.array([w.values[-1][t] for w, t in zip(walks, targets, strict=True)])
        compare_play(play, outcomes, logits, dag.addresses())
        certificate = bp.certify(play, states=400)
        assert certificate.ok, certificate
    pairs = [[laws.law(w, t) for w, t in zip(walks, targets, strict=True)] for _, walks, targets, _ in found]
    compare_laws(found[0][0], found[1][0], list(zip(*pairs, strict=True)))
    for (play, *_), (plain, *_) in zip(found, sides(kind, options, []), strict=True):
        assert (play.attribution() - plain.attribution()).abs().max() > 1e-4, "the layers do nothing here"


LayeredAttention = by_layer.layered(RoutingWalk, by_layer.PLAIN)


@pytest.mark.parametrize(
    "name", ["fused, additive", "spelled out", "patches, packed", "grouped, fused", "no projection"]
)
@pytest.mark.parametrize("at", ["attend", "others"])
def test_attention(name, at):
    """S23: at a composite the modes of the mixing hold, for the choice of the key and of the input alike."""
    block, network, x, _ = drawn(name, 11, 0.0)
    modes = {"tau": 0.5, "epsilon": 0.1, "bias": "absorb", "alpha": 1.5, "beta": 0.5}
    samples = [describe(block, sample) for sample in x]
    paths = samples[0].paths
    layers = [(paths[path], modes) for path in paths if (path == "attend") == (at == "attend")]
    walks = [LayeredAttention(s.nodes, s.values, by_layer.modes_by_step({}, layers)) for s in samples]
    outcomes = [enumerate_walks(w, 0, limit=300_000) for w in walks]
    patterns = {"attend": modes} if at == "attend" else {"*": modes, "attend": {k: _default(k) for k in modes}}
    play = bp.RoutingGame(network, layers=patterns).play(block.shaped(x), 0)
    expected = np.stack([o.difference(0) for o in outcomes])
    difference = play.occupation("input")
    signed = difference.difference.flatten(1).numpy() * np.exp(difference.difference_log_scale.numpy())[:, None]
    assert_near(signed, expected, scale=np.abs(expected).max(), what="Γ₊ − Γ₋")
    assert_near(play.cemetery, [o.cemetery for o in outcomes], scale=1.0, what="cemetery")
    assert play.health().ok and bp.certify(play, states=300).ok


def _default(name):
    return getattr(bp.RoutingGame(hand.mlp(2, 2)), name)


def test_averse_attention_by_layer():
    """S24: λ_sm in one of two blocks alone."""
    layer = lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)  # noqa: E731
    model = nn.Sequential(layer(), layer(), nn.Flatten(), nn.Linear(12, 3)).double().eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    game = bp.RoutingGame(model, input_variance=0.5, attention_score="logit")
    everywhere = game.replace(attention_risk=-5.0).attribute(x, 1)
    both = game.replace(layers={"0": {"attention_risk": -5.0}, "1": {"attention_risk": -5.0}}).attribute(x, 1)
    torch.testing.assert_close(both, everywhere, rtol=1e-12, atol=1e-14)
    maps = [game.replace(layers={name: {"attention_risk": -5.0}}).attribute(x, 1) for name in ("0", "1")]
    for one, other in ((maps[0], maps[1]), (maps[0], everywhere), (maps[1], everywhere)):
        assert (one - other).abs().max() > 1e-6


# patterns -------------------------------------------------------------------------------------------------------------
class Nested(nn.Module):
    """Modules within modules, a module that is called twice, a batch norm that is folded, and operators of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
        )
        self.twice, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.body(x).mean((2, 3))
        return self.head(torch.relu(self.twice(torch.relu(self.twice(h)))))


def nested():
    torch.manual_seed(0)
    return Nested().double().eval(), torch.randn(2, 2, 5, 5, dtype=torch.float64)


GLOBAL = [
    (bp.RoutingGame, {"alpha": 1.5, "beta": 0.5, "epsilon": 0.1, "tau": 0.6}),
    (bp.RoutingGame, {"risk": -1.0, "gate": "noisy", "gate_noise": 0.4, "bias": "absorb"}),
    (bp.RoutingGame, {"tau": 2.0, "entropy_bias": 0.2, "empty_stream": "reroute", "residual": "proportional"}),
    (bp.StoppingGame, {"risk": -1.0, "entropy_bias": 0.1}),
    (bp.StoppingGame, {"softplus": 0.4, "residual": "proportional"}),
]


@pytest.mark.parametrize("game, keywords", GLOBAL)
@pytest.mark.parametrize("build", [nested, lambda: (hand.attention(), torch.randn(2, 3, 3, dtype=torch.float64))])
def test_everywhere_is_the_game(build, game, keywords):
    """The pattern "*" means every node, those in no module among them."""
    model, x = build()
    plain = game(model, input_variance=0.3)
    expected = plain.replace(**keywords).play(x, 1)
    play = plain.replace(layers={"*": keywords}).play(x, 1)
    torch.testing.assert_close(play.attribution(), expected.attribution(), rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(play.marginal("input"), expected.marginal("input"), rtol=1e-11, atol=1e-14)
    assert (play.attribution() - plain.attribute(x, 1)).abs().max() > 1e-6
    torch.testing.assert_close(
        plain.replace(layers={"*": keywords}).attribute(x, 1), expected.attribution(), rtol=1e-11, atol=1e-14
    )


def modes_at(layers):
    """τ and ε of every node of the nested network, by name."""
    model, x = nested()
    game = bp.RoutingGame(model, layers=layers)
    return {n.name: (game.modes.at(n).tau, game.modes.at(n).epsilon) for n in game.network(x).nodes}


def test_which_nodes_a_pattern_means():
    """The module's own path or that of any module around it; a folded batch norm's too; every call of a module."""
    plain = modes_at(None)
    changed = lambda layers: {n for n, m in modes_at(layers).items() if m != plain[n]}  # noqa: E731
    assert changed({"body.0": {"tau": 0.5}}) == {"body.0.0", "body.0.2"}
    assert changed({"body.0.*": {"tau": 0.5}}) == {"body.0.0", "body.0.2"}
    assert changed({"body": {"tau": 0.5}}) == {"body.0.0", "body.0.2", "body.1.0", "body.1.1"}
    assert changed({"body.0.1": {"tau": 0.5}}) == {"body.0.0"}
    assert changed({"body.?.0": {"tau": 0.5}}) == {"body.0.0", "body.1.0"}
    assert changed({"tw*": {"tau": 0.5}}) == {"twice", "twice#2"}
    assert changed({"*": {"tau": 0.5}}) == set(plain)


def test_later_patterns_win():
    """Keyword by keyword: what a later pattern leaves out, an earlier one has said."""
    found = modes_at({"body": {"tau": 0.5, "epsilon": 0.1}, "body.1": {"tau": 2.0}, "body.1.0": {"epsilon": 0.0}})
    assert found["body.0.0"] == (0.5, 0.1) and found["body.1.1"] == (2.0, 0.1) and found["body.1.0"] == (2.0, 0.0)
    assert found["head"] == (1.0, 0.5)
    assert modes_at({"body.1": {"tau": 2.0}, "body": {"tau": 0.5}})["body.1.0"] == (0.5, 0.5)


@pytest.mark.parametrize(
    "game, layers, words",
    [
        (bp.RoutingGame, {"body.0": {"taux": 1.0}}, "unknown keyword 'taux' at 'body.0'.*did you mean tau"),
        (bp.RoutingGame, {"body.0": {"tau": 0.0}}, r"layers\['body.0'\]: tau=0.0 is out of range"),
        (bp.RoutingGame, {"body.0": {"input_variance": 1.0}}, "'input_variance' at 'body.0' has no meaning by layer"),
        (bp.RoutingGame, {"body.0": {"tau_forward": True}}, "'tau_forward' at 'body.0' has no meaning by layer"),
        (bp.RoutingGame, {"body.0": {"output": "one"}}, "'output' at 'body.0' has no meaning by layer"),
        (bp.StoppingGame, {"*": {"multiply_by_input": True}}, "'multiply_by_input' at .* has no meaning by layer"),
        (bp.RoutingGame, {"*": {"layers": {}}}, "'layers' at .* has no meaning by layer"),
        (bp.StoppingGame, {"body.0": {"tau": 0.5}}, "unknown keyword 'tau'"),
        (bp.RoutingGame, {"body.0": 0.5}, "must be a mapping"),
        (bp.RoutingGame, {3: {"tau": 0.5}}, "must be a mapping"),
        (bp.RoutingGame, ["body.0"], "must be a mapping"),
        (bp.StoppingGame, {"body.0": {"softplus": 0.5}, "head": {"risk": -1.0}}, "use one"),
    ],
)
def test_what_is_refused_at_once(game, layers, words):
    """By name, before any capture; two lines at most."""
    with pytest.raises(ValueError, match=words) as refused:
        game(nested()[0], layers=layers)
    assert isinstance(refused.value, bp.BackplayError) and str(refused.value).count("\n") < 2


@pytest.mark.parametrize(
    "layers, words",
    [
        ({"bodies.*": {"tau": 0.5}}, "'bodies.\\*' matches no node"),
        ({"*": {"tau": 0.5}, "body.0.3": {"tau": 1.0}}, "'body.0.3' matches no node.*did you mean body.0"),
        ({"body.0": {"gate_noise": 2.0}}, "gate_noise=2.0 is idle"),
    ],
)
def test_what_the_network_refuses(layers, words):
    """A pattern that matches nothing, and keywords that do not act together at a node."""
    model, x = nested()
    for solve in (bp.RoutingGame(model, layers=layers).play, bp.RoutingGame(model, layers=layers).attribute):
        with pytest.raises(ValueError, match=words):
            solve(x, 1)
    with pytest.raises(ValueError, match=words):
        bp.explain(model, x, 1, method="rg", layers=layers)


def test_together_they_act():
    """What one pattern gives another may complete: no order of checks refuses it."""
    model, x = nested()
    layers = {"body.*": {"gate": "noisy"}, "body.1": {"gate_noise": 0.2}}
    map_of = lambda layers: bp.RoutingGame(model, layers=layers).attribute(x, 1)  # noqa: E731
    assert (map_of(layers) - map_of({"body.*": {"gate": "noisy"}})).abs().max() > 1e-6


def test_what_a_layer_stills():
    """A layer with exact gates, or with attention by gradients, needs no word on what the game has for the others."""
    model, x = nested()
    game = bp.RoutingGame(model, gate="noisy", gate_noise=0.3)
    found = game.replace(layers={"body.1": {"gate": "exact"}}).attribute(x, 1)
    assert (found - game.attribute(x, 1)).abs().max() > 0.01 * found.abs().max()
    others = {"*": {"gate": "noisy", "gate_noise": 0.3}, "body.1": {"gate": "exact", "gate_noise": 1.0}}
    torch.testing.assert_close(found, bp.RoutingGame(model, layers=others).attribute(x, 1), rtol=1e-12, atol=1e-14)
    tokens = torch.randn(2, 3, 3, dtype=torch.float64)
    averse = bp.RoutingGame(hand.attention(), attention_risk=-5.0, input_variance=0.5)
    found = averse.replace(layers={"*": {"attention": "gradient"}}).attribute(tokens, 1)
    expected = bp.RoutingGame(hand.attention(), attention="gradient").attribute(tokens, 1)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)


def test_discounts_that_do_not_conserve_warn():
    """α − β = 1 at every layer is no reason to warn, anything else is, once."""
    model, x = nested()
    bp.RoutingGame(model, layers={"body": {"alpha": 1.0}, "body.*": {"beta": 0.0}}).attribute(x, 1)
    game = bp.RoutingGame(model, layers={"body": {"alpha": 3.0}})
    with pytest.warns(UserWarning, match="alpha - beta = 2"):
        game.attribute(x, 1)
    game.attribute(x, 1)


def test_layers_are_kept_as_other_keywords_are():
    """Frozen, shown, handed on by `replace`, `to_dict` and to other processes; a dict that was given may change."""
    model, x = nested()
    given = {"body.*": {"tau": 0.5}}
    game = bp.RoutingGame(model, layers=given)
    expected = game.attribute(x, 1)
    given["body.*"]["tau"] = 5.0
    game.layers["body.*"]["tau"] = 7.0
    assert game.layers == {"body.*": {"tau": 0.5}} == game.to_dict()["layers"]
    assert "layers={'body.*': {'tau': 0.5}}" in repr(game)
    with pytest.raises(AttributeError, match="frozen"):
        game.layers = {}
    with pytest.raises(TypeError):
        game.layers["head"] = {}
    for twin in (
        game.replace(tau=3.0).replace(tau=1.0), bp.RoutingGame(model, **game.to_dict()),
        pickle.loads(pickle.dumps(game)),
    ):  # fmt: skip
        torch.testing.assert_close(twin.attribute(x, 1), expected, rtol=1e-13, atol=0)
    assert game.replace(layers=None).layers is None and bp.RoutingGame(model, layers={}).layers is None
    with pytest.raises(ValueError, match="cannot be swept"):
        bp.sweep(game, x, 1, layers=[None, given])
    swept = bp.sweep(game, x, 1, epsilon=[0.5, 0.1])
    torch.testing.assert_close(swept[(("epsilon", 0.5),)], expected, rtol=1e-12, atol=1e-14)


def test_play_by_layer():
    """Sampling, health and values of a play go by the same kernels; `explain` takes the keyword."""
    model, x = nested()
    layers = {
        "body.0": {"tau": 0.5, "epsilon": 0.05},
        "body.1": {"empty_stream": "reroute", "residual": "proportional"},
    }
    play = bp.RoutingGame(model, layers=layers).play(x, 1)
    torch.testing.assert_close(
        bp.explain(model, x, 1, method="rg", layers=layers), play.attribution(), rtol=1e-11, atol=1e-14
    )
    walks = play.sample(4000, seed=1)
    frequencies = walks.frequencies("input")
    assert (frequencies - play.marginal("input")).abs().max() < 5 * 0.5 / 4000**0.5
    assert play.health().ok
    cold = bp.RoutingGame(model, **layers["body.0"]).play(x, 1)
    torch.testing.assert_close(play.values("body.0.0").plus, cold.values("body.0.0").plus, rtol=1e-12, atol=0)
    assert (play.values("body.1.0").plus - cold.values("body.1.0").plus).abs().max() > 1e-3


def test_inspect():
    """Every node with the keywords that act there; what differs from the defaults stands in its line."""
    model, x = nested()
    found = bp.RoutingGame(model, tau=0.9, layers={"body.0": {"tau": 0.5, "risk": -1.0}}).inspect(x)
    modes = {node.name: node.modes for node in found}
    assert modes["body.0.0"]["tau"] == 0.5 and modes["body.1.0"]["tau"] == 0.9 and "risk" not in modes["body.0.0"]
    assert modes["body.0.2"]["risk"] == -1.0 and "tau" not in modes["body.0.2"] and modes["input"] == {}
    lines = dict(line.split("  ", 1) for line in str(found).splitlines())
    assert lines["body.0.0"] == "affine  batch × 4 × 5 × 5  tau=0.5" and lines["body.0.2"].endswith("risk=-1.0")
    assert lines["body.1.1"] == "gate  batch × 4 × 5 × 5" and lines["head"].endswith("tau=0.9")
    with pytest.raises(ValueError, match="matches no node"):
        bp.StoppingGame(model, layers={"nowhere": {"risk": -1.0}}).inspect(x)


def test_curvature_by_layer():
    """Each Softplus has its own θ in the bound: by hand on two gates, with `‖W‖₂ ≤ √(‖W‖₁ ‖W‖_∞)`."""
    torch.manual_seed(3)
    model, x = hand.mlp(4, 5, 6, 3), torch.randn(2, 4, dtype=torch.float64)
    layers = {"1": {"softplus": 0.3}, "3": {"softplus": 1.7}}
    norm = lambda w: float((w.abs().sum(0).max() * w.abs().sum(1).max()).sqrt())  # noqa: E731
    slope, change = 1.0, 0.0
    for k, theta in ((0, 0.3), (2, 1.7)):
        size = norm(model[k].weight)
        slope, change = slope * size, change * size
        change += slope**2 / (4 * theta)
    expected = float(model[4].weight[1].norm()) * change
    found = bp.bounds.curvature(bp.StoppingGame(model, layers=layers).play(x, 1))
    assert_near(found, [expected, expected], what="curvature")
    with pytest.raises(bp.BackplayError, match="curvature bounds the gradient"):
        bp.bounds.curvature(bp.StoppingGame(model, layers={"1": {"entropy_bias": 0.1}}).play(x, 1))
