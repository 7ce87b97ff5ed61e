"""Graphs that tests share: on weights of their own, never two in use at once, and a wrong one is noticed."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import backplay as bp
from alike import CAPTURE, Shared, alike
from closeness import assert_near

X = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def small(width=3):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)).double().eval()


@pytest.fixture
def counted(monkeypatch):
    """How many models have been followed by torch.export; none is at hand at the start."""
    export, calls = torch.export.export, []

    def counting(*given, **more):
        calls.append(given)
        return export(*given, **more)

    monkeypatch.setattr(torch.export, "export", counting)
    monkeypatch.setattr(CAPTURE, "_compared", Shared())
    return calls


def test_a_graph_is_handed_on(counted):
    """The second model is not followed, and its map is that of a capture of its own."""
    bp.RoutingGame(small()).attribute(X, 0)
    second = small()
    found = bp.RoutingGame(second).attribute(X, 0)
    assert len(counted) == 1
    own = CAPTURE._follow(second, bp.capture(second, X).example)
    assert_near(found, bp.RoutingGame(own).attribute(X, 0))
    assert (found - bp.RoutingGame(small()).attribute(X, 0)).abs().max() > 1e-3


def test_two_in_use_have_two_graphs(counted):
    """Also where only a network on other weights is left of the first one."""
    first, second = bp.capture(small(), X), bp.capture(small(), X)
    assert len(counted) == 2 and not set(first.nodes) & set(second.nodes)
    left = first.on(small())
    del first
    third = bp.capture(small(), X)
    assert len(counted) == 3 and not set(left.nodes) & set(third.nodes)
    del left, third
    bp.capture(small(), X)
    assert len(counted) == 3


class Tied(nn.Module):
    def __init__(self, tied, scale=1.0):
        super().__init__()
        self.first, self.second, self._scale = nn.Linear(4, 4), nn.Linear(4, 4), scale
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x):
        return self._scale * self.second(self.first(x).relu())


def test_what_decides_a_graph(counted):
    """Widths, tensors that are one, settings, hooks, precision: models that differ in these are followed apart."""
    hooked = small()
    hooked[1].register_forward_hook(lambda module, given, out: out * 2)
    models = [small(), small(5), Tied(True).double(), Tied(False).double(), Tied(False, scale=2.0).double(), hooked]
    for k, model in enumerate(models):
        assert torch.allclose(bp.capture(model, X).run({0: X}), model(X))
        assert len(counted) == k + 1
    bp.capture(small().float(), X.float())
    assert len(counted) == len(models) + 1


@dataclass(frozen=True)
class Size:
    """A setting of several numbers."""

    scale: float


class Set(nn.Module):
    """Settings that are compared part by part: a function with its arguments, and a record."""

    def __init__(self, eps, scale):
        super().__init__()
        self.norm, self.size, self.layer = partial(nn.functional.layer_norm, eps=eps), Size(scale), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(self.norm(x, (4,))) * self.size.scale


def test_settings_are_compared_part_by_part(counted):
    for k, given in enumerate([(1e-3, 1.0), (1e-1, 1.0), (1e-3, 2.0)]):
        for _ in range(2):
            model = Set(*given).double()
            assert torch.allclose(bp.capture(model, X).run({0: X}), model(X))
        assert len(counted) == k + 1


class Moody(nn.Linear):
    """What it computes is decided by something that nobody can see in it."""

    mood = 1.0

    def forward(self, x):
        return super().forward(x) * self.mood


def test_a_wrong_graph_is_noticed(counted):
    bp.capture(Moody(4, 2).double(), X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Moody, "mood", 3.0)
        with pytest.warns(UserWarning, match="the capture of Moody is unsound"):
            bp.capture(Moody(4, 2).double(), X)
    assert len(counted) == 1


def test_alike_refuses_what_it_cannot_compare():
    model = small()
    model.table = torch.ones(3)
    with pytest.raises(AssertionError, match="could decide the graph"):
        alike(model, X)
