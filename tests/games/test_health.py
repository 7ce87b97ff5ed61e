"""Health: whether the numbers are sound, and apart from that how much of the walk arrives, why, and what helps."""

import pytest
import torch
from torch import nn

import backplay as bp


class Residual(nn.Module):
    """A residual sum, ReLU gates, biases, a constant row."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.row = nn.Parameter(torch.rand(1, 1, 6))

    def forward(self, x):
        x = torch.cat([self.row.expand(len(x), -1, -1), x], 1)
        h = torch.relu(self.first(x))
        h = h + torch.relu(self.inner(h))
        return self.head(h.mean(1))


@pytest.fixture
def model():
    return Residual().double().eval()


@pytest.fixture
def x():
    return torch.randn(3, 4, 6, dtype=torch.float64)


OPTIONS = [
    (bp.StoppingGame, {}),
    (bp.RoutingGame, {}),
    (bp.RoutingGame, {"bias": "absorb", "epsilon": 0.0}),
    (bp.RoutingGame, {"empty_stream": "reroute", "residual": "proportional", "epsilon": 0.0}),
]


@pytest.mark.parametrize("game, options", OPTIONS)
def test_shares_are_the_whole_walk(model, x, game, options):
    """What arrives and where the rest ends make 1, each cause as the walk itself tells it."""
    play = game(model, **options).play(x, 1)
    health = play.health()
    worst = int((1 - play.cemetery - play.constant).argmin())
    assert health.arrives == pytest.approx(float(1 - play.cemetery[worst] - play.constant[worst]), abs=1e-10)
    assert health.arrives + sum(health.ends.values()) == pytest.approx(1, abs=2e-3)  # shares below 0.1 % are left out
    assert health.ends.get("constants", 0) == pytest.approx(float(play.constant[worst]), abs=1e-3)
    assert health.ends.get("biases", 0) == pytest.approx(float(play.bias_leak[worst]), abs=1e-3)


def test_causes(model, x):
    """Each mode opens or closes the end that it is about."""
    ends = lambda **options: bp.RoutingGame(model, **options).play(x, 1).health().ends  # noqa: E731
    assert "ε outside options" in ends(epsilon=0.5) and "ε outside options" not in ends(epsilon=0.0)
    assert "biases" in ends(bias="absorb") and "biases" not in ends()
    ends_uniform, ends_split = ends(epsilon=0.0), ends(epsilon=0.0, residual="proportional")
    assert "dead ends of residual sums" in ends_uniform and "dead ends of residual sums" not in ends_split
    assert "shut gates" not in ends_uniform, "a policy on contributions never comes to a shut ReLU"
    shut = bp.StoppingGame(model).play(x, 1).health().ends
    assert set(shut) <= {"shut gates", "constants"} and "shut gates" in shut


def test_empty_streams():
    """A stream without contributions ends its half of the walk, unless it is rerouted."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.abs_()
    x = torch.rand(1, 3, dtype=torch.float64) + 0.1
    health = bp.RoutingGame(model, epsilon=0.0).play(x, 0).health()
    assert health.ends == pytest.approx({"empty streams": 0.75}) and health.arrives == pytest.approx(0.25)
    assert health.advice == ('empty_stream="reroute"',)
    assert 'empty_stream="reroute"' in str(health)
    rerouted = bp.RoutingGame(model, epsilon=0.0, empty_stream="reroute").play(x, 0).health()
    assert rerouted.arrives == pytest.approx(1) and not rerouted.ends and not rerouted.advice


def test_advice_helps(model, x):
    """What is advised does raise the share that arrives."""
    game = bp.RoutingGame(model, epsilon=5.0)
    health = game.play(x, 1).health()
    assert "a smaller epsilon" in health.advice and 'residual="proportional"' in health.advice
    for better in ({"epsilon": 0.01}, {"residual": "proportional"}):
        assert game.replace(**better).play(x, 1).health().arrives > health.arrives


def test_words(model, x):
    """Soundness first, then the journey; little that arrives is no praise and no blame."""
    health = bp.RoutingGame(model, epsilon=50.0).play(x, 1).health()
    first, second = str(health).splitlines()
    assert health.ok and first.startswith("sound: ") and "float64" in first
    assert "% of the walk arrives" in second and "% ends in ε outside options" in second and "epsilon" in second
    assert "\n" not in health.summary
    broken = bp.RoutingGame(model).play(x, 1)
    broken.solved._scope[broken.network.output] = broken.solved.logits + 1
    assert str(broken.health()).startswith("NOT SOUND: ") and not broken.health().ok


def test_nothing_arrives():
    """A network whose gates are all shut."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        model[0].bias.fill_(-100)
    health = bp.StoppingGame(model).play(torch.rand(1, 3, dtype=torch.float64), 0).health()
    assert health.ok and health.arrives == 0 and "no walk arrives" in str(health)
    assert health.ends == pytest.approx({"shut gates": 1.0}, rel=1e-12)
