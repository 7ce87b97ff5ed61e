"""What the paper says of the decompositions beyond their recursion: paths, signs of slopes, convexity."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from closeness import array, assert_near, unscaled

F64 = torch.float64
SIZES = (3, 4, 3, 4, 2)


def streams(pair):
    """True plus and minus of one decomposed node."""
    return unscaled(pair.plus, pair.log_scale), unscaled(pair.minus, pair.log_scale)


def perceptron(bias):
    """Four linear layers with ReLUs between them; a few weights are 0."""
    torch.manual_seed(4)
    layers = []
    for a, b in itertools.pairwise(SIZES):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).double().eval()
    with torch.no_grad():
        model[2].weight[1, 2] = model[4].weight[0, 0] = 0.0
    return model


def sums_over_paths(model, x, last):
    """(2, width): both streams of a linear layer, one backward path at a time (eq:parity-plus, eq:parity-minus).

    A path ends at an input or at a bias, which is an input of value 1 with the bias as its weight.
    """
    linear = [model[k] for k in range(0, last + 1, 2)]
    with torch.no_grad():
        z = [array(model[: k + 1](x[None]))[0] for k in range(0, last + 1, 2)]
    weights = [array(layer.weight) for layer in linear]
    biases = [np.zeros(len(layer.weight)) if layer.bias is None else array(layer.bias) for layer in linear]
    found = np.zeros((2, len(weights[-1])))
    for ends_at in range(len(linear)):  # the layer whose input or bias the path ends at; below 1 only the input
        widths = [len(w) for w in weights[ends_at:]][::-1]
        sources = [("bias", None)] + ([("input", k) for k in range(len(x))] if ends_at == 0 else [])
        for path in itertools.product(*(range(n) for n in widths)):
            for kind, k in sources:
                layers = range(len(linear) - 1, ends_at, -1)
                edges = [weights[t][path[n], path[n + 1]] for n, t in enumerate(layers)]
                edges.append(biases[ends_at][path[-1]] if kind == "bias" else weights[ends_at][path[-1], k])
                gates = [z[t - 1][path[n + 1]] > 0 for n, t in enumerate(layers)]
                even = sum(edge < 0 for edge in edges) % 2 == 0
                value = 1.0 if kind == "bias" else float(x[k])
                size = float(all(gates)) * np.prod(np.abs(edges))
                parts = max(value, 0.0), max(-value, 0.0)
                found[0, path[0]] += size * parts[0 if even else 1]
                found[1, path[0]] += size * parts[1 if even else 0]
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_streams_are_sums_over_paths(bias):
    """lem:parity-path at every linear layer: |w|(P) times the input's part that the parity of P chooses."""
    model = perceptron(bias)
    x = torch.randn(2, SIZES[0], dtype=F64, generator=torch.Generator().manual_seed(2))
    pairs = bp.decompose(model, x)
    shut = [(model[: k + 1](x) <= 0).sum() for k in (0, 2, 4)]
    assert min(shut) > 0, "some gates are shut"
    for layer in (0, 2, 4, 6):
        expected = np.stack([sums_over_paths(model, sample, layer) for sample in x])
        plus, minus = streams(pairs[str(layer)])
        assert expected.min() >= 0 and expected[:, 1].max() > 0
        assert_near(plus, expected[:, 0], what=f"z⁺ of layer {layer}")
        assert_near(minus, expected[:, 1], what=f"z⁻ of layer {layer}")


# ---------------------------------------------------------------- one neuron whose two streams are the two inputs


def one_neuron():
    """z⁺ and z⁻ are the two inputs, as long as these are not negative."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -1.0]]))
        model[2].weight.fill_(1.0)
    return model


def softened(points, theta):
    """(N, 2): the Softplus streams of the neuron at points (z⁺, z⁻)."""
    pair = bp.decompose(one_neuron(), torch.as_tensor(points), kind="softplus", theta=theta)["1"]
    return np.concatenate(streams(pair), 1)


@pytest.mark.parametrize("theta", [0.3, 1.0])
def test_signs_of_the_softplus_slopes(theta):
    """rem:soft-monotone: both slopes of a⁺ and the slope of a⁻ in z⁺ keep their sign; that in z⁻ does not.

    The slopes are those of the closed forms, `σ'` and `σ''` written out, against differences of what the library
    returns; beyond `z⁻ = θ/(1 − σ'(z))`, and only there, a⁻ falls while z⁻ grows.
    """
    up, down = (axis.ravel() for axis in np.meshgrid(np.linspace(0.1, 4, 14), np.linspace(0.1, 4, 15)))
    points, step = np.stack([up, down], 1), 1e-4
    slopes = []
    for axis in np.eye(2) * step:
        far, near = (
            (softened(points + k * axis, theta) - softened(points - k * axis, theta)) / (2 * k * step) for k in (2, 1)
        )
        slopes.append((4 * near - far) / 3)  # what is left is of fourth order in the step
    z = (up - down) / theta
    first = 1 / (1 + np.exp(-z))
    second = first * (1 - first) / theta
    expected = [
        np.stack([first + second * down, second * down], 1),  # in z⁺: of a⁺, of a⁻
        np.stack([-second * down, first - second * down], 1),  # in z⁻
    ]
    for found, closed in zip(slopes, expected, strict=True):
        assert_near(found, closed, 1e-8)
    assert slopes[0].min() >= -1e-9 and slopes[1][:, 0].max() <= 1e-9
    beyond = down > theta / (1 - first)
    assert beyond.any() and (~beyond).any()
    assert (slopes[1][beyond, 1] < 0).all() and (slopes[1][~beyond, 1] > 0).all()


def tied(x):
    """A network on (x, x) with weights (2, −1): the scalar neuron of the remark, W⁺ = 2 and W⁻ = 1."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[2.0, -1.0]]))
    return model, torch.stack([x, x], 1)


def test_no_concavity_at_eta_0():
    """rem:eta-0-concavity: on (x, x) with weights (2, −1) the η = 0 subtrahend is |x|, convex and not concave.

    It is a decomposition all the same; at η = 1 both parts are convex (thm:dc-extreme-conv-conc).
    """
    x = torch.linspace(-2, 2, 9, dtype=F64)
    model, pairs = tied(x)
    at = {eta: streams(bp.decompose(model, pairs, kind="mixing", eta=eta)["1"]) for eta in (0.0, 1.0)}
    for plus, minus in at.values():
        assert_near(plus - minus, x.clamp(min=0)[:, None])
    assert_near(at[0.0][1], x.abs()[:, None], what="min{z⁺, z⁻}")
    assert_near(at[1.0][0], 2 * x.abs()[:, None], what="max{z⁺, z⁻}")
    assert_near(at[1.0][1], (x.clamp(min=0) + 2 * (-x).clamp(min=0))[:, None], what="z⁻")

    def bends(values):
        """Second differences along x."""
        return np.diff(values[:, 0], 2)

    assert bends(at[0.0][1]).min() > -1e-12 and bends(at[0.0][1]).max() > 0.5, "convex, and not concave"
    for part in at[1.0]:
        assert bends(part).min() > -1e-12
