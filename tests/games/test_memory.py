"""What nobody holds any more is gone at once: no reference cycle keeps gigabytes until the collector comes by."""

import gc
import weakref

import pytest
import torch
from torch import nn

import backplay as bp

pytestmark = pytest.mark.capture


def modest():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)).eval()


def traces(game_class, **modes):
    """Weak references to all that a play holds, after its last user is gone."""
    model, x = modest(), torch.randn(2, 3, 8, 8)
    game = game_class(model, **modes)
    play = game.play(x, 1)
    play.health(), play.marginal("input")
    network = play.network
    held = {"model": model, "game": game, "play": play, "network": network, "values": play.solved}
    held |= {"weight": model[0].weight, "value": play.solved[network.nodes[1]], "kernel": play.kernel(network.nodes[1])}
    return {name: weakref.ref(thing) for name, thing in held.items()}


@pytest.mark.parametrize(
    "game, modes",
    [
        (bp.RoutingGame, {}),
        (bp.RoutingGame, {"tau": 2.0}),
        (bp.RoutingGame, {"risk": -1.0, "input_variance": 1.0}),
        (bp.RoutingGame, {"risk": -1.0, "input_variance": 1.0, "risk_forward": True}),
        (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}),
        (bp.StoppingGame, {}),
        (bp.StoppingGame, {"risk": -1.0, "input_variance": 1.0}),
    ],
)
def test_nothing_lingers(game, modes):
    gc.disable()
    try:
        left = [name for name, trace in traces(game, **modes).items() if trace() is not None]
    finally:
        gc.enable()
    assert not left
