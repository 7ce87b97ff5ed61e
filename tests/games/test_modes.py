"""Modes together (sec:modes): a keyword that is accepted acts; a pair that cannot act is refused, never dropped."""

import pytest
import torch

import backplay as bp
import hand

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.mark.parametrize(
    "game, keywords, added",
    [
        (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}, {"entropy_bias": 0.5}),
        (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}, {"risk": -1.0}),
        (bp.RoutingGame, {"entropy_bias": 0.5, "risk": -1.0}, {"gate": "noisy"}),
        (bp.StoppingGame, {"softplus": 0.5}, {"entropy_bias": 0.5}),
        (bp.StoppingGame, {"risk": -1.0}, {"entropy_bias": 0.5}),
    ],
)
def test_no_keyword_is_dropped(game, keywords, added):
    """S19-S21: the last keyword changes the map on a network where its gates and values matter."""
    model, x = hand.mlp(5, 12, 9, 3), 2 * torch.randn(3, 5, dtype=torch.float64)
    before = game(model, input_variance=0.3, **keywords)
    assert (before.attribute(x, 1) - before.replace(**added).attribute(x, 1)).abs().max() > 1e-6


@pytest.mark.parametrize(
    "game, keywords, added",
    [
        (bp.RoutingGame, {"risk": -1.0, "risk_forward": True, "tau": 0.5}, {"tau_forward": True}),
        (bp.RoutingGame, {"risk": -1.0, "risk_forward": True}, {"entropy_bias": 0.5}),
        (bp.StoppingGame, {"softplus": 0.5}, {"gate": "noisy"}),
        (bp.StoppingGame, {"softplus": 0.5}, {"risk": -1.0}),
    ],
)
def test_what_cannot_act_together_is_refused(game, keywords, added):
    """The message names both keywords."""
    before = game(hand.mlp(5, 12, 9, 3), input_variance=0.3, **keywords)
    with pytest.raises(ValueError, match="use one") as refused:
        before.replace(**added)
    assert next(iter(added)) in str(refused.value)


@pytest.mark.parametrize("ablation", [{"tau": 0.5, "tau_forward": True}, {"risk": -1.0, "risk_forward": True}])
@pytest.mark.parametrize("fused", [True, False])
def test_an_averse_oracle_under_the_ablations(fused, ablation):
    """S19, S20, S24: aversion is backward only, so that the forward pass of an ablation is the same without it."""
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    game = bp.RoutingGame(hand.attention(fused), input_variance=0.5, **ablation)
    before, after = game.play(x, 1), game.replace(attention_risk=-5.0).play(x, 1)
    torch.testing.assert_close(before.value, after.value, rtol=1e-13, atol=0)
    assert (before.attribution() - after.attribution()).abs().max() > 1e-6


def test_probabilities_are_not_negative():
    """S13: what `policy` calls a probability is one."""
    model, x = hand.mlp(4, 5, 2), torch.randn(1, 4, dtype=torch.float64)
    game = bp.RoutingGame(model)
    for tau, epsilon in ((0.5, 0.0), (0.5, 0.3), (1.0, 0.3), (2.0, 0.3)):
        play = game.replace(tau=tau, epsilon=epsilon).play(x, 0)
        for j in range(5):
            for moved in play.policy("0", (0, j))["input"]:
                assert moved.min() >= 0 and moved.max() <= 0.5 + 1e-12
