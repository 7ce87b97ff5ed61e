"""Hellinger distance, survival and maps against the enumeration of every trajectory (app:path-divergence)."""

import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import backplay as bp
from against_laws import compare
from closeness import array, assert_near, same_law
from enumerated import draw_targets, examples, solved, tensor
from oracles import laws, strategies
from oracles.walks import Routing, Stopping, TooManyTrajectories, count_trajectories


def altered(dag, seed, share=0.5):
    """The same graph with other weights: a share of them drawn anew, on the grid of quarters."""
    twin = copy.deepcopy(dag)
    generator = np.random.default_rng(seed)
    for step in twin.steps:
        if step.op in ("linear", "conv"):
            for parameter in step.module.parameters():
                fresh = generator.integers(-8, 9, size=tuple(parameter.shape)) / 4.0
                chosen = generator.random(tuple(parameter.shape)) < share
                with torch.no_grad():
                    parameter.copy_(torch.where(torch.as_tensor(chosen), torch.as_tensor(fresh), parameter))
    return twin


class Side:
    """One play and its law, for every sample."""

    def __init__(self, dag, network, x, targets, kind, options):
        nodes, found = solved(dag, x)
        walks = [Stopping(nodes, v) if kind == "stopping" else Routing(nodes, v, **options) for v in found]
        assume(all(count_trajectories(w, t) <= 3000 for w, t in zip(walks, targets, strict=True)))
        try:
            self.laws = [laws.law(w, t) for w, t in zip(walks, targets, strict=True)]
        except TooManyTrajectories:
            assume(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            game = bp.StoppingGame(network) if kind == "stopping" else bp.RoutingGame(network, **options)
        self.play = game.play(tensor(dag, x), targets)


def compare_prefixes(h, dag, pairs):
    """lem:bc-chain-rule and lem:bc-monotone at every affine node (S31)."""
    nodes = dag.nodes()
    affine = [i for i, node in enumerate(nodes) if node.kind == "affine"]
    visited = {path[n][0] for p, q in pairs for law in (p, q) for path in law for n in range(len(path) - 1)}
    paths = {i: h.a.network.find(path).name for path, i in dag.addresses()}
    found = dict(h.by_layer)
    assert [name for name, _ in h.by_layer] == [n for n in (paths[i] for i in reversed(affine)) if n in found]
    for i in affine:
        if i in visited or i == len(nodes) - 1:
            expected = [laws.overlap(laws.prefix(p, i), laws.prefix(q, i)) for p, q in pairs]
            assert_near(found[paths[i]], expected, scale=1.0, what=f"prefix BC behind {paths[i]}")
            where = {
                "ordinary": lambda s: s not in (laws.DAGGER, laws.CONSTANT),
                "cemetery": lambda s: s == laws.DAGGER,
            }
            layer = next(g for g in h.growth if g.name == paths[i])
            for part, ends in where.items():  # rem:adf-cemetery-floor
                expected = [laws.overlap_at(laws.prefix(p, i), laws.prefix(q, i), ends) for p, q in pairs]
                assert_near(getattr(layer, part), expected, scale=1.0, what=f"{part} overlap behind {paths[i]}")
            assert_near(layer.ordinary + layer.cemetery + layer.constant, layer.bc, scale=1.0)
    curve = np.array([array(bc) for _, bc in h.by_layer])
    assert (np.diff(curve, axis=0) <= 1e-12).all()


def draw_and_compare(data, dag):
    """Two models, or one; two inputs, or one; two targets, or one; both games."""
    twin = altered(dag, data.draw(st.integers(0, 2**32 - 1))) if data.draw(st.booleans()) else dag
    x = data.draw(strategies.inputs(dag, batch=2))
    y = x if twin is not dag and data.draw(st.booleans()) else data.draw(strategies.inputs(dag, batch=2))
    targets = draw_targets(data, dag, x)
    others = targets if data.draw(st.booleans()) else draw_targets(data, dag, y)
    network = bp.capture(dag.module(), tensor(dag, x))
    second = network if twin is dag else bp.capture(twin.module(), tensor(dag, x))
    options = data.draw(strategies.routing_options())
    for kind in ("stopping", "routing"):
        a = Side(dag, network, x, targets, kind, options)
        b = Side(twin, second, y, others, kind, options)
        pairs = list(zip(a.laws, b.laws, strict=True))
        compare_prefixes(compare(a.play, b.play, pairs), dag, pairs)


@pytest.mark.slow
@examples(12)
@given(st.data())
def test_dense_networks(data):
    """thm:per-pixel, thm:conditioned-survival, lem:bc-chain-rule, lem:bc-monotone, rem:rg-natural-equivalence."""
    draw_and_compare(data, data.draw(strategies.dense_dags()))


@pytest.mark.slow
@examples(12)
@given(st.data())
def test_convolutional_networks(data):
    """The same on convolutions, pools and residual sums."""
    draw_and_compare(data, data.draw(strategies.conv_dags()))


def network(seed, width=5, depth=3, dtype=torch.float64):
    """A fully connected network with random weights, the same graph for every seed."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [4, *[width] * depth, 3]
    layers = []
    for k in range(len(sizes) - 1):
        layer = torch.nn.Linear(sizes[k], sizes[k + 1])
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
            layer.bias.copy_(0.3 * torch.randn(layer.bias.shape, generator=generator))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(dtype).eval()


def games(model):
    return bp.StoppingGame(model), bp.RoutingGame(model), bp.RoutingGame(model, epsilon=0.0, tau=0.5)


@pytest.mark.slow
@examples(6)
@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), st.floats(0, 1))
def test_metric(seeds, noise):
    """H is a metric: symmetric, 0 on itself, at most 1, triangle inequality."""
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seeds[0]))
    y = x + noise * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seeds[1]))
    first, again, second = (bp.capture(network(s), x) for s in (seeds[0], seeds[0], seeds[2]))
    for k in range(3):
        a, b, c = (games(n)[k].play(z, 1) for n, z in ((first, x), (first, y), (second, y)))
        ab, ba, bc, ac = (bp.hellinger(*p) for p in ((a, b), (b, a), (b, c), (a, c)))
        for one, other in ((ab.distance, ba.distance), (ab.surviving.nan_to_num(9), ba.surviving.nan_to_num(9))):
            assert_near(one**2, other**2, 1e-13, scale=1.0, what="symmetry")
        assert (bp.hellinger(a, a).distance == 0).all()
        assert (bp.hellinger(a, games(again)[k].play(x, 1)).distance < same_law(x.dtype)).all()
        assert (ac.distance <= ab.distance + bc.distance + 1e-12).all()
        for h in (ab, bc, ac):
            assert ((h.distance >= 0) & (h.distance <= 1)).all()
            assert (h.map("trajectory") >= h.map("marginal") - 1e-12).all()  # eq:path-vs-marginal
            assert (h.map("fraction") <= 1).all()


def test_cross_identity():
    """eq:hellinger-cross-identity behind every node: what has ended plus Σ β γ on the frontier is BC."""
    x = torch.randn(2, 4, dtype=torch.float64)
    for a, b in zip(games(network(1)), games(network(2)), strict=True):
        plays = bp.hellinger(a.play(x, 0), b.play(x, 1)).plays[0]
        bc, ahead = plays.forward()
        seen = []

        def watch(node, overlap, bc=bc, ahead=ahead, seen=seen):
            if overlap.root.routes:  # a part of the common root has not met yet
                return
            total = overlap.passed.losses.total()
            for n, mass in overlap.passed.masses.items():
                total = total + (mass.plain() * ahead[n].plain()).flatten(1).sum(1)
            assert_near(total, bc, what=f"behind {node.name}")
            seen.append(node.name)

        plays.backward(watch)
        assert len(seen) >= 5


def test_refusals():
    """S27: other graphs, other games, other batches are refused with the reason."""
    x = torch.randn(2, 4, dtype=torch.float64)
    model = network(1)
    play = bp.StoppingGame(model).play(x)
    with pytest.raises(bp.BackplayError, match="first at node '0'"):
        bp.hellinger(play, bp.StoppingGame(network(1, width=6)).play(x))
    with pytest.raises(ValueError, match="first at node '6'"):
        bp.hellinger(play, bp.StoppingGame(network(1, depth=4)).play(x))
    with pytest.raises(bp.BackplayError, match="RoutingGame"):
        bp.hellinger(play, bp.RoutingGame(model).play(x))
    with pytest.raises(bp.BackplayError, match="samples"):
        bp.hellinger(play, bp.StoppingGame(model).play(x[:1]))
    with pytest.raises(bp.BackplayError, match="precision"):
        bp.hellinger(play, bp.StoppingGame(network(1, dtype=torch.float32)).play(x.float()))
    with pytest.raises(TypeError, match="play"):
        bp.hellinger(play, x)
    with pytest.raises(ValueError, match="kind"):
        bp.hellinger(play, play).map("mass")
    with pytest.raises(ValueError, match="invariant"):
        bp.hellinger(play, play, invariant="rotation")


def test_no_survivor():
    """S30: where nobody survives, `surviving` is NaN and the plain distance is not."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1)).double().eval()
    with torch.no_grad():
        model[0].bias.fill_(-100)
    play = bp.StoppingGame(model).play(torch.ones(1, 2, dtype=torch.float64), 0)
    h = bp.hellinger(play, play)
    assert torch.isnan(h.surviving).all() and (h.distance == 0).all() and (h.survival_a == 0).all()
