"""The entropy of a walk's next moves against the law of the walk, written out."""

import math
import warnings

import numpy as np
import pytest
import torch

import backplay as bp
from attention_blocks import drawn
from backplay.app.entropy import move_entropy
from enumerated import solved, tensor
from oracles import laws
from oracles.attention import RoutingWalk, StoppingWalk, describe
from oracles.dag import Dag
from oracles.walks import Routing, Stopping

X = np.random.default_rng(5).uniform(0.5, 1.5, (2, 12))
MODES = {
    "stopping": None,
    "plain": {},
    "cold, without outside option": {"epsilon": 0.0, "tau": 0.5},
    "hot, biases absorbed": {"epsilon": 0.3, "tau": 2.0, "bias": "absorb"},
    "rerouted, by size": {"empty_stream": "reroute", "residual": "proportional"},
}


def network():
    """Convolution with padding, gates that shut softly, a pool, a sum and a linear layer."""
    generator = np.random.default_rng(3)
    dag = Dag((1, 3, 4))
    first = dag.gate(dag.conv(0, generator.normal(size=(2, 1, 2, 2)), generator.normal(size=2), padding=1), "sigmoid")
    pooled = dag.avg_pool(first, 2, stride=2)
    both = dag.flatten(dag.add(pooled, dag.gate(pooled, "sigmoid")))
    dag.linear(both, generator.normal(size=(2, dag.size(both))), generator.normal(size=2))
    return dag


def bits(law):
    """The entropy of a law whose trajectories are all there."""
    return -math.fsum(p * math.log2(p) for p in law.values() if p > 0)


@pytest.mark.parametrize("mode", MODES)
def test_all_nodes_add_up_to_the_law(mode):
    """The chain rule: what is decided node by node is the entropy of the whole walk."""
    options, dag = MODES[mode], network()
    nodes, found = solved(dag, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a mode may warn once
        net = bp.capture(dag.module(), tensor(dag, X))
        game = bp.StoppingGame(net) if options is None else bp.RoutingGame(net, **options)
        play = game.play(tensor(dag, X), 0)
    walks = [Stopping(nodes, v) if options is None else Routing(nodes, v, **options) for v in found]
    expected = [bits(laws.law(walk, 0)) for walk in walks]
    assert min(expected) > 1
    np.testing.assert_allclose(sum(move_entropy(play).values()).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("routing", [True, False])
def test_attention(routing):
    """The choice of a key, and behind it that of an input."""
    block, net, x, _ = drawn("fused, additive", 11, 0.0)
    play = (bp.RoutingGame(net) if routing else bp.StoppingGame(net)).play(block.shaped(x), 0)
    walk = RoutingWalk if routing else StoppingWalk
    found = [describe(block, sample) for sample in x]
    expected = [bits(laws.law(walk(s.nodes, s.values), 0, limit=300_000)) for s in found]
    np.testing.assert_allclose(sum(move_entropy(play).values()).numpy(), expected, rtol=1e-10)


def test_one_way_is_no_choice():
    """A walk that has a single way decides nothing; two equal ways are one bit."""
    model = torch.nn.Linear(2, 1, bias=False).double()
    for weights, expected in (([1.0, 0.0], 0.0), ([1.0, 1.0], 1.0)):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([weights]))
        play = bp.StoppingGame(model).play(torch.ones(1, 2, dtype=torch.float64), 0)
        assert sum(move_entropy(play).values()).item() == pytest.approx(expected, abs=1e-12)
