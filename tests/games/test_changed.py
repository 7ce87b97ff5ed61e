"""A play whose model has changed since: the refusal names the tensor, and what moved it (S1)."""

import pytest
import torch
from torch import nn

import backplay as bp
from refusals import refused


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()


def scaled(model):
    with torch.no_grad():
        model[3].weight.mul_(2)


def behind(model):
    model[3].bias.data.fill_(3.0)  # no counter of torch's sees it


def replaced(model):
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def several(model):
    behind(model)
    model[1].running_var = model[1].running_var * 2
    scaled(model)


CHANGES = [(scaled, "'3.weight'"), (behind, "'3.bias'"), (replaced, "'0.weight'"), (several, "'3.weight'")]


@pytest.mark.parametrize("change, name", CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_the_tensor_is_named(change, name):
    model = net()
    play = bp.RoutingGame(model).play(torch.randn(2, 4), 0)
    assert play.network.changed_since(play.solved.weights) is None
    play.health()
    change(model)
    message = refused(play.health, "has changed since this play was solved", name, "play again to examine it")
    assert "train mode" not in message


@pytest.mark.parametrize("ask", ["health", "attribution"])
def test_a_forward_pass_in_train_mode(ask):
    """Batch norm's statistics have moved: the first of real numbers is named, not the counter beside it."""
    model, x = net(), torch.randn(2, 4)
    play = bp.RoutingGame(model).play(x, 0).release()
    model.train()
    model(x)
    message = refused(getattr(play, ask), "'1.running_mean'", "forward pass in train mode", "model.eval()")
    assert message.count("\n") == 1


def test_nothing_more_is_looked_at_where_nothing_changed(monkeypatch):
    """The search for a name begins only once something is known to differ."""
    from backplay.network.weights import Snapshot

    model = net()
    play = bp.RoutingGame(model).play(torch.randn(2, 4), 0)
    monkeypatch.setattr(Snapshot, "_sampled", lambda self: pytest.fail("searched"))
    play.health()
