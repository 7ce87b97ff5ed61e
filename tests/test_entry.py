"""The door: autocast and gradients are off behind it, and what no check foresaw names its node (S38)."""

import inspect

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.entry import entry
from backplay.errors import UnforeseenError

pytestmark = pytest.mark.capture


class Net(nn.Module):
    """A convolution, a norm, a residual sum and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x)))
        h = h + torch.relu(self.inner(h))
        return self.head(h.mean((2, 3)))


@pytest.fixture
def model():
    return Net().eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, 8)


def fails(*_):
    raise IndexError("planted\nand more of it")


def planted(model, x, name="inner"):
    """A network one of whose nodes fails."""
    network = bp.capture(model, x)
    network.find(name).function = fails
    return network


def refused(action, *words):
    with pytest.raises(UnforeseenError) as caught:
        action()
    message = str(caught.value)
    assert isinstance(caught.value, bp.BackplayError)
    assert isinstance(caught.value.__cause__, Exception)
    assert message.count("\n") <= 1 and len(message) < 500, message
    for word in words:
        assert word in message, message
    return caught.value


CALLS = {
    "play": lambda net, x: bp.RoutingGame(net).play(x, 0),
    "attribute": lambda net, x: bp.StoppingGame(net).attribute(x, 0),
    "decompose": bp.decompose,
    "moments": lambda net, x: bp.moments(net, x, 0.1),
    "sweep": lambda net, x: bp.sweep(bp.RoutingGame(net), x, 0, tau=[1.0]),
    "explain": lambda net, x: bp.explain(net, x, 0, method="lrp_epsilon"),
    "reynolds": lambda net, x: bp.Reynolds(bp.RoutingGame(net), n=2).attribute(x, 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_failure_names_the_node(model, x, name):
    """A node that fails forward is named, with its module and its operator; the original is the cause."""
    error = refused(lambda: CALLS[name](planted(model, x), x), "'inner'", "conv2d", "IndexError: planted")
    assert isinstance(error.__cause__, IndexError)
    assert "and more of it" not in str(error)


QUESTIONS = {
    "attribution": lambda play: play.health(),
    "occupation": lambda play: play.occupation("input"),
    "marginal": lambda play: play.marginal("conv"),
    "cemetery": lambda play: play.cemetery,
    "sample": lambda play: play.sample(500),
    "hellinger": lambda play: bp.hellinger(play, bp.RoutingGame(play.network).play(play.x, 1)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_failing_kernel_names_the_node(model, x, name):
    """A kernel that fails in any question about a play: here one without its weights."""
    play = bp.RoutingGame(model).play(x, 0)
    node = play.network.find("inner")
    play._kernels[node] = object.__new__(type(play.kernel(node)))
    refused(lambda: QUESTIONS[name](play), "'inner'", "AttributeError")


def test_failing_lowering_names_the_node(model, x, monkeypatch):
    """A failure while the program is read names the call that was read."""
    from backplay.network.reading.calls import READINGS

    monkeypatch.setitem(READINGS, "gate", fails)
    refused(lambda: bp.capture(model, x), "relu", "IndexError: planted")


def test_python_errors_of_a_call_stay(model, x):
    """A call without its arguments is Python's own TypeError, and memory errors are nobody's bug."""
    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        bp.RoutingGame(model).attribute()
    assert not isinstance(caught.value, bp.BackplayError)
    network = planted(model, x)

    def full(*_):
        raise MemoryError

    network.find("inner").function = full
    with pytest.raises(MemoryError):
        bp.RoutingGame(network).attribute(x)


def test_signatures_stay():
    """What the door wraps still shows its parameters."""
    assert "additional_forward_args" in inspect.signature(bp.RoutingGame.attribute).parameters
    assert list(inspect.signature(bp.capture).parameters)[:2] == ["model", "example"]
    assert isinstance(inspect.getattr_static(bp.Play, "cemetery"), property) and bp.Play.cemetery.__doc__


@pytest.mark.parametrize("name", ["rg", "sg", "lrp_epsilon", "integrated_gradients", "gradcam", "deeplift"])
def test_autocast_changes_nothing(model, x, name):
    """Whatever the caller has switched on, capture and map are those of float32."""
    plain = bp.explain(model, x, 0, method=name)
    with torch.autocast("cpu"):
        again = bp.explain(model, x, 0, method=name)
        fresh = bp.explain(Copy(model), x, 0, method=name)
        assert torch.is_autocast_enabled("cpu")
    assert again.dtype == fresh.dtype == torch.float32
    torch.testing.assert_close(again, plain)
    torch.testing.assert_close(fresh, plain)


class Copy(nn.Module):
    """The same model behind another object, which has to be captured anew."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def test_autocast_in_every_question(model, x):
    """A play made outside answers inside, and one made inside is sound."""
    play = bp.RoutingGame(model).play(x, 0)
    marginal = bp.RoutingGame(model).play(x, 0).marginal("conv")
    with torch.autocast("cpu"):
        torch.testing.assert_close(play.marginal("conv"), marginal)
        inside = bp.RoutingGame(Copy(model)).play(x, 0)
        assert inside.health().ok
        torch.testing.assert_close(inside.value, play.value)
        torch.testing.assert_close(bp.hellinger(play, play).bc, torch.ones(2, dtype=torch.float64))
        bp.moments(model, x, 0.1), bp.decompose(model, x), bp.certify(play), play.sample(4)


def test_kept_properties_are_entries_too():
    """Autocast is off where a distance computes what it keeps (S38)."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(2, 1, 6)
    plays = [bp.RoutingGame(model, epsilon=0.1).play(each, 1) for each in x]
    expected = bp.hellinger(*plays).kl
    with torch.autocast("cpu", torch.bfloat16):
        found = bp.hellinger(*plays).kl
    torch.testing.assert_close(found, expected)


def modes():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("outside", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_gradients_and_inference_mode_are_off_inside(outside):
    """Also in a call within a part that has switched gradients on for itself; the caller's own modes come back."""

    @entry
    def inner():
        return modes(), torch.ones(1)

    @entry
    def outer():
        with torch.enable_grad():
            found = inner()
            assert modes() == (True, False)
        return modes(), found

    with outside():
        before = modes()
        around, (within, made) = outer()
        assert modes() == before
    assert around == within == (False, False) and not made.is_inference()
