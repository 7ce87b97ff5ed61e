"""The appendix on trajectory space statement by statement: layered matrices written out (sec:lmp) and the library.

Two ReLU networks of three layers on one input, small enough to write every trajectory down. `oracles.layered` follows
the paper's formulas on act-to-act matrices; the library walks through stream states and gates, and must agree.
"""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from backplay.network.mass import Mass
from backplay.trajectory.survival import ahead_of, survival
from closeness import array, assert_near
from oracles import layered

SIZES = (4, 5, 4, 2)
ACTIVATIONS = ("4", "3", "1", "input")  # names of the layers' states: logits, what gates let through, pixels
AFFINE = ("4", "2", "0")
START = 2  # logit 1 with player +
GAMES = {
    "stopping": (bp.StoppingGame, "stopping", {}),
    "routing": (bp.RoutingGame, "routing", {"epsilon": 0.0}),
    "routing, cold": (bp.RoutingGame, "routing", {"epsilon": 0.0, "tau": 0.7}),
    "routing, outside": (bp.RoutingGame, "routing", {"epsilon": 0.2, "tau": 0.7}),
}
X = torch.tensor([[0.9, -0.4, 0.6, -1.1]], dtype=torch.float64)


def network(seed):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for below, above in itertools.pairwise(SIZES):
        layer = nn.Linear(below, above)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(above, below, generator=generator))
            layer.bias.copy_(0.3 * torch.randn(above, generator=generator))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double().eval()


class Side:
    """A play, its matrices and its law."""

    def __init__(self, name, seed):
        game, kind, options = GAMES[name]
        model = network(seed)
        layers = [m for m in model if isinstance(m, nn.Linear)]
        parameters = [[array(p) for p in ps] for ps in zip(*((m.weight, m.bias) for m in layers), strict=True)]
        self.play = game(alike(model, X), **options).play(X, 1)
        self.matrices = layered.kernels(*parameters, array(X[0]), kind, **options)
        self.law = layered.law(self.matrices, START)
        self.alpha = layered.marginals(self.matrices, START)

    def node(self, name):
        return self.play.network.find(name)


@pytest.fixture(params=[name for name in GAMES if name != "routing, outside"])
def sides(request):
    return Side(request.param, 3), Side(request.param, 18)


def untagged(states):
    """Both tags of every unit summed, the cemetery left out."""
    return states[:-1].reshape(-1, 2).sum(1)


def one_of(states):
    """Of what is the same for both players, and of no concern in †."""
    assert_near(states[:-1:2], states[1::2])
    return states[:-1:2]


def overlaps(a, b, layers):
    """`{states of the first layers: √(Π_A Π_B)}`."""
    found = [{}, {}]
    for side, laws in zip((a, b), found, strict=True):
        for path, p in side.law.items():
            laws[path[:layers]] = laws.get(path[:layers], 0.0) + p
    return {path: np.sqrt(p * found[1].get(path, 0.0)) for path, p in found[0].items()}


def test_the_networks_are_of_use(sides):
    """Some gates are dead in both plays, some in one, some in none; walks of both survive."""
    for k in (1, 2):
        dead = [side.matrices[k][:-1, -1] == 1 for side in sides]
        assert (dead[0] != dead[1]).any() and (~dead[0] & ~dead[1]).any()
    assert any((sides[0].matrices[k][:-1, -1] == 1)[(sides[1].matrices[k][:-1, -1] == 1)].any() for k in (1, 2))
    assert all(side.alpha[-1][-1] < 0.99 for side in sides)


def test_rows(sides):
    """eq:adf-T, eq:rg-T-act, eq:rg-T-pixel, eq:rg-T: the moves of every state, and the cemetery row of shut gates."""
    for side in sides:
        for k, name in enumerate(AFFINE):
            matrix = side.matrices[k]
            alive = np.ones(SIZES[3 - k]) if k == 0 else array(side.play.policy(ACTIVATIONS[k])[0])
            for j in range(SIZES[3 - k]):
                ((kept, switched),) = side.play.policy(name, (0, j)).values()
                assert_near(alive[j] * kept[0], matrix[2 * j, 0:-1:2], scale=1.0)
                assert_near(alive[j] * switched[0], matrix[2 * j, 1:-1:2], scale=1.0)
                if alive[j] == 0:
                    assert matrix[2 * j, -1] == 1


def test_marginals(sides):
    """eq:path-measure, eq:lmp-alpha, eq:lmp-alpha-boundary, eq:lmp-alpha-recursion, eq:cemetery-absorbing."""
    for side in sides:
        assert_near(sum(side.law.values()), 1.0)
        for k, name in enumerate(ACTIVATIONS):
            summed = np.zeros_like(side.alpha[k])
            for path, p in side.law.items():
                summed[path[k]] += p
            assert_near(side.alpha[k], summed, scale=1.0)
            assert_near(side.play.marginal(name)[0], untagged(side.alpha[k]), scale=1.0, what=name)
        assert_near(side.play.cemetery[0], side.alpha[-1][-1], scale=1.0)
        cemetery = [len(m) - 1 for m in side.matrices] + [2 * SIZES[0]]
        ended = [path for path in side.law if path[2] == cemetery[2]]
        assert bool(ended) == (side.alpha[2][-1] > 0)
        assert all(path[3] == cemetery[3] for path in ended)  # nobody comes back


def test_row_sums(sides):
    """eq:geom-kernel, eq:geom-rowsum: between 0 and 1, and 1 where both rows are the same."""
    a, b = sides
    plays = bp.hellinger(a.play, b.play).plays[0]
    assert plays.a is a.play
    for k, name in enumerate(AFFINE):
        expected = np.sqrt(a.matrices[k] * b.matrices[k]).sum(1)
        assert (expected >= 0).all() and (expected <= 1 + 1e-12).all()
        same = np.isclose(a.matrices[k], b.matrices[k]).all(1)
        assert (np.isclose(expected, 1) == same).all()
        below = a.node(ACTIVATIONS[k + 1])
        zero = torch.zeros(1, dtype=torch.float64)
        ones = Mass(torch.ones(1, SIZES[2 - k], dtype=torch.float64), zero, below.layout)
        found = ahead_of(a.node(name), plays.kernel(a.node(name)), [ones], ends=True)
        if k > 0:
            gate = a.node(ACTIVATIONS[k])
            found = ahead_of(gate, plays.kernel(gate), [found], ends=True)
        assert_near(found.plain()[0], one_of(expected), scale=1.0, what=name)


def test_chain_rule(sides):
    """lem:bc-chain-rule, eq:bc-chain-rule, lem:bc-monotone, eq:bc-def: the overlap of prefixes, layer by layer."""
    a, b = sides
    h = bp.hellinger(a.play, b.play)
    curve = [1.0]
    for k, (name, bc) in enumerate(h.by_layer):
        assert name == AFFINE[k]
        curve.append(sum(overlaps(a, b, k + 2).values()))
        beta = layered.marginals([np.sqrt(s * t) for s, t in zip(a.matrices, b.matrices, strict=True)], START)[k + 1]
        assert_near(curve[-1], beta.sum())
        assert_near(bc[0], curve[-1], scale=1.0)
        assert curve[-1] <= curve[-2] + 1e-15
    assert_near(h.bc[0], curve[-1], scale=1.0)
    assert_near(h.distance[0] ** 2, 1 - curve[-1], scale=1.0)


def test_both_passes(sides):
    """alg:hellinger-backward, alg:hellinger-forward and their correctness, state by state (eq:gamma).

    lem:hellinger-backward-correctness, lem:hellinger-forward-correctness, eq:hellinger-cross-identity. The matrices
    know no stream states and the library's walk does: rem:rg-natural-equivalence.
    """
    a, b = sides
    means = [np.sqrt(s * t) for s, t in zip(a.matrices, b.matrices, strict=True)]
    beta, gamma = layered.marginals(means, START), layered.expectations(means, np.ones(2 * SIZES[0] + 1))
    plays, stood = bp.hellinger(a.play, b.play).plays[0], {}

    def watch(node, overlap):
        if overlap.root.routes:  # a part of the common root has not met yet
            return
        stood.update({n.name: m.plain()[0] for n, m in overlap.passed.masses.items() if n.name not in stood})

    plays.backward(watch)
    bc, ahead = plays.forward()
    for k, name in enumerate(ACTIVATIONS):
        assert_near(beta[k] @ gamma[k], beta[-1].sum(), what="Σ β γ")
        if k > 0:
            assert_near(stood[name], untagged(beta[k]), scale=1.0, what=f"β at {name}")
            assert_near(ahead[a.node(name)].plain()[0], one_of(gamma[k]), scale=1.0, what=f"γ at {name}")
    assert_near(bc[0], gamma[0][START], scale=1.0, what="γ at the root")


def test_disagreement(sides):
    """thm:per-pixel, eq:per-pixel-h2, eq:per-pixel-sum, eq:ordinary-h2, eq:marginal-h2, eq:fraction-h2."""
    a, b = sides
    h = bp.hellinger(a.play, b.play)
    mass, beta = (a.alpha[-1] + b.alpha[-1]) / 2, np.zeros(2 * SIZES[0] + 1)
    for path, overlap in overlaps(a, b, 4).items():
        beta[path[-1]] += overlap
    squared, marginal = mass - beta, mass - np.sqrt(a.alpha[-1] * b.alpha[-1])
    assert (squared >= -1e-12).all()
    assert_near(squared.sum(), h.distance[0] ** 2, scale=1.0)
    assert_near(h.disagreement.sum(), h.distance[0] ** 2 - h.cemetery_disagreement[0], scale=1.0)
    assert_near(h.cemetery_disagreement[0], squared[-1], scale=1.0)
    assert_near(h.map("trajectory")[0], untagged(squared), scale=1.0)
    assert_near(h.map("marginal")[0], untagged(marginal), scale=1.0)
    assert_near(h.map("fraction")[0], untagged(squared) / untagged(mass), scale=1.0)
    assert (squared >= marginal - 1e-12).all()  # eq:path-vs-marginal
    assert (squared > marginal + 1e-6).any()


def test_survival(sides):
    """eq:survival-function, eq:survival-boundary, eq:survival-recursion, eq:survival-mass."""
    for side in sides:
        _, h = layered.given_survival(side.matrices)
        found = survival(side.play)
        for k, name in enumerate(ACTIVATIONS):
            through, arrived = np.zeros_like(h[k]), np.zeros_like(h[k])
            for path, p in side.law.items():
                through[path[k]] += p
                arrived[path[k]] += p * (path[-1] != 2 * SIZES[0])
            seen = through > 0
            assert_near(h[k][seen], arrived[seen] / through[seen], scale=1.0, what="P(Surv | state)")
            assert_near(found[side.node(name)].plain()[0], one_of(h[k]), scale=1.0, what=f"h at {name}")
        z = h[0][START]
        assert_near([side.alpha[-1][:-1].sum(), 1 - side.alpha[-1][-1]], [z, z], scale=1.0)
        assert_near(side.play.sample(1).share[0], z, scale=1.0)


def test_walks_that_survive(sides):
    """eq:conditioned-kernel, eq:conditioned-path-measure, eq:conditioned-alpha: a law of its own, without †."""
    for side in sides:
        matrices, h = layered.given_survival(side.matrices)
        for k, matrix in enumerate(matrices):
            assert_near(matrix.sum(1)[h[k] > 0], np.ones((h[k] > 0).sum()))
        alive = {path: p for path, p in side.law.items() if path[-1] != 2 * SIZES[0]}
        given = layered.law(matrices, START)
        assert set(given) == set(alive)
        assert_near([given[path] for path in alive], [p / h[0][START] for p in alive.values()])
        drawn = side.play.sample(1, arriving=True)
        for k, name in enumerate(ACTIVATIONS):
            alpha = side.alpha[k] * h[k] / h[0][START]
            assert_near(layered.marginals(matrices, START)[k], alpha, scale=1.0)
            assert_near(drawn.expected(name)[0], untagged(alpha), scale=1.0, what=name)


@pytest.mark.parametrize("route", ["post-hoc", "kernel"])
def test_distance_of_survivors(sides, route):
    """eq:conditioned-geom-kernel, eq:conditioned-bc-kernel, eq:ordinary-bc, eq:conditioned-bc-posthoc.

    eq:conditioned-h2, eq:conditioned-per-pixel-h2: both ways to the distance and to its map.
    """
    a, b = sides
    (first, h_a), (second, h_b) = (layered.given_survival(side.matrices) for side in sides)
    means = [np.sqrt(s * t) for s, t in zip(first, second, strict=True)]
    for k, mean in enumerate(means):
        root = np.sqrt(h_a[k] * h_b[k])
        ratio = (
            np.sqrt(a.matrices[k] * b.matrices[k] * (h_a[k + 1] * h_b[k + 1])) / np.where(root > 0, root, 1)[:, None]
        )
        assert_near(mean, ratio, scale=1.0)
    beta = layered.marginals(means, START)[-1]
    ordinary = sum(o for path, o in overlaps(a, b, 4).items() if path[-1] != 2 * SIZES[0])
    assert_near(beta.sum(), ordinary / np.sqrt(h_a[0][START] * h_b[0][START]))
    h = bp.hellinger(a.play, b.play, conditioning=route)
    assert_near(h.growth[-1].ordinary[0], ordinary, scale=1.0)
    assert_near(h.bc_surviving[0], beta.sum(), scale=1.0)
    assert_near(h.surviving[0] ** 2, 1 - beta.sum(), scale=1.0)
    alive = [side.alpha[-1] / k[0][START] for side, k in ((a, h_a), (b, h_b))]
    squared = untagged((alive[0] + alive[1]) / 2 - beta)
    assert_near(h.map(conditioned=True)[0], squared, scale=1.0)
    assert_near(h.map(conditioned=True).sum(), h.surviving[0] ** 2, scale=1.0)


def test_outside_options_are_told_apart():
    """rem:rg-natural-equivalence needs ε = 0: the outside options of both streams are one way to † in its matrices.

    In the game they are two, so that the overlap in † is smaller; what arrives is the same.
    """
    a, b = (Side("routing, outside", seed) for seed in (3, 18))
    h = bp.hellinger(a.play, b.play)
    beta = layered.marginals([np.sqrt(s * t) for s, t in zip(a.matrices, b.matrices, strict=True)], START)[-1]
    assert_near(h.growth[-1].ordinary[0], beta[:-1].sum(), scale=1.0)
    assert float(h.cemetery_overlap[0]) < beta[-1] - 1e-3
    for side in (a, b):
        assert_near(side.play.marginal("input")[0], untagged(side.alpha[-1]), scale=1.0)
