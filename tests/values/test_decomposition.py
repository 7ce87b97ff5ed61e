"""Stopping, Mixing(η) and Softplus(θ) decompositions at every node (S10, thm:decomp-recovery)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import backplay as bp
from alike import alike
from closeness import array, assert_near, unscaled
from enumerated import examples, solved, tensor
from oracles import decompositions, strategies
from oracles.dag import Dag

MONOTONE = ("relu", "relu6", "leaky_relu", "elu", "sigmoid", "softplus", "gelu", "silu", "hardswish", "tanh")


def streams(pair):
    """True plus and minus of one decomposed node."""
    return unscaled(pair.plus, pair.log_scale), unscaled(pair.minus, pair.log_scale)


def compare(dag, x, network, **options):
    """Every node with a path against the oracle; both streams non-negative."""
    nodes = dag.nodes()
    expected = [decompositions.decompose(nodes, sample, **options) for sample in x]
    found = bp.decompose(network, tensor(dag, x), **options)
    for path, n in dag.addresses():
        plus, minus = streams(found[path])
        assert (plus >= 0).all() and (minus >= 0).all()
        want = [np.stack([pairs[n][s] for pairs in expected]) for s in (0, 1)]
        largest = max(w.max() for w in want)
        assert_near(plus, want[0], scale=largest, what=f"plus at {path}")
        assert_near(minus, want[1], scale=largest, what=f"minus at {path}")


def drawn(data, dag):
    x = data.draw(strategies.inputs(dag, batch=2))
    solved(dag, x)
    return x, bp.capture(dag.module(), tensor(dag, x))


@pytest.mark.slow
@examples(25)
@given(st.data())
def test_stopping(data):
    """def:decomposition, eq:split-pos, eq:split-neg, eq:stop-relu, eq:adf-astop-recursion at every node, none negative.

    A GELU lets Φ(z) of both streams through (app:gelu-noisy-gate); a gate whose value is not c(z)z gives the remainder
    to the stream of its sign.
    """
    build = st.one_of(strategies.dense_dags(MONOTONE), strategies.conv_dags(MONOTONE))
    dag = data.draw(build)
    x, network = drawn(data, dag)
    compare(dag, x, network, kind="stopping")


@pytest.mark.slow
@examples(15)
@given(st.data())
def test_mixing_and_softplus(data):
    """eq:dc-relu and eq:softplus-decomp at every node of ReLU networks."""
    dag = data.draw(st.one_of(strategies.dense_dags(("relu",)), strategies.conv_dags(("relu",))))
    x, network = drawn(data, dag)
    for eta in (0.0, 0.3, 1.0):
        compare(dag, x, network, kind="mixing", eta=eta)
    for theta in (0.2, 1.0):
        if not any(
            node.kind == "max" for node in dag.nodes()
        ):  # a tie of the ReLU network is none of the Softplus network
            compare(dag, x, network, kind="softplus", theta=theta)


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).double()


def every_node(model, x, **options):
    """(plus, minus) of every module, concatenated over modules: shape (B, units)."""
    found = bp.decompose(alike(model, x), x, **options)
    pairs = [streams(found[str(i)]) for i in range(len(model))]
    return tuple(np.concatenate([pair[s] for pair in pairs], axis=1) for s in (0, 1))


def test_recovery():
    """thm:decomp-recovery: plus − minus is the activation of the network, or of the Softplus network.

    def:valid-decomposition, eq:network-decomposition-recovery: eq:decomp-recovery-stop-mix of two of them,
    eq:decomp-recovery-softplus of the third. All begin with the parts of the input (eq:input-split-convention).
    """
    model, x = mlp(), torch.randn(5, 4, dtype=torch.float64)
    activations = [model[: i + 1](x) for i in range(5)]
    expected = array(torch.cat(activations, 1))
    for options in ({"kind": "stopping"}, {"kind": "mixing", "eta": 0.25}, {"kind": "mixing", "eta": 1.0}):
        plus, minus = every_node(model, x, **options)
        assert_near(plus - minus, expected, scale=plus.max(), what=str(options))
    for options in ({"kind": "stopping"}, {"kind": "mixing", "eta": 0.25}, {"kind": "softplus", "theta": 0.3}):
        parts = streams(bp.decompose(alike(model, x), x, **options)["input"])
        assert_near(np.stack(parts), array(torch.stack([x.clamp(min=0), (-x).clamp(min=0)])))
    theta = 0.3
    smooth = nn.Sequential(*(nn.Softplus(1 / theta, 1e9) if isinstance(m, nn.ReLU) else m for m in model))
    expected = array(torch.cat([smooth[: i + 1](x) for i in range(5)], 1))
    plus, minus = every_node(model, x, kind="softplus", theta=theta)
    assert_near(plus - minus, expected, scale=plus.max(), what="softplus")


def test_stopping_is_monotone_on_linear_regions():
    """lem:stop-monotone: inside a linear region neither stream falls, at any node, when x_k⁺ or x_k⁻ is raised."""
    model = mlp(3)
    x = torch.randn(6, 4, dtype=torch.float64)
    sign = torch.where(x >= 0, 1.0, -1.0)
    before = every_node(model, x, kind="stopping")
    for k in range(4):
        step = torch.zeros_like(x)
        step[:, k] = 1e-6 * sign[:, k]  # raises x_k⁺ where x_k ≥ 0 and x_k⁻ where x_k < 0
        same_region = torch.cat([(model[: i + 1](x) > 0) == (model[: i + 1](x + step) > 0) for i in (0, 2)], 1).all(1)
        assert same_region.any()
        after = every_node(model, x + step, kind="stopping")
        for low, high in zip(before, after, strict=True):
            assert (high - low)[same_region.numpy()].min() >= -1e-12
            assert (high - low)[same_region.numpy()].max() > 1e-9


def test_stopping_derivative_is_occupation():
    """S9, thm:deriv-occ part 1: ∂ a_stop(output, p⊕q)/∂ a_stop(input, k) = Γ(input, p⊕k), by finite differences."""
    model, step = mlp(5), 1e-5
    x = torch.randn(1, 4, dtype=torch.float64)
    occupation = bp.StoppingGame(alike(model, x)).play(x, 1).occupation("input")
    gamma = [unscaled(v, occupation.log_scale)[0] for v in (occupation.plus, occupation.minus)]
    for k in range(4):
        direction = torch.zeros_like(x)
        direction[0, k] = step * (1.0 if x[0, k] >= 0 else -1.0)
        pairs = [streams(bp.decompose(alike(model, x), x + s * direction, kind="stopping")["4"]) for s in (-1, 1)]
        slope = [(pairs[1][s][0, 1] - pairs[0][s][0, 1]) / (2 * step) for s in (0, 1)]
        if x[0, k] < 0:  # the step moved x⁻, for which the players change roles
            slope = slope[::-1]
        assert np.allclose(slope, [gamma[0][k], gamma[1][k]], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_mixing_is_convex(seed):
    """thm:dc-extreme-conv-conc: at η = 1, without max nodes, both streams are convex in the input at every node."""
    model = mlp(seed)
    ends = torch.randn(2, 40, 4, dtype=torch.float64)
    weight = torch.rand(40, 1, dtype=torch.float64)
    left, right, middle = (
        every_node(model, x, kind="mixing", eta=1.0)
        for x in (ends[0], ends[1], weight * ends[0] + (1 - weight) * ends[1])
    )
    slack = 0.0
    for s in (0, 1):
        chord = weight.numpy() * left[s] + (1 - weight.numpy()) * right[s]
        assert (chord - middle[s]).min() >= -1e-10 * chord.max()
        slack = max(slack, (chord - middle[s]).max())
    assert slack > 1e-3, "strictly convex somewhere"


def test_softplus_tends_to_stopping():
    """eq:softplus-decomp → eq:stop-relu as θ → 0."""
    model, x = mlp(1), torch.randn(3, 4, dtype=torch.float64)
    hard = every_node(model, x, kind="stopping")
    gaps = []
    for theta in (1.0, 1e-1, 1e-6):
        soft = every_node(model, x, kind="softplus", theta=theta)
        gaps.append(max(np.abs(a - b).max() for a, b in zip(soft, hard, strict=True)))
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 1e-4


def test_range():
    """S11: two hundred layers that double everything stay finite in float32, with the scale in the logarithm."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(200)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
    model = nn.Sequential(*layers)
    pair = bp.decompose(model, torch.tensor([[1.0, 0.5]]), kind="stopping")["199"]
    assert torch.isfinite(pair.plus).all() and torch.isfinite(pair.minus).all()
    total = array(pair.plus + pair.minus).sum()
    expected = 200 * np.log(3.0) + np.log(1.5)  # |W| has the eigenvector (1, 1) with eigenvalue 3
    assert np.isclose(np.log(total) + array(pair.log_scale)[0], expected, rtol=1e-5)


def test_mixing_refuses_other_gates():
    """S10: Mixing speaks of ReLU gates only, and says so."""
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1)).double()
    with pytest.raises(bp.BackplayError, match=r"(?i)gelu"):
        bp.decompose(model, torch.randn(1, 2, dtype=torch.float64), kind="mixing", eta=0.5)


def test_max_takes_the_winner():
    """prop:maxpool-equivalence: the pooled pair is the winner's pair."""
    dag = Dag((1, 2, 2))
    h = dag.conv(0, np.array([[[[1.0]]], [[[-1.0]]]]), [0.5, -0.25])
    dag.flatten(dag.max_pool(h, 2, 2))
    x = np.array([[1.0, -2.0, 0.5, 3.0], [0.0, 0.0, -1.0, -1.0]])
    network = bp.capture(dag.module(), torch.as_tensor(x).reshape(2, 1, 2, 2))
    compare(dag, x, network, kind="stopping")


def test_gates_that_compare():
    """S10: a mask on the way of a spelled-out gate is told, and the output's difference is the network's value."""

    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.first(x)
            return self.last(torch.where(h > 0, h, 0.1 * h))

    model, x = Chosen().double(), torch.randn(2, 3, dtype=torch.float64)
    found = bp.decompose(alike(model, x), x, kind="stopping")["last"]
    assert_near(unscaled(found.plus - found.minus, found.log_scale), model(x))


def test_a_shut_branch_has_no_scale():
    """Where a branch holds nothing, its scale, however large, does not round the parts beside it to 0 (S11)."""
    torch.manual_seed(0)
    small, large = nn.Linear(3, 4), nn.Linear(3, 4)
    with torch.no_grad():
        large.weight.mul_(1e30)
        large.bias.fill_(-1e35)

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large, self.head = small, large, nn.Linear(8, 2)

        def forward(self, x):
            return self.head(torch.cat([torch.relu(self.small(x) * 1e-20), torch.relu(self.large(x))], 1))

    x = torch.randn(2, 3)
    pair = bp.decompose(Branches().eval(), x)["cat"]
    found = (pair.plus - pair.minus)[:, :4].double() * pair.log_scale.exp()[:, None]
    torch.testing.assert_close(found, torch.relu(small(x) * 1e-20).double(), rtol=1e-5, atol=0)
