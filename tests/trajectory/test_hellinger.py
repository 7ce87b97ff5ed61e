"""Hellinger distance, survival and maps against the enumeration of every trajectory (app:path-divergence)."""

import copy
import warnings

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import backplay as bp
from closeness import array, assert_near
from oracles import laws, strategies
from oracles.dag import is_delicate, values
from oracles.walks import Routing, Stopping, TooManyTrajectories, count_trajectories


def examples(n):
    return settings(
        max_examples=n,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


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
        nodes = dag.nodes()
        found = [values(nodes, sample) for sample in x]
        assume(not any(is_delicate(nodes, v) for v in found))
        walks = [Stopping(nodes, v) if kind == "stopping" else Routing(nodes, v, **options) for v in found]
        assume(all(count_trajectories(w, t) <= 3000 for w, t in zip(walks, targets, strict=True)))
        try:
            self.laws = [laws.law(w, t) for w, t in zip(walks, targets, strict=True)]
        except TooManyTrajectories:
            assume(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            game = bp.StoppingGame(network) if kind == "stopping" else bp.RoutingGame(network, **options)
        self.play = game.play(torch.as_tensor(x).reshape(len(x), *dag.shape(0)), targets)


def compare(dag, a, b):
    """Everything that `bp.hellinger` says, against the two laws."""
    h = bp.hellinger(a.play, b.play)
    reverse = bp.hellinger(b.play, a.play)
    kernel_side = bp.hellinger(a.play, b.play, conditioning="kernel")
    assert torch.equal(h.distance, reverse.distance)
    assert torch.equal(h.disagreement, reverse.disagreement)
    assert h.distance.dtype == h.bc.dtype == h.surviving.dtype == torch.float64
    pairs = list(zip(a.laws, b.laws, strict=True))
    bc = np.array([laws.overlap(p, q) for p, q in pairs])
    assert_near(h.bc, bc, scale=1.0, what="BC")
    assert_near(h.distance**2, 1 - bc, scale=1.0, what="H²")
    assert_near(h.bc_forward(), bc, scale=1.0, what="BC, forward pass")
    given = [(laws.given_survival(p), laws.given_survival(q)) for p, q in pairs]
    for k, ((p, z_p), (q, z_q)) in enumerate(given):
        for found in (h, kernel_side):
            assert_near(found.survival_a[k], z_p, scale=1.0, what="Z_A")
            assert_near(found.survival_b[k], z_q, scale=1.0, what="Z_B")
            if z_p == 0 or z_q == 0:
                assert torch.isnan(found.surviving[k])
            else:
                assert_near(found.bc_surviving[k], laws.overlap(p, q), scale=1.0, what="BC given survival")
    compare_ends(h, pairs)
    compare_maps(h, kernel_side, pairs, given)
    compare_prefixes(h, dag, pairs)


def compare_ends(h, pairs):
    for k, (p, q) in enumerate(pairs):
        dagger = laws.overlap_at(p, q, lambda s: s == laws.DAGGER)
        assert_near(h.cemetery_overlap[k], dagger, scale=1.0, what="β(†)")
        constant = laws.overlap_at(p, q, lambda s: s == laws.CONSTANT)
        assert_near(h.constant_overlap[k], constant, scale=1.0, what="β(constants)")
    total = h.disagreement.flatten(1).sum(1) + h.cemetery_disagreement + h.constant_disagreement
    assert_near(total, h.distance**2, scale=1.0, what="Σ h² = H² (thm:per-pixel)")


def maps_of(p, q, size):
    """Trajectory, marginal and fraction map of two laws, tags summed (S29)."""
    ends_p, ends_q = laws.ends(p), laws.ends(q)
    trajectory, marginal, mass = np.zeros(size), np.zeros(size), np.zeros(size)
    for state in set(ends_p) | set(ends_q):
        if state in (laws.DAGGER, laws.CONSTANT):
            continue
        u, v = ends_p.get(state, 0.0), ends_q.get(state, 0.0)
        trajectory[state[1]] += (u + v) / 2 - laws.overlap_at(p, q, lambda s, state=state: s == state)
        marginal[state[1]] += (u + v) / 2 - np.sqrt(u * v)
        mass[state[1]] += (u + v) / 2
    fraction = np.divide(trajectory, mass, out=np.zeros(size), where=mass > 0)
    return {"trajectory": trajectory, "marginal": marginal, "fraction": fraction}


def compare_maps(h, kernel_side, pairs, given):
    size = h.a.x[0].numel()
    for k, (p, q) in enumerate(pairs):
        for kind, expected in maps_of(p, q, size).items():
            # a fraction of tiny masses has no digits left of the passes' rounding
            scale = 1.0 if kind != "fraction" else 1e5
            assert_near(h.map(kind)[k].flatten(), expected, scale=scale, what=f"{kind} map")
        (alive_p, z_p), (alive_q, z_q) = given[k]
        if z_p == 0 or z_q == 0:
            continue
        for kind, expected in maps_of(alive_p, alive_q, size).items():
            scale = 1.0 if kind != "fraction" else 1e5
            for found in (h, kernel_side):
                assert_near(found.map(kind, conditioned=True)[k].flatten(), expected, scale=scale, what=f"live {kind}")


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
    curve = np.array([array(bc) for _, bc in h.by_layer])
    assert (np.diff(curve, axis=0) <= 1e-12).all()


def draw_and_compare(data, dag):
    """Two models, or one; two inputs, or one; two targets, or one; both games."""
    twin = altered(dag, data.draw(st.integers(0, 2**32 - 1))) if data.draw(st.booleans()) else dag
    x = data.draw(strategies.inputs(dag, batch=2))
    y = x if twin is not dag and data.draw(st.booleans()) else data.draw(strategies.inputs(dag, batch=2))
    classes = st.integers(0, dag.size(len(dag.steps) - 1) - 1)
    targets = [data.draw(classes) for _ in x]
    others = targets if data.draw(st.booleans()) else [data.draw(classes) for _ in y]
    example = torch.as_tensor(x).reshape(len(x), *dag.shape(0))
    network = bp.capture(dag.module(), example)
    second = network if twin is dag else bp.capture(twin.module(), example)
    options = data.draw(strategies.routing_options())
    for kind in ("stopping", "routing"):
        a = Side(dag, network, x, targets, kind, options)
        b = Side(twin, second, y, others, kind, options)
        compare(dag, a, b)


@examples(25)
@given(st.data())
def test_dense_networks(data):
    """thm:per-pixel, thm:conditioned-survival, lem:bc-chain-rule, lem:bc-monotone, rem:rg-natural-equivalence."""
    draw_and_compare(data, data.draw(strategies.dense_dags()))


@examples(25)
@given(st.data())
def test_convolutional_networks(data):
    """The same on convolutions, pools and residual sums."""
    draw_and_compare(data, data.draw(strategies.conv_dags()))
