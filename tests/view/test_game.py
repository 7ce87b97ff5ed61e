"""The game graph: its states are the play's, and the paper's worked examples come out of it."""

import math
import re

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.view.gallery import example
from backplay.view.game import fraction
from backplay.view.states import Unit, states, weights
from backplay.view.subgame import Subgame
from legible import assert_legible, texts


def random_network(bias=True):
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3, bias=bias), nn.ReLU(), nn.Linear(3, 2, bias=bias)
    ).double()


class Skip(nn.Module):
    """A sum, a product with a constant, a maximum."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(2, 2)

    def forward(self, x):
        a = torch.relu(self.one(x))
        b = (a + self.two(a)) * 0.5
        return self.out(torch.relu(b).view(-1, 2, 2).amax(2))


NETWORKS = {"plain": random_network, "skip": lambda: Skip().double()}
GAMES = {
    "sg": bp.StoppingGame,
    "rg": bp.RoutingGame,
    "rg, no ε": lambda m: bp.RoutingGame(m, epsilon=0.0),
    "rg, rerouted": lambda m: bp.RoutingGame(m, empty_stream="reroute"),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", GAMES)
def test_states_are_those_of_the_play(network, name):
    torch.manual_seed(1)
    play = GAMES[name](NETWORKS[network]().eval()).play(torch.randn(2, 3, dtype=torch.float64), 1)
    for sample in (0, 1):
        found = states(play, sample)
        for k, column in enumerate(found.columns):
            marginal = play.marginal(column.output)[sample].flatten()
            occupied = [sum(found.mass.get((Unit(k, i), q), 0.0) for q in (1, -1)) for i in range(column.size)]
            assert torch.allclose(torch.tensor(occupied, dtype=torch.float64), marginal, atol=1e-12), column.name
        units = [Unit(k, i) for k, column in enumerate(found.columns) for i in range(column.size)]
        assert sum(found.ends(unit) for unit in units) == pytest.approx(float(play.cemetery[sample]), abs=1e-10)
        bp.view.game(play, sample=sample)


def test_turns_are_those_of_drawn_walks():
    play = bp.RoutingGame(random_network().eval()).play(torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64), 0)
    found, n = states(play, 0), 20000
    drawn = play.sample(n)
    for i in range(3):
        for player in (1, -1):
            here = (drawn.states["input"][0] == i) & (drawn.players["input"][0] == player)
            expected = found.mass.get((Unit(0, i), player), 0.0)
            assert abs(float(here.double().mean()) - expected) < 4 * math.sqrt(expected * (1 - expected) / n) + 1e-9


def test_weights():
    net = random_network().eval()
    play = bp.RoutingGame(net).play(torch.randn(1, 3, dtype=torch.float64), 0)
    found = states(play, 0)
    assert weights(found, found.unit("2", 1)) == pytest.approx(net[2].weight[1].tolist())
    assert found.unit("3", 1) == found.unit("2", 1)  # a gate stands together with the layer before it


class TestWorkedExamples:
    """fig:Stopping-Game-illustration and fig:Routing-Game-illustration, number by number."""

    def test_stopping_game(self):
        model, x = example()
        figure = bp.view.game(bp.StoppingGame(model).play(x, 0), around=("2", 1))
        said = texts(figure)
        for word in ("7/10", "1/5", "1/10"):  # transitions under continuation
            assert said.count(word) == 2, word  # in the whole graph, and in the local game
        local = "\n".join(said)
        assert "R⁺ = 100, R⁻ = 40\nV⁻ = −60, stops" in local  # the closed state, in the turn of −
        assert "V⁺ = 9" in local
        assert "† 30\u00a0%" in local  # half of 1/2 and half of 1/10
        assert_legible(figure)

    def test_stopping_game_states(self):
        model, x = example()
        found = states(bp.StoppingGame(model).play(x, 0), 0)
        moves = {m.target.index: (m.kept, m.switched) for m in found.moves if m.source == found.unit("2", 1)}
        assert moves == {0: pytest.approx((0.7, 0)), 1: pytest.approx((0.2, 0)), 2: pytest.approx((0, 0.1))}
        assert found.going_on[found.unit("0", 2)] == 0 and found.going_on[found.unit("0", 0)] == 1
        assert Subgame(found, found.unit("2", 1), 3, 7)._payoff(found.unit("0", 2), -1) == pytest.approx((100, 40, -60))

    def test_routing_game(self):
        model, x = example()
        figure = bp.view.game(bp.RoutingGame(model, epsilon=0.0).play(x, 0), around=("2", 1))
        said = texts(figure)
        assert "V⁺ = log 9" in said
        assert "7/9" in said and "2/9" in said  # the Gibbs policy on the + stream
        assert said.count("1/2") >= 2  # chance between the streams
        assert "pays log 7\nV⁺ = log 1" in said and "pays log 1\nV⁻ = −∞" in said
        assert "turn of +\nstream +" in said and "turn of −\nstream −" in said
        assert_legible(figure)

    def test_trajectories_integrate_to_the_map(self):
        model, x = example()
        play = bp.RoutingGame(model, epsilon=0.0).play(x, 0)
        figure = bp.view.game(play)
        left, right = play.attribution()[0].tolist()
        assert f"x = 1\nmap {left:g}" in texts(figure) and f"x = 2\nmap {right:g}".replace("-", "−") in texts(figure)
        assert_legible(figure)

    def test_first_layer_pays_contributions(self):
        model, x = example()
        figure = bp.view.game(bp.RoutingGame(model, epsilon=0.0).play(x, 0), around=("0", 1))
        assert "pays log 3" in texts(figure) and "pays log 2" in texts(figure)  # 3·1 and 1·2


@pytest.mark.parametrize("width", [3.3, 5, 10])
@pytest.mark.parametrize("name", GAMES)
def test_whole_graphs_are_legible(name, width):
    play = GAMES[name](random_network(bias=False).eval()).play(torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64), 0)
    # where many lines cross in a narrow column some numbers must touch
    assert_legible(bp.view.game(play, width=width), overlap=0.12 if width > 3.3 else 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("width", [6.8, 12])
@pytest.mark.parametrize("name", GAMES)
def test_local_games_are_legible(name, width):
    play = GAMES[name](random_network().eval()).play(torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64), 0)
    for node, unit in (("4", 0), ("2", 1), ("0", 3)):
        assert_legible(bp.view.game(play, around=(node, unit), width=width), overlap=0.3)


def test_numbers_on_lines_sum_to_one():
    """Of every unit that the walk visits and that no ε or bias takes from, the moves of one turn make up all."""
    play = bp.StoppingGame(random_network(bias=False).eval()).play(
        torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64), 0
    )
    found = states(play, 0)
    for source in {m.source for m in found.moves}:
        assert sum(m.kept + m.switched for m in found.moves if m.source == source) == pytest.approx(1)


def test_fractions():
    assert [fraction(v) for v in (0.7, 0.2, 1 / 3, 7 / 18, 1.0, 0.123456)] == [
        "7/10",
        "1/5",
        "1/3",
        "7/18",
        "1",
        "0.12",
    ]
    assert all(re.fullmatch(r"[\d.e−/]+", fraction(v)) for v in (1e-9, 0.999999, 3e-5))


def test_bad_input(play):
    small = bp.RoutingGame(random_network().eval()).play(torch.randn(1, 3, dtype=torch.float64), 0)
    for call, says in (
        (lambda: bp.view.game(play), "at most 12 layers with 16 units"),
        (lambda: bp.view.game(small.sample(2)), "game takes a play"),
        (lambda: bp.view.game(small, sample=1), "sample 1"),
        (lambda: bp.view.game(small, around="2"), "name of a node and the number of a unit"),
        (lambda: bp.view.game(small, around=("7", 0)), "'0', '2', '4'"),
        (lambda: bp.view.game(small, around=("2", 3)), "units 0 to 2"),
        (lambda: bp.view.game(small, around=("input", 0)), "where players move"),
    ):
        with pytest.raises(bp.BackplayError, match=says) as error:
            call()
        assert not isinstance(error.value, bp.errors.UnforeseenError) and str(error.value).count("\n") <= 1
