"""Modes together: a keyword that is accepted acts; a pair that cannot act together is refused, never dropped."""

import pytest
import torch

import backplay as bp
from modes import hand


def maps(game, x, **keywords):
    """The map without and with keywords, or None where they are refused."""
    try:
        changed = game.replace(**keywords)
    except ValueError:
        return None
    return game.attribute(x, 1), changed.attribute(x, 1)


@pytest.mark.parametrize(
    "game, keywords, added",
    [
        (bp.RoutingGame, {"risk": -1.0, "risk_forward": True, "tau": 0.5}, {"tau_forward": True}),
        (bp.RoutingGame, {"risk": -1.0, "risk_forward": True}, {"entropy_bias": 0.5}),
        (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}, {"entropy_bias": 0.5}),
        (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}, {"risk": -1.0}),
        (bp.RoutingGame, {"entropy_bias": 0.5, "risk": -1.0}, {"gate": "noisy"}),
        (bp.StoppingGame, {"softplus": 0.5}, {"gate": "noisy"}),
        (bp.StoppingGame, {"softplus": 0.5}, {"entropy_bias": 0.5}),
        (bp.StoppingGame, {"risk": -1.0}, {"entropy_bias": 0.5}),
    ],
)
def test_no_keyword_is_dropped(game, keywords, added):
    """S19-S21: the last keyword changes the map on a network where its gates and values matter, or is a ValueError."""
    model, x = hand.mlp(5, 12, 9, 3), 2 * torch.randn(3, 5, dtype=torch.float64)
    found = maps(game(model, input_variance=0.3, **keywords), x, **added)
    assert found is None or (found[0] - found[1]).abs().max() > 1e-6


def test_probabilities_are_not_negative():
    """S13: what `policy` calls a probability is one."""
    model, x = hand.mlp(4, 5, 2), torch.randn(1, 4, dtype=torch.float64)
    game = bp.RoutingGame(model)
    for tau, epsilon in ((0.5, 0.0), (0.5, 0.3), (1.0, 0.3), (2.0, 0.3)):
        play = game.replace(tau=tau, epsilon=epsilon).play(x, 0)
        for j in range(5):
            for moved in play.policy("0", (0, j))["input"]:
                assert moved.min() >= 0 and moved.max() <= 0.5 + 1e-12
