"""KL, Jeffreys, total variation and the distance of the ends, of laws that share their supports and of others.

The paper's sec:lmp-hellinger-distance, paragraphs "Properties" and "Alternative divergences".
"""

import math
import warnings

import numpy as np
import pytest
import torch

import backplay as bp
from against_laws import compare
from attention_blocks import drawn
from enumerated import solved, tensor
from oracles import laws
from oracles.attention import RoutingWalk, StoppingWalk, describe
from oracles.dag import Dag
from oracles.walks import Routing, Stopping

X = np.random.default_rng(5).uniform(0.5, 1.5, (2, 12))
ROUTING = {
    "plain": {},
    "cold, without outside option": {"epsilon": 0.0, "tau": 0.5},
    "hot, biases absorbed": {"epsilon": 0.3, "tau": 2.0, "bias": "absorb"},
    "rerouted, by size": {"empty_stream": "reroute", "residual": "proportional"},
}


def network(spread):
    """Convolution with padding, gates that shut softly, a pool, a sum and a linear layer.

    Weights are those of `network(0)` times factors between `1 − spread` and `1 + spread`, so that signs stay.
    """
    generator, factors = np.random.default_rng(3), np.random.default_rng(4)

    def weights(*shape):
        return generator.normal(size=shape) * factors.uniform(1 - spread, 1 + spread, shape)

    dag = Dag((1, 3, 4))
    first = dag.gate(dag.conv(0, weights(2, 1, 2, 2), weights(2), padding=1), "sigmoid")
    pooled = dag.avg_pool(first, 2, stride=2)
    bent = dag.gate(pooled, "sigmoid")
    both = dag.flatten(dag.add(pooled, bent))
    dag.linear(both, weights(2, dag.size(both)), weights(2))
    return dag


def side(dag, walk, game, target):
    nodes, found = solved(dag, X)
    play = game(bp.capture(dag.module(), tensor(dag, X))).play(tensor(dag, X), target)
    return play, [laws.law(walk(nodes, v), target) for v in found]


def compare_sides(a, b, finite=True):
    h = compare(a[0], b[0], list(zip(a[1], b[1], strict=True)))
    assert bool(torch.isfinite(h.jeffreys).all()) == finite
    return h


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, *ROUTING])
def test_small_networks(mode):
    """The chain rule of Jeffreys' divergence, `H² ≤ TV ≤ √2·H`, `H² ≤ KL/2`, against every trajectory."""
    options = ROUTING.get(mode, {})
    walk = Stopping if mode is None else lambda nodes, v: Routing(nodes, v, **options)
    game = bp.StoppingGame if mode is None else lambda n: bp.RoutingGame(n, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a mode may warn once
        first, second, same = (side(network(s), walk, game, t) for s, t in ((0.0, 0), (0.3, 0), (0.0, 0)))
        other = side(network(0.3), walk, game, 1)
    assert compare_sides(first, second).kl.min() > 1e-3
    assert compare_sides(first, same).kl.max() < 1e-12
    assert bool((bp.hellinger(first[0], first[0]).jeffreys == 0).all())
    assert bool(torch.isinf(compare_sides(first, other, finite=False).kl).all())  # weights of another sign


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fused, additive", "grouped, fused", "non-negative values"])
@pytest.mark.parametrize("routing", [True, False])
def test_attention(name, routing):
    """The key choice and behind it the input choice (S23): finite where the signs of all contributions stay."""
    sides = []
    for spread in (0.0, 0.02):
        factors = np.random.default_rng(7)
        block, net, x, _ = drawn(name, 11, 0.0)
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.mul_(torch.as_tensor(factors.uniform(1 - spread, 1 + spread, tuple(parameter.shape))))
        walk = RoutingWalk if routing else StoppingWalk
        game = bp.RoutingGame(net) if routing else bp.StoppingGame(net)
        play = game.play(block.shaped(x), 0)
        for node in play.visited():  # the block's weights change below: make what the play needs while they are its own
            if node.carriers:
                play.kernel(node)
        found = [describe(block, sample) for sample in x]
        sides.append((play, [laws.law(walk(s.nodes, s.values), 0, limit=300_000) for s in found]))
    assert compare_sides(*sides).kl.min() > 0


def test_shadows():
    """sec:lmp-rand-shadows: two networks whose walks share nothing may end alike; maps cannot tell them apart."""
    x = torch.ones(1, 2, dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1, bias=False))
    model.double().eval()
    plays = []
    for last in ([1.0, 0.0], [0.0, 1.0]):
        with torch.no_grad():
            model[0].weight.copy_(torch.ones(2, 2))
            model[2].weight.copy_(torch.tensor([last]))
        plays.append(bp.StoppingGame(model).play(x, 0))
    h = bp.hellinger(*plays)
    assert h.distance.item() == 1.0 and h.kl.item() == math.inf
    assert h.marginal_distance.item() == 0.0
    assert [float(t) for t in h.total_variation] == [1.0, 1.0]
