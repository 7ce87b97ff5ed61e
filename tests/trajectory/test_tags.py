"""Tags of a pixel in the marginal map: streams in the Routing Game, players in the Stopping Game (S29)."""

import torch
from torch import nn

import backplay as bp
from closeness import assert_near

F64 = torch.float64


def two_layers(first, last):
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double().eval()
    with torch.no_grad():
        model[0].weight.fill_(first)
        model[2].weight.fill_(last)
    return model


def test_streams_not_players():
    """eq:rg-T-pixel: a pixel is told apart by the stream crossed last, eq:adf-T: by the player who arrives.

    One input, one neuron. A has weights (1, 1), B (1, −1): B's walk crosses the − stream first, which switches the
    player, and then the + stream like A's. Half of either walk arrives with the tag +, so the marginal map of the
    Routing Game is 0, while the players differ in all of that mass, as the Stopping Game's map says.
    """
    x = torch.ones(1, 1, dtype=F64)
    routing, stopping = (
        bp.hellinger(*(game(two_layers(1.0, w)) for w in (1.0, -1.0)))
        for game in (
            lambda m: bp.RoutingGame(m, epsilon=0.0).play(x, 0),
            lambda m: bp.StoppingGame(m).play(x, 0),
        )
    )
    # one of two streams is empty at each layer: a quarter of the walks arrives
    assert_near(routing.survival_a, [0.25])
    assert_near(routing.map("marginal"), [[0.0]])
    assert_near(routing.map("trajectory"), [[0.25]])
    assert_near(stopping.survival_a, [1.0])
    assert_near(stopping.map("marginal"), [[1.0]])
    assert_near(routing.marginal_distance, [0.0])
    assert_near(stopping.marginal_distance, [1.0])


class Pooled(nn.Module):
    """A sum of shares of non-negative values: no stream state on the way (S18)."""

    def forward(self, x):
        return x.relu().unflatten(1, (2, 2)).mean(2)


def test_no_stream():
    """A walk that crosses no stream state keeps a tag of its own, and its mass is in the map all the same."""
    x, y = (torch.tensor([row], dtype=F64) for row in ([3.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]))
    model = Pooled()
    h = bp.hellinger(*(bp.RoutingGame(model).play(z, 0) for z in (x, y)))
    expected = [((0.75**0.5 - 0.5**0.5) ** 2) / 2, ((0.25**0.5 - 0.5**0.5) ** 2) / 2, 0.0, 0.0]
    assert_near(h.map("marginal")[0], expected)
    assert_near(h.map("trajectory")[0], expected)
