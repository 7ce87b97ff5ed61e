"""Both games through attention against every trajectory of tiny blocks (evidence 1, S23, app:attention-state-space)."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import backplay as bp
from attention_blocks import FORMS, drawn, with_sign
from closeness import assert_near
from enumerated import compare_play, examples
from oracles.attention import CLASSES, RoutingWalk, StoppingWalk, describe, is_delicate
from oracles.strategies import routing_options
from oracles.walks import MINUS, PLUS, enumerate_walks

COMPOSITE = [name for name, form in FORMS.items() if form.values == "projection" and not form.talking]
PLAIN = [name for name in FORMS if name not in COMPOSITE]


def compare(play, outcomes, samples, targets):
    logits = [s.values[-1][t] for s, t in zip(samples, targets, strict=True)]
    compare_play(play, outcomes, logits, samples[0].paths.items(), slack=1e-6)


def play_stopping(block, network, x, samples, targets):
    outcomes = [enumerate_walks(StoppingWalk(s.nodes, s.values), t) for s, t in zip(samples, targets, strict=True)]
    play = bp.StoppingGame(network).play(block.shaped(x), targets)
    compare(play, outcomes, samples, targets)


def play_routing(block, network, x, samples, targets, options):
    outcomes = [
        enumerate_walks(RoutingWalk(s.nodes, s.values, **options), t) for s, t in zip(samples, targets, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alpha − beta ≠ 1 warns once
        game = bp.RoutingGame(network, **options)
        compare(game.play(block.shaped(x), targets), outcomes, samples, targets)
        relevance = np.stack([o.difference(0) for o in outcomes])
        relevance *= np.array([s.values[-1][t] for s, t in zip(samples, targets, strict=True)])[:, None]
        scale = np.abs(relevance).max() + 1e-3 * max(o.occupation[0].max() for o in outcomes) + 1e-6
        assert_near(game.attribute(block.shaped(x), targets), relevance, scale=scale, what="attribute")
    return outcomes


@pytest.mark.parametrize("name", FORMS)
def test_description(name):
    """The numpy description is the module: same logits, same attention weights summing to 1."""
    block, _, x, samples = drawn(name, 3, 0.0)
    assert_near(block(block.shaped(x)), np.stack([s.values[-1] for s in samples]), relative=1e-12)
    for sample in samples:
        assert_near(sample.weights.sum(-1), np.ones(sample.weights.shape[:2]))


@pytest.mark.parametrize("name", FORMS)
@examples(2)
@given(st.data())
def test_blocks(name, data):
    """S7, S8, S12-S18, S23, S26 state by state, with zeros among weights and inputs."""
    both_games(name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@examples(25)
@given(st.data())
def test_many_blocks(name, data):
    """The same on many weights."""
    both_games(name, data)


def both_games(name, data):
    """Draw weights, inputs, targets and options; play both games."""
    zeros = data.draw(st.sampled_from((0.0, 0.2)))
    block, network, x, samples = drawn(name, data.draw(st.integers(0, 2**32 - 1)), zeros)
    assume(not any(is_delicate(s) for s in samples))
    targets = [data.draw(st.integers(0, CLASSES - 1)) for _ in x]
    play_stopping(block, network, x, samples, targets)
    for options in data.draw(st.lists(routing_options(), min_size=2, max_size=2)):
        play_routing(block, network, x, samples, targets, options)


OPTIONS = [
    {},
    {"epsilon": 0.0},
    {"epsilon": 0.0, "tau": 0.5},
    {"epsilon": 0.3, "tau": 2.0},
    {"epsilon": 0.3, "tau": 0.5, "bias": "absorb"},
    {"bias": "absorb", "tau": 2.0, "empty_stream": "reroute"},
    {"bias": "absorb"},
    {"residual": "proportional"},
    {"alpha": 1.0, "beta": 0.0},
    {"alpha": 1.5, "beta": 0.5, "empty_stream": "reroute", "residual": "proportional"},
]


@pytest.mark.parametrize("name", ["packed, causal", "fused", "talking heads"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(name, options):
    """Each option of S13-S17 and S23 on its own, weights without zeros."""
    block, network, x, samples = drawn(name, 11, 0.0)
    assert not any(is_delicate(s) for s in samples)
    outcomes = play_routing(block, network, x, samples, [0, 1], options)
    if FORMS[name].class_token:
        assert min(o.constant for o in outcomes) > 0, "the class token takes its share (S26)"
    if options.get("bias") == "absorb":
        assert min(o.bias_leak for o in outcomes) > 1e-3


@pytest.mark.parametrize("empty_stream", ["cemetery", "reroute"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("tau", [1.0, 0.5, 2.0])
def test_empty_stream(empty_stream, sign, tau):
    """S16 inside attention: V projections of one sign on tokens of one sign leave one stream of every output empty."""
    block, network, x, _ = drawn("fused", 5, 0.0)
    with_sign(block, sign)
    samples = [describe(block, sample) for sample in x]
    options = {"empty_stream": empty_stream, "epsilon": 0.25, "tau": tau, "alpha": 1.5, "beta": 0.25}
    play_routing(block, network, x, samples, [0, 1], options)
    walk = RoutingWalk(samples[0].nodes, samples[0].values, **options)
    n = samples[0].paths["attend"]
    ((end, probability, discount), *rest) = sorted(walk.transitions((n, 0, PLUS)), key=lambda move: len(move[0]))
    if empty_stream == "cemetery":
        assert end == ("†", "empty") and probability == 0.5 and len(rest) == 1
    else:
        assert end == (n, 0, PLUS, PLUS if sign > 0 else MINUS) and probability == 1 and discount == 1.25


@pytest.mark.parametrize("name", COMPOSITE)
def test_composite_leaves_the_projection_alone(name):
    """S23: mass crosses the V projection inside the composite and does not stand there; in the Stopping Game it does.

    What crosses it, `Γ^V` of eq:attn-Gamma-V-corollary, is what `test_blocks` compares at the projection.
    """
    block, network, x, _ = drawn(name, 2, 0.0)
    projection = "qkv" if FORMS[name].packed else "v"
    routing = bp.RoutingGame(network).play(block.shaped(x), 0)
    assert network.find(projection) not in routing.visited()
    assert float(routing.marginal("attend").max()) > 0.0
    crossed = routing.marginal(projection).flatten(1).sum(1)
    assert_near(crossed, arriving_at_keys(routing), what="walks that leave the mixing for a key")
    assert float(crossed.min()) > 0.0
    stopping = bp.StoppingGame(network).play(block.shaped(x), 0)
    assert network.find(projection) in stopping.visited()


def arriving_at_keys(play):
    """(B,) what of the walk at the mixing does not end in †."""
    node = next(n for n in play.visited() if play.kernel(n).crossed is not None)
    mass = play.marginal(node)
    return (mass - play.kernel(node).lost(mass)).flatten(1).sum(1)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_mixing_has_no_composite(name):
    """S23: without a projection behind wires, and with signed weights, mass stands at the values."""
    block, network, x, _ = drawn(name, 2, 0.0)
    play = bp.RoutingGame(network).play(block.shaped(x), 0)
    values = "v" if hasattr(block, "v") else "norm1"
    assert_near(play.marginal(values).flatten(1).sum(1) > 0, [True, True])


@pytest.mark.parametrize("name", [n for n in FORMS if not FORMS[n].talking])
def test_attention_policy(name):
    """`play.attention(layer)` is the oracle's reference policy A of every head."""
    block, network, x, samples = drawn(name, 4, 0.0)
    play = bp.RoutingGame(network).play(block.shaped(x), 0)
    expected = np.stack([s.weights for s in samples])
    found = play.attention("attend")
    assert tuple(found.shape) == expected.shape
    assert_near(found, expected, what="A")


def test_the_oracle_can_fail():
    """A wrong number is noticed: two outside options (one at the keys, one at the inputs) are not one."""

    class Twice(RoutingWalk):
        def value_state(self, node, state):
            moves = super().value_state(node, state)
            return [(to, 0.5 * p, d) for to, p, d in moves]

    block, network, x, samples = drawn("fused", 11, 0.0)
    outcomes = [enumerate_walks(Twice(s.nodes, s.values), 0) for s in samples]
    with pytest.raises(AssertionError):
        compare(bp.RoutingGame(network).play(block.shaped(x), 0), outcomes, samples, [0, 0])
