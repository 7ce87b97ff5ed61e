"""Distances in every mode of the games, against the enumeration of every trajectory (S13-S24, S27-S31)."""

import functools
import warnings

import numpy as np
import pytest
import torch

import backplay as bp
from against_laws import compare
from attention_blocks import drawn, with_sign
from backplay.kernels.kernel import WALK
from oracles import laws, moded
from oracles.attention import RoutingWalk, StoppingWalk, describe
from oracles.dag import Dag


def residual(seed):
    """ReLUs, a residual sum and a constant, with weights of their own for every seed."""
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


ROUTING = {
    "plain": {},
    "temperature": {"tau": 0.5, "epsilon": 0.1},
    "tau_forward": {"tau": 0.5, "epsilon": 0.1, "tau_forward": True},
    "tau_forward, hot": {"tau": 2.0, "epsilon": 0.05, "tau_forward": True},
    "risk": {"risk": -0.5, "input_variance": 0.1},
    "risk_forward": {"risk": -0.5, "input_variance": 0.1, "risk_forward": True},
    "noisy": {"gate": "noisy", "gate_noise": 0.7},
    "noisy, risk": {"gate": "noisy", "gate_noise": 0.7, "risk": -0.5, "input_variance": 0.1},
    "entropy_bias": {"entropy_bias": 0.3},
    "absorb": {"bias": "absorb", "epsilon": 0.1, "tau": 2.0},
    "reroute": {"empty_stream": "reroute", "epsilon": 0.1},
    "proportional": {"residual": "proportional", "epsilon": 0.1},
    "many": {"entropy_bias": 0.2, "bias": "absorb", "empty_stream": "reroute", "residual": "proportional", "tau": 0.7},
}
STOPPING = {
    "plain": {},
    "softplus": {"softplus": 0.4},
    "noisy": {"gate": "noisy", "gate_noise": 0.7},
    "entropy_bias": {"entropy_bias": 0.3},
    "risk": {"risk": -0.5, "input_variance": 0.1},
}
X = np.array([[1.0, -0.5, 0.75], [0.5, 1.25, -1.0]])
Y = np.array([[0.75, 0.25, 1.0], [-1.5, 0.5, 0.25]])


def sides(kind, options):
    """Plays and laws of two networks on two inputs, the second pair with another target."""
    for (dag, network), x, targets in zip(captured(), (X, Y), ([0, 0], [0, 1]), strict=True):
        game, walk = (bp.RoutingGame, moded.routing) if kind == "routing" else (bp.StoppingGame, moded.stopping)
        play = game(network, **options).play(torch.as_tensor(x), targets)
        walks = [walk(dag.nodes(), sample, options) for sample in x]
        yield play, [laws.law(w, t) for w, t in zip(walks, targets, strict=True)]


@pytest.mark.parametrize(
    "kind, mode", [*(("routing", mode) for mode in ROUTING), *(("stopping", mode) for mode in STOPPING)]
)
def test_modes(kind, mode):
    """BC, H, survival, maps, ends and both routes in each mode; the mode changes the distance."""
    options = (ROUTING if kind == "routing" else STOPPING)[mode]
    (a, left), (b, right) = sides(kind, options)
    h = compare(a, b, list(zip(left, right, strict=True)))
    assert (h.distance > 0.01).all() and (h.survival_a > 0).all()
    if options:
        (a, _), (b, _) = sides(kind, {})
        assert (bp.hellinger(a, b).distance - h.distance).abs().max() > 1e-4, "the mode does nothing here"


def test_modes_apart():
    """Two modes on one network and input: the same states, another law."""
    dag, network = captured()[0]
    for first, second in (("plain", "noisy"), ("temperature", "tau_forward"), ("plain", "reroute")):
        plays = [bp.RoutingGame(network, **ROUTING[m]).play(torch.as_tensor(X), 1) for m in (first, second)]
        found = [[laws.law(moded.routing(dag.nodes(), x, ROUTING[m]), 1) for x in X] for m in (first, second)]
        assert compare(*plays, list(zip(*found, strict=True))).distance.min() > 1e-3


# attention ------------------------------------------------------------------------------------------------------------
ATTENTION = {
    "plain": {},
    "no outside option, cold": {"epsilon": 0.0, "tau": 0.5},
    "hot": {"epsilon": 0.3, "tau": 2.0},
    "absorb": {"bias": "absorb", "tau": 2.0},
    "reroute": {"alpha": 1.5, "beta": 0.5, "empty_stream": "reroute"},
    "proportional": {"residual": "proportional"},
    "attention_risk": {"attention_risk": -2.0, "input_variance": 0.5},
    "attention_risk, cold": {"attention_risk": -2.0, "input_variance": 0.5, "tau": 0.5, "epsilon": 0.1},
}


def attentive(name, seed, target, walk, game, change=None):
    """A play and its laws on a tiny block of two heads with weights of their own."""
    block, network, x, _ = drawn(name, seed, 0.0)
    if change is not None:
        change(block)
    samples = [describe(block, sample) for sample in x]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alpha − beta ≠ 1 warns once
        play = game(network).play(block.shaped(x), target)
    play.passed(WALK)
    return play, [laws.law(walk(block, s), target, limit=300_000) for s in samples]


@pytest.mark.parametrize("mode", ATTENTION)
def test_attention(mode):
    """Key choice, input choice and the outside option between two blocks of two heads: BC, h², survival (S23, S28)."""
    options = ATTENTION[mode]

    def walk(block, sample):
        if "attention_risk" in options:
            return moded.averse(block, sample, options)
        return RoutingWalk(sample.nodes, sample.values, **options)

    pair = [attentive("fused, additive", seed, 0, walk, lambda n: bp.RoutingGame(n, **options)) for seed in (11, 12)]
    h = compare(pair[0][0], pair[1][0], list(zip(pair[0][1], pair[1][1], strict=True)))
    assert (h.distance > 0.05).all() and h.bc.max() > 0.05


@pytest.mark.parametrize("name", ["patches, packed", "grouped, fused", "non-negative values", "talking heads"])
def test_attention_forms(name):
    """Other spellings, with two and three tokens, and the Stopping Game."""
    for game, walk in (
        (bp.RoutingGame, lambda _, s: RoutingWalk(s.nodes, s.values)),
        (bp.StoppingGame, lambda _, s: StoppingWalk(s.nodes, s.values)),
    ):
        pair = [attentive(name, seed, target, walk, game) for seed, target in ((11, 0), (12, 1))]
        compare(pair[0][0], pair[1][0], list(zip(pair[0][1], pair[1][1], strict=True)))


@pytest.mark.parametrize("empty_stream", ["cemetery", "reroute"])
def test_empty_streams_in_attention(empty_stream):
    """S16, S28: one stream of every head is empty in one play; there it is all outside, or never entered."""
    options = {"empty_stream": empty_stream, "epsilon": 0.25, "alpha": 1.5, "beta": 0.25}
    walk = lambda _, s: RoutingWalk(s.nodes, s.values, **options)  # noqa: E731
    game = lambda n: bp.RoutingGame(n, **options)  # noqa: E731
    first = attentive("fused", 5, 0, walk, game, lambda block: with_sign(block, 1))
    for other in (-1, None):
        change = None if other is None else lambda block: with_sign(block, -1)
        second = attentive("fused", 6, 0, walk, game, change)
        compare(first[0], second[0], list(zip(first[1], second[1], strict=True)))
