"""Contractions in every spelling (S7, S17): of two live tensors, and with a constant."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from backplay.network.contraction import Contraction, Einsum, Equation
from closeness import assert_near, unscaled
from contracted import CONSTANT, F64, HELD, PLAIN, Middle, twin
from oracles import matrices

pytestmark = pytest.mark.capture

FORMS = {**PLAIN, **{f"held: {k}": v for k, v in HELD.items()}, **{f"constant: {k}": v for k, v in CONSTANT.items()}}


def tokens(batch=3):
    return torch.randn(batch, 4, 6, dtype=F64)


@functools.cache
def captured(name):
    """One capture of each form serves all tests."""
    return bp.capture(Middle(FORMS[name]), tokens())


def gradient(model, x, target):
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(x)[:, target].sum(), x)
    return found


@pytest.mark.parametrize("name", FORMS)
def test_stopping_is_the_gradient(name):
    """Γ₊ − Γ₋ is the gradient of the network whose detached factor is held (S7, S9), for one sample and for three."""
    network = captured(name)
    model, expected_of = network.model, twin(network.model)
    for batch in (3, 1):
        x = tokens(batch)
        play = bp.StoppingGame(network).play(x, 1)
        assert_near(play.value, model(x)[:, 1], what="value")
        expected = gradient(expected_of, x, 1)
        assert_near(play.attribution(), expected, what="gradient")
        found = play.occupation("input")
        assert_near(unscaled(found.difference, found.difference_log_scale), expected, what="Γ₊ − Γ₋")
        assert play.health().mass_error < 1e-12


@pytest.mark.parametrize("name", HELD)
def test_holding_matters(name):
    """Or the comparison above would say nothing of what is held."""
    model, x = Middle(HELD[name]), tokens()
    plain, held = gradient(model, x, 1), gradient(twin(model), x, 1)
    assert (plain - held).abs().max() > 1e-3 * plain.abs().max()


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
@pytest.mark.parametrize("name", FORMS)
def test_passes(name, game):
    """Walks end with mass 1, samples follow the marginals, distances are finite, nobody gains by deviating."""
    network, x = captured(name), tokens(1)
    one, two = game(network).play(x, 1), game(network.on(Middle(FORMS[name], seed=1))).play(x, 1)
    assert one.health().ok and one.health().mass_error < 1e-12
    found = bp.hellinger(one, two, conditioning="kernel")
    assert 0 < float(found.distance) <= 1 and float(bp.hellinger(one, one).distance) == 0
    assert_near(found.bc, bp.hellinger(two, one).bc, what="symmetry")
    assert_near(found.bc_forward(), found.bc, what="eq:hellinger-cross-identity")
    ends = found.cemetery_disagreement + found.constant_disagreement
    assert_near(found.disagreement.sum() + ends, found.distance**2, 1e-9, what="thm:per-pixel")
    assert_near(found.surviving, bp.hellinger(one, two).surviving, 1e-8, what="survival by both roads")
    assert float(one.sample(1000, seed=1).check()) > 1e-4
    assert bp.certify(one, states=30) < 1e-9


@pytest.mark.parametrize("name", FORMS)
def test_decomposition(name):
    """Non-negative pairs whose difference is the value at every node (S10)."""
    network, x = captured(name), tokens()
    found = bp.decompose(network, x)
    values = bp.StoppingGame(network).play(x, 1).solved
    for node in network.nodes:
        pair = found[node]
        assert (pair.plus >= 0).all() and (pair.minus >= 0).all()
        scale = node.layout.spread(pair.log_scale.exp(), pair.plus)
        assert_near((pair.plus - pair.minus) * scale, values[node], 1e-9, what=node.name)


# ---------------------------------------------------------------- the Routing Game in dense matrices


def jacobian(function, a):
    """(out, in) matrix of a linear function of one sample."""
    return torch.autograd.functional.jacobian(function, a).reshape(-1, a.numel()).numpy()


def routed(weight, a, **modes):
    kept, switched = matrices.routing_linear(weight, a.detach().numpy().ravel(), np.zeros(len(weight)), **modes)
    return kept - switched


@pytest.mark.parametrize("modes", [{}, {"tau": 2.0, "epsilon": 0.1}, {"alpha": 1.0, "beta": 0.0, "epsilon": 0.0}])
@pytest.mark.parametrize("held", ["none", "left", "right"])
def test_routing_is_half_each_way(held, modes):
    """One half through `a` with the weights of `b`, one half the other way; all one way if a gate gave the other."""
    first = torch.sigmoid if held == "left" else torch.tanh
    second = torch.sigmoid if held == "right" else torch.tanh
    model = Middle(lambda m, a, b, c: torch.einsum("bqd,bkd->bqk", first(a), second(b)))
    x = tokens()
    found = bp.RoutingGame(model, output="one", **modes).attribute(x, 1)
    for k, sample in enumerate(x):
        u, v = first(model.a(sample)).detach(), second(model.b(sample)).detach()
        mass = routed(model.head.weight[1:2].detach().numpy(), u @ v.T, **modes)
        arrived = np.zeros(24)
        shares = {"none": (0.5, 0.5), "left": (0.0, 1.0), "right": (1.0, 0.0)}[held]
        for share, layer, a, read in (
            (shares[0], model.a, u, lambda t, v=v: t @ v.T),
            (shares[1], model.b, v, lambda t, u=u: u @ t.T),
        ):
            on = share * mass @ routed(jacobian(read, a), a, **modes)  # tanh and sigmoid let all mass through
            dense = np.kron(np.eye(4), layer.weight.detach().numpy())
            arrived += (on @ routed(dense, sample, **modes)).ravel()
        assert_near(found[k], arrived.reshape(4, 6), what=f"sample {k}")


def test_moments_add_over_factors():
    """Each factor's variance through the squares of the other one (S22)."""
    model, x = Middle(PLAIN["einsum"]), tokens()
    found = bp.moments(model, x, 0.3)
    a, b = model.a(x), model.b(x)
    va, vb = (0.3 * layer.weight.square().sum(1).expand(a.shape) for layer in (model.a, model.b))
    expected = torch.einsum("bqd,bkd->bqk", va, b.square()) + torch.einsum("bqd,bkd->bqk", a.square(), vb)
    assert_near(found["einsum"].variance, expected, what="variance")


@pytest.mark.parametrize("modes", [{"tau": 2.0, "tau_forward": True}, {"risk": -0.5, "input_variance": 0.1}])
@pytest.mark.parametrize("name", ["unsoftmaxed attention", "held: normalised", "bilinear with itself"])
def test_modes_play(name, modes):
    play = bp.RoutingGame(captured(name), **modes).play(tokens(), 0)
    assert torch.isfinite(play.attribution()).all()
    assert_near(play.marginal("input").flatten(1).sum(1) + play.cemetery + play.constant, torch.ones(3), 1e-12)


# ---------------------------------------------------------------- the rules of other methods


@pytest.mark.parametrize("name", ["einsum", "bilinear", "unsoftmaxed attention", "held: sigmoid", "held: normalised"])
def test_deeplift_is_complete(name):
    """The sum of the map is the rise of the logit: a product is crossed half way."""
    model, x = captured(name).model, tokens()
    found = bp.explain(captured(name), x, 1, "deeplift")
    rise = (model(x) - model(torch.zeros_like(x)))[:, 1]
    assert_near(found.flatten(1).sum(1), rise, 1e-8)


@pytest.mark.parametrize("held", [False, True])
def test_lrp_epsilon_halves(held):
    """LRP: one half to each factor, each with the other one as its weights; all to one if the other is a gate's."""
    second = torch.sigmoid if held else torch.tanh
    model = Middle(lambda m, a, b, c: torch.einsum("bqd,bkd->bqk", torch.tanh(a), second(b)))
    for layer in (model.a, model.b, model.head):
        nn.init.zeros_(layer.bias)
    x = tokens()
    found = bp.explain(model, x, 1, "lrp_epsilon", epsilon=0.0)
    u, v = torch.tanh(model.a(x)), second(model.b(x))
    z = torch.einsum("bqd,bkd->bqk", u, v)
    root = z * model.head.weight[1].view(4, 4)  # relevance of the scores: all of the logit
    per = root / z
    on_u = u * torch.einsum("bqk,bkd->bqd", per, v) * (1.0 if held else 0.5)
    on_v = v * torch.einsum("bqk,bqd->bkd", per, u) * (0.0 if held else 0.5)
    expected = x * ((on_u / model.a(x)) @ model.a.weight + (on_v / model.b(x)) @ model.b.weight)
    assert_near(found, expected, 1e-8)


# ---------------------------------------------------------------- refusals


class Across(nn.Module):
    """Scores between samples."""

    def forward(self, x):
        flat = x.flatten(1)
        return flat @ flat.T


class Dynamic(nn.Module):
    """A convolution whose weight depends on the input."""

    def __init__(self):
        super().__init__()
        self.make = nn.Linear(24, 12)

    def forward(self, x):
        weight = self.make(x.flatten(1)).view(-1, 4, 1)
        return nn.functional.conv1d(x.view(1, -1, 6), weight, groups=x.shape[0]).view(-1, 3, 6).mean(2)


class Distances(nn.Module):
    def forward(self, x):
        return torch.cdist(x, x).mean(1)


@pytest.mark.parametrize(
    "model, words",
    [(Across(), "one sample"), (Dynamic(), "convolves with a weight that depends"), (Distances(), "cdist")],
)
def test_refused(model, words):
    with pytest.raises(bp.BackplayError, match=words) as caught:
        bp.RoutingGame(model.double()).attribute(tokens(), 0)
    assert len(str(caught.value)) < 400


# ---------------------------------------------------------------- equations


@pytest.mark.parametrize(
    "text, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij, jk -> ik", [(2, 3), (3, 4)]),
        ("ba,ca", [(2, 3), (4, 3)]),
        ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i...,i...->...", [(2, 3, 4), (2, 4)]),
        ("a...b->b...a", [(2, 3, 4)]),
        ("...->", [(2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("abc,cd,b->", [(2, 3, 4), (4, 5), (3,)]),
    ],
)
def test_reading(text, shapes):
    """An equation without dots and with its output means the same; so do its products two by two."""
    tensors = [torch.randn(shape, dtype=F64) for shape in shapes]
    expected = torch.einsum(text, *tensors)
    read = Einsum.read(text, [t.ndim for t in tensors])
    assert_near(torch.einsum(f"{','.join(read.operands)}->{read.out}", *tensors), expected)
    while len(tensors) > 1:
        equation, read = read.pair()
        tensors = [torch.einsum(equation.text, tensors[0], tensors[1]), *tensors[2:]]
    assert_near(torch.einsum(f"{read.operands[0]}->{read.out}", tensors[0]), expected)


@pytest.mark.parametrize("left", [1, 2, 3, 4])
@pytest.mark.parametrize("right", [1, 2, 3, 4])
def test_matmul(left, right):
    a = torch.randn((2, 3, 5, 4)[4 - left :], dtype=F64)
    b = torch.randn(4 if right == 1 else (2, 3, 4, 6)[4 - right :], dtype=F64)
    assert_near(torch.einsum(Equation.matmul(left, right).text, a, b), a @ b)


@pytest.mark.parametrize(
    "equation, x, weight",
    [
        (Equation("bqd", "bkd", "bqk"), (2, 3, 4), (2, 5, 4)),
        (Equation("bqd", "bkd", "bqk"), (1, 3, 4), (2, 5, 4)),
        (Equation("bqd", "bkd", "bqk"), (2, 3, 4), (2, 5, 1)),
        (Equation("bqde", "bq", "bd"), (2, 3, 4, 5), (2, 3)),
        (Equation("bq", "bd", "bqd"), (2, 3), (1, 4)),
    ],
)
def test_adjoint_and_rows(equation, x, weight):
    """`⟨W x, y⟩ = ⟨x, Wᵀ y⟩`, and the rows of single states are those of the matrix."""
    linear, operand, w = Contraction(equation), torch.randn(x, dtype=F64), torch.randn(weight, dtype=F64)
    out = linear.apply(operand, w)
    dense = torch.autograd.functional.jacobian(lambda t: linear.apply(t, w), operand).view(out.numel(), -1)
    y = torch.randn_like(out)
    assert_near(linear.adjoint(y, w, operand.shape), (y.flatten() @ dense).view(x))
    index, row = linear.rows_of(w, torch.arange(out.numel()), (operand.shape, out.shape))
    assert_near(torch.zeros_like(dense).scatter_add_(1, index, row), dense)
