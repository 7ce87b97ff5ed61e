"""Walks that start at a hidden neuron (thm:deriv-occ: "fix a neuron state u"; S26b)."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near, same_law
from refusals import refused

F64 = torch.float64


class Residual(nn.Module):
    """A convolution beside the identity, as in a ResNet."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x) + x)


class TokensFirst(nn.Module):
    """Its hidden layer holds the samples in the second axis."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(x.transpose(0, 1)))).transpose(0, 1).mean(1)


@functools.cache
def network():
    torch.manual_seed(1)
    stem = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Residual()]
    return nn.Sequential(*stem, nn.Flatten(), nn.Linear(27, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


def images(seed=0):
    return torch.randn(2, 2, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(seed))


GAMES = (bp.StoppingGame, bp.RoutingGame)
NEURONS = (("3", (1, 2, 0)), ("5", 4), ("6", (2,)))  # behind a ReLU, at a linear layer, behind its ReLU


@pytest.mark.parametrize("name, index", NEURONS)
def test_stopping_difference_is_the_gradient_of_the_neuron(name, index):
    """thm:deriv-occ: the root is a neuron state; autograd is the oracle, at the input and at a hidden layer."""
    model, x = network(), images().requires_grad_()
    game = bp.StoppingGame(model)
    body, first = model[: int(name) + 1], model[:3](x)
    picked = (slice(None), *(index if isinstance(index, tuple) else (index,)))
    value = body(x)[picked]
    play = game.play(x.detach(), (name, index))
    assert_near(play.value, value, what="value")
    found = play.occupation("2")
    assert_near(play.attribution(), torch.autograd.grad(value.sum(), x, retain_graph=True)[0], what="map")
    (inside,) = torch.autograd.grad(body[3:](first)[picked].sum(), first)
    assert_near(found.difference * found.difference_log_scale.exp().view(-1, 1, 1, 1), inside, what="hidden layer")
    for door in (game.attribute, lambda x, t: bp.explain(model, x, t, method="sg")):
        assert_near(door(x.detach(), (name, index)), play.attribution(), what="other doors")


@pytest.mark.parametrize("make", GAMES)
@pytest.mark.parametrize("name, index", NEURONS)
def test_the_walk_is_that_of_the_network_cut_there(make, name, index):
    """The oracle is the model without what stands behind the neuron: there the neuron is an output."""
    model, x, y = network(), images(), images(1)
    whole, cut = make(model), make(model[: int(name) + 1])
    whole_index = index if isinstance(index, tuple) else (index,)
    a, b = whole.play(x, (name, index)), cut.play(x, whole_index)
    for what in ("attribution", "marginal"):
        assert_near(getattr(a, what)(), getattr(b, what)(), what=what)
    for what in ("value", "cemetery", "constant", "bias_leak"):
        assert_near(getattr(a, what), getattr(b, what), what=what)
    assert a.health().ok and a.health().mass_error < 1e-12
    assert a.health().arrives == pytest.approx(b.health().arrives)
    drawn, apart = a.sample(50, seed=3), b.sample(50, seed=3)
    assert torch.equal(drawn.ends, apart.ends) and torch.equal(drawn.states["input"], apart.states["input"])
    left = bp.hellinger(a, whole.play(y, (name, index)))
    right = bp.hellinger(b, cut.play(y, whole_index))
    assert_near(left.bc, right.bc, what="BC")
    assert_near(left.bc_forward(), right.bc, what="BC forward")
    assert_near(left.disagreement, right.disagreement, what="disagreement")


def test_targets_of_samples_and_parts_of_a_batch():
    """A list has one neuron a sample, all of one node; batches in parts, sweeps and averages know them."""
    model, x = network(), images()
    game = bp.RoutingGame(model)
    targets = [("3", (0, 1, 2)), ("3", (2, 2, 0))]
    both = game.attribute(x, targets)
    for k, one in enumerate(targets):
        assert_near(both[k], game.attribute(x, one)[k])
    assert_near(game.attribute(x, targets, internal_batch_size=1), both)
    assert_near(bp.explain(model, x, targets, method="rg", internal_batch_size=1), both)
    assert game.targets(x, targets).tolist() == [[0, 1, 2], [2, 2, 0]]
    assert_near(bp.sweep(game, x, targets, tau=[1.0])[(("tau", 1.0),)], both)
    assert_near(bp.Reynolds(game, n=1, max_angle=0, max_shift=0, flip=0).attribute(x, targets), both)
    still = {"n": 1, "max_angle": 0, "max_shift": 0, "flip": 0}
    assert_near(bp.explain(model, x, targets, method="rg_eq", **still), both)
    play = game.play(x, targets)
    assert "'3" in repr(play)
    assert_near(play.on(play.network).attribution(), both)
    swapped = game.play(x, targets[::-1])
    assert bool((bp.hellinger(play, swapped).distance > 0.1).all())
    assert bool((bp.hellinger(play, game.play(x, targets)).distance <= same_law(F64)).all())


def test_samples_in_another_axis():
    """Where a layer holds samples behind tokens, the index is what is left without them; autograd is the oracle."""
    torch.manual_seed(2)
    model, x = TokensFirst().double().eval(), torch.randn(3, 5, 3, dtype=F64, requires_grad=True)
    value = model.hidden(x.transpose(0, 1))[4, :, 1]
    play = bp.StoppingGame(model).play(x.detach(), ("hidden", (4, 1)))
    assert_near(play.value, value)
    assert_near(play.attribution(), torch.autograd.grad(value.sum(), x)[0])
    drawn = play.sample(400, seed=1)
    assert bool((drawn.states["hidden"] == 4 * 4 + 1).all())
    assert bool((drawn.check() > 1e-4).all())


def test_refusals():
    """Wrong names and indices, one line each."""
    model, x = network(), images()
    game = bp.RoutingGame(model)
    wrong = {
        ("33", 0): ("no node or module named '33'",),
        ("5",): ("pair", "index"),
        ("5", 1, 2): ("pair", "index"),
        ("5", 5): ("out of range", "(5,)"),
        ("5", -1): ("out of range", "(5,)"),
        ("5", (0, 0)): ("out of range", "1 integers"),
        ("3", (0, 3, 0)): ("out of range", "(3, 3, 3)"),
        ("5", 1.0): ("integers",),
        ("input", (0, 0, 0)): ("input",),
    }
    calls = (game.play, game.attribute, game.targets, lambda x, t: bp.explain(model, x, t, method="sg"))
    for target, words in wrong.items():
        for call in calls:
            assert "\n" not in refused(lambda c=call, t=target: c(x, t), *words, kind=(ValueError, TypeError))
    refused(lambda: game.play(x, [("5", 1)]), "1 targets for 2 samples")
    refused(lambda: game.play(x, [("5", 1), ("6", 1)]), "one play starts at one node")
    refused(lambda: bp.explain(model, x, ("5", 1), method="gradient"), "hidden neuron", "sg", "rg")
    hidden, plain = game.play(x, ("5", 1)), game.play(x, 1)
    refused(lambda: bp.hellinger(hidden, plain), "start at", "'5'")
    refused(lambda: bp.hellinger(hidden, hidden, invariant="permutation"), "hidden neurons")


def test_two_neurons_of_a_wire_at_the_input():
    """Both roots are input elements under another name: the walks end there, and share nothing but where they agree."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double().eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    game = bp.StoppingGame(model)
    a, b, again = (game.play(x, ("0", k)) for k in (3, 4, 3))
    assert bp.hellinger(a, b).distance.tolist() == [1.0, 1.0] and bp.hellinger(a, again).distance.abs().max() < 1e-7
    assert torch.isinf(bp.hellinger(a, b).kl).all()


def test_indices_of_numpy():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    x = torch.randn(1, 4, dtype=torch.float64)
    game = bp.StoppingGame(model)
    found, expected = (game.attribute(x, ("1", index)) for index in (np.unravel_index(4, (6,)), 4))
    torch.testing.assert_close(found, expected)


class Gated(nn.Module):
    """A GELU layer, a second linear layer around which it skips, a gate behind the sum, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.gate, self.second = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6)
        self.relu, self.head = nn.ReLU(), nn.Linear(6, 2)

    def forward(self, x):
        h = self.gate(self.first(x))
        return self.head(self.relu(self.second(h) + h))


@functools.cache
def gated():
    torch.manual_seed(6)
    model = Gated().double().eval()
    with torch.no_grad():  # every neuron has input of each sign, so that rows have one support
        model.first.weight.abs_().mul_(torch.tensor([1.0, -1, 1, -1]))
        model.second.weight.abs_().mul_(torch.tensor([1.0, -1, 1, -1, 1, -1]))
    return model, torch.randn(2, 4, dtype=F64, generator=torch.Generator().manual_seed(8))


def continues(play, name, k):
    """(B,) the probability of going on at a gate."""
    return play.policy(name)[:, k]


@pytest.mark.parametrize("make", GAMES)
def test_two_neurons_behind_a_gate(make):
    """S27, S28: the gate's own choice, then the rows of the two pre-activations, which are compared by themselves."""
    model, x = gated()
    game = make(model)
    at = {name: [game.play(x, (name, k)) for k in (1, 4)] for name in ("first", "gate")}
    below, h = bp.hellinger(*at["first"]), bp.hellinger(*at["gate"])
    c, d = (continues(game.play(x, 0), "gate", k) for k in (1, 4))
    assert bool((below.bc > 0.1).all()) and bool((c * d > 0).all())
    ended = ((1 - c) * (1 - d)).sqrt()
    assert_near(h.bc, (c * d).sqrt() * below.bc + ended, what="BC")
    assert_near(h.cemetery_overlap, (c * d).sqrt() * below.cemetery_overlap + ended, what="†")
    assert_near(h.disagreement.sum(1), by_hand(h), what="h² at the input")
    assert_near(h.bc_forward(), h.bc, what="forward")
    expected = c * (c / d).log() + (1 - c) * ((1 - c) / (1 - d)).log() + c * below.kl
    assert_near(h.kl, expected, what="KL")
    check_growth(h)


@pytest.mark.parametrize("make", GAMES)
def test_two_neurons_of_a_sum(make):
    """S27, S28: half of each walk takes the branch and half the skip connection; both halves overlap.

    The skip leads to the gate of the same neuron, which other walks come to as well.
    """
    model, x = gated()
    game, (node,) = make(model), [n for n in bp.capture(model, x).nodes if n.kind == "sum"]
    at = {name: [game.play(x, (name, k)) for k in (1, 4)] for name in ("second", "gate", node.name)}
    branch, skip, h = (bp.hellinger(*at[name]) for name in ("second", "gate", node.name))
    assert bool((branch.bc > 0.1).all()) and bool((skip.bc > 0.1).all())
    for name in ("bc", "cemetery_overlap", "kl"):
        assert_near(getattr(h, name), (getattr(branch, name) + getattr(skip, name)) / 2, what=name)
    assert_near(h.bc_forward(), h.bc, what="forward")
    behind = bp.hellinger(*(game.play(x, ("relu", k)) for k in (1, 4)))
    c, d = (continues(game.play(x, 0), "relu", k) for k in (1, 4))
    assert_near(behind.bc, (c * d).sqrt() * h.bc + ((1 - c) * (1 - d)).sqrt(), what="behind its ReLU")
    check_growth(h)
    check_growth(behind)
    assert bool((h.surviving < 1).all())


def by_hand(h):
    """(B,) what of `H²` lies at the input: all but the disagreement in †."""
    ends = (h.a.cemetery + h.b.cemetery) / 2 - h.cemetery_overlap
    return h.distance.square() - ends


def check_growth(h):
    """S31: the prefix overlap never grows, ends at BC, and its parts add up."""
    curve = torch.stack([bc for _, bc in h.by_layer])
    assert bool((curve.diff(dim=0) <= 1e-12).all())
    assert_near(curve[-1], h.bc, what="the last layer")
    for layer in h.growth:
        assert_near(layer.ordinary + layer.cemetery + layer.constant, layer.bc)
