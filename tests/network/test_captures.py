"""What is explained is the model as it is now: captures are kept, and given up when the model has moved on."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.network import captures
from closeness import assert_near

pytestmark = pytest.mark.capture

F64 = torch.float64
CAPTURING = ("sg", "rg", "deeplift", "lrp_epsilon")


class Scaled(nn.Module):
    """Numbers and hooks that no state dict and no `repr` shows."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.scale, self.clip = nn.Linear(4, 6), nn.Linear(6, 2), 1.0, 50.0

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).clamp(max=self.clip) * self.scale)


def rescaled(model):
    model.scale = -3.0


def hooked(model):
    model.first.register_forward_hook(lambda module, args, output: 2 * output)


def patched(model):
    model.forward = lambda x: model.last(torch.relu(model.first(x) - 0.3))


def clipped(model):
    """A change that the second sample alone feels."""
    model.clip = 1.0


@pytest.fixture
def counted(monkeypatch):
    """The models that are captured, in order."""
    found = []

    def counting(model, example):
        found.append(model)
        return bp.capture(model, example)

    monkeypatch.setattr(captures, "capture", counting)
    return found


@pytest.mark.parametrize("change", [rescaled, hooked, patched, clipped])
def test_changes_in_python(change, counted):
    """Attributes, hooks and another `forward`: every method follows, at the price of one capture."""
    model, x = Scaled().to(F64).eval(), torch.tensor([[0.1, 0.2, -0.3, 0.1], [20.0, -30, 10, 25]], dtype=F64)
    before = {name: bp.explain(model, x, 0, method=name) for name in CAPTURING}
    assert len(counted) == 1
    change(model)
    for name in CAPTURING:
        found = bp.explain(model, x, 0, method=name)
        assert_near(found, bp.explain(bp.capture(model, x), x, 0, method=name), what=name)
        assert (found - before[name]).abs().max() > 1e-3
    assert_near(bp.explain(model, x, 0, method="sg"), bp.explain(model, x, 0, method="gradient"))
    assert len(counted) == 2


def test_kept_while_nothing_changes(counted):
    """Weights that train are read anew; the graph is followed once."""
    model, x = Scaled().eval(), torch.randn(3, 4)
    for _ in range(3):
        bp.explain(model, x, 0, method="lrp_epsilon")
        with torch.no_grad():
            model.first.weight.mul_(1.1)
    assert len(counted) == 1


class Fixed(nn.Module):
    """A number read off the input, which a capture fixes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) * x.max().item()


def test_captured_once_more_at_most(counted):
    """A capture that differs from its model from the start is not made again for every map."""
    model, x = Fixed().eval(), torch.randn(2, 4)
    with pytest.warns(UserWarning, match="unsound"):
        bp.explain(model, x, 0, method="lrp_epsilon")
    for k in range(3):
        bp.explain(model, x * (k + 2), 0, method="lrp_epsilon")
    assert len(counted) <= 2


class Told(nn.Module):
    """Values that others read as constants: a detached one, and the indices of a choice."""

    def __init__(self):
        super().__init__()
        self.first, self.other, self.last = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)
        self.double().eval()

    def forward(self, x):
        h, k = self.first(x), self.other(x)
        h = torch.relu(h + k.detach())
        return self.last(h + k.gather(1, h.argsort(1)))


@pytest.mark.parametrize("name", CAPTURING)
def test_told_values(name, counted):
    """A program with detached values and indices is run again like any other, and found to be the model."""
    model, x = Told(), torch.randn(3, 4, dtype=F64)
    found = [bp.explain(model, part, 1, method=name) for part in (x, x.flip(0))]
    assert_near(found[0], found[1].flip(0))
    if name in ("sg", "rg"):
        game = bp.StoppingGame if name == "sg" else bp.RoutingGame
        assert_near(found[0], game(model).attribute(x, 1))
    assert len(counted) <= 2  # that of the method, and that of the game
