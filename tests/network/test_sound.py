"""A capture is compared with its model once, when it is made (S38)."""

import random
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp

pytestmark = pytest.mark.capture


class Net(nn.Module):
    """Two linear layers around a function of the hidden values, the input and the module."""

    def __init__(self, function):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))
        self.function, self.calls = function, 0
        self.double().eval()

    def forward(self, x):
        return self.head(self.function(self.first(x), x, self))


def x():
    return torch.randn(3, 4, dtype=torch.float64)


def draw(h, x, net):
    return h + torch.randn(h.shape, dtype=h.dtype)


def constant_noise(h, x, net):
    return h * torch.rand(6, dtype=torch.float64)


def dropout(h, x, net):
    return functional.dropout(torch.relu(h), 0.5, training=True)


def python_random(h, x, net):
    return h * random.random()


def counter(h, x, net):
    net.calls += 1
    return h * net.calls


@pytest.mark.parametrize("function", [draw, constant_noise, dropout, python_random, counter])
def test_two_runs_that_differ_are_refused(function):
    """Randomness and counters in the forward pass: what could a map of that be?"""
    with pytest.raises(RuntimeError, match="two runs") as caught:
        bp.capture(Net(function), x())
    message = str(caught.value)
    assert isinstance(caught.value, bp.BackplayError) and message.count("\n") <= 1 and "capture again" in message


def item(h, x, net):
    return h * x.max().item()


def test_an_unsound_capture_warns_once():
    """Values that became constants: one line with what to do, for each model once."""
    model = Net(item)
    with pytest.warns(UserWarning, match="unsound") as seen:
        bp.capture(model, x())
    said = [str(w.message) for w in seen if "unsound" in str(w.message)]
    assert len(said) == 1 and "\n" not in said[0] and "rewrite" in said[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = bp.capture(model, x() + 1)
    assert not bp.RoutingGame(network).play(x() * 5, 0).health().ok


def item_and_told(h, x, net):
    return (torch.relu(h) + h.detach()) * x.max().item()


def test_an_unsound_capture_with_told_values():
    """The comparison runs the program again, detached values included."""
    with pytest.warns(UserWarning, match="unsound"):
        bp.capture(Net(item_and_told), x())


def whole(h, x, net):
    return torch.relu(h).to(torch.int64).double()


def cut(h, x, net):
    return h.detach()


@pytest.mark.parametrize("function, word", [(whole, "to"), (cut, "detach")])
def test_what_has_no_slope_is_refused(function, word):
    """The walk would have to cross it; before, its mass was lost without a word."""
    with pytest.raises(RuntimeError, match=f"cross {word} in") as caught:
        bp.capture(Net(function), x())
    assert isinstance(caught.value, bp.BackplayError)


def beside(h, x, net):
    return h.detach() + torch.relu(h)


def as_factor(h, x, net):
    return h.detach() * torch.relu(h)


def as_index(h, x, net):
    return h * net.head.weight[0][h.argmax(1, keepdim=True) % 6]


@pytest.mark.parametrize("function", [beside, as_factor, as_index])
def test_detached_values_are_constants(function):
    """Added a bias, multiplied a diagonal: the Stopping Game is the gradient that torch gives."""
    model, given = Net(function), x().requires_grad_()
    play = bp.StoppingGame(model).play(given.detach(), 1)
    (expected,) = torch.autograd.grad(model(given)[:, 1].sum(), given)
    assert play.health().ok
    torch.testing.assert_close(play.attribution(), expected, rtol=1e-10, atol=1e-12)


def test_state_stays():
    """A buffer that the forward pass changes is what it was, after the capture and after every question."""

    def counts(h, x, net):
        net.count += 1
        return h * net.count

    model = Net(counts)
    model.count += 2
    before, version = model.count, model.count._version
    play = bp.RoutingGame(model).play(x(), 0)
    assert play.health().ok
    assert model.count is before and before._version == version and float(before) == 2
    torch.testing.assert_close(play.value, model(play.x)[:, 0])


def test_random_numbers_stay():
    """A capture draws none of torch's random numbers, refused or not."""
    for function in (lambda h, x, net: h, draw):
        model, given = Net(function), x()
        torch.manual_seed(5)
        before = torch.get_rng_state()
        try:
            bp.capture(model, given)
        except bp.BackplayError:
            assert function is draw
        assert torch.equal(torch.get_rng_state(), before)


def test_zeros_are_an_example():
    """An example whose logits are all 0, or NaN, says nothing against a capture."""
    bp.capture(nn.Linear(4, 3, bias=False), torch.zeros(2, 4))
    bp.capture(Net(lambda h, x, net: h / x.abs().sum(1, keepdim=True)), torch.zeros(2, 4, dtype=torch.float64))


class Alone(nn.Module):
    """One sample alone loses its dimension here, which batch norm then refuses."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.first(x[:, None]).squeeze()))


def test_a_model_that_cannot_take_one_sample():
    """A capture made with one sample plays batches; the model itself can only be asked about two."""
    torch.manual_seed(0)
    model, one = Alone().eval(), torch.randn(1, 4)
    with pytest.raises(ValueError, match="2D or 3D"):
        model(one)
    pair = torch.randn(2, 4)
    play = bp.RoutingGame(bp.capture(model, one)).play(pair, 1)
    torch.testing.assert_close(play.value, model(pair)[:, 1])


class Squeezed(nn.Module):
    def forward(self, x):
        return x.squeeze()


def test_a_model_that_drops_the_dimension_of_one_sample():
    """It is captured, for walks may start at a neuron; what a logit needs is said when one is asked for."""
    network = bp.capture(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1), Squeezed()), torch.randn(1, 4))
    with pytest.raises(bp.BackplayError, match=r"out\[:, None\]"):
        bp.RoutingGame(network).attribute(torch.randn(2, 4))


def test_a_model_that_fails_keeps_its_message():
    """What the model says of an input stays readable."""

    def fails(h, x, net):
        raise KeyError("no such thing")

    with pytest.raises(bp.BackplayError, match=r"itself fails.*no such thing"):
        bp.capture(Net(fails), x())
