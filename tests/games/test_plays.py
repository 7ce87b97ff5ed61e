"""Several plays of one forward pass: each is the play of its target, and nothing is solved twice."""

import pytest
import torch

import backplay as bp
from closeness import assert_near
from mixed import GAMES, Mixed
from sampled import Picture


def pictures(batch=2):
    return torch.randn(batch, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("game, options", GAMES)
@pytest.mark.parametrize("model, x", [(Picture, pictures()), (Mixed, pictures()[:, :, :3, 0])])
def test_each_is_a_play(model, x, game, options):
    """Maps, measures, draws and health as of plays that are made one by one."""
    torch.manual_seed(1)
    game = game(model().double().eval(), **options)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    targets = [1, 0, None, [2, 0], weights, 1]
    for target, play in zip(targets, game.plays(x, targets=targets), strict=True):
        alone = game.play(x, target)
        assert_near(play.attribution(), alone.attribution(), what=f"map of {target}")
        assert_near(play.value, alone.value)
        assert_near(play.marginal("input"), alone.marginal("input"), scale=1.0)
        assert_near(play.cemetery, alone.cemetery, scale=1.0)
        assert torch.equal(play.target, alone.target) and repr(play) == repr(alone)
        assert play.health() == alone.health()
        first, second = play.sample(20, seed=3), alone.sample(20, seed=3)
        assert all(torch.equal(first.states[n], second.states[n]) for n in second.states)


def test_neurons():
    game = bp.RoutingGame(Picture().double().eval())
    plays = game.plays(pictures(), targets=[0, ("second", (1, 2, 2)), ("first", (0, 1, 1))])
    for play, target in zip(plays[1:], [("second", (1, 2, 2)), ("first", (0, 1, 1))], strict=True):
        assert_near(play.attribution(), game.attribute(pictures(), target))


@pytest.mark.parametrize("targets", [range(3), (0, 1, 2), torch.arange(3), torch.eye(3, dtype=torch.float64)])
def test_ways_to_give_them(targets):
    game = bp.StoppingGame(Picture().double().eval())
    for k, play in enumerate(game.plays(pictures(), targets)):
        assert_near(play.attribution(), game.attribute(pictures(), k))


def test_solved_once(monkeypatch):
    """One forward pass and one kernel a node, however many targets."""
    game = bp.RoutingGame(Picture().double().eval())
    game.play(pictures())
    made, solved = [], []
    kernel, values = bp.RoutingGame.kernel, bp.RoutingGame.values
    monkeypatch.setattr(bp.RoutingGame, "kernel", lambda self, node, v: made.append(node) or kernel(self, node, v))
    monkeypatch.setattr(bp.RoutingGame, "values", lambda self, shared: solved.append(shared) or values(self, shared))
    plays = game.plays(pictures(), targets=[0, 1, 2])
    for play in plays:
        play.attribution(), play.marginal("first"), play.through("second", [1]).attribution()
    assert len(solved) == 1 and len(made) == len(set(made))


def test_released_apart():
    """One of them lets go; the others keep what they share."""
    game = bp.RoutingGame(Picture().double().eval())
    one, other = game.plays(pictures(), targets=[0, 1])
    expected = one.attribution().clone(), other.marginal("first").clone()
    one.release()
    assert_near(other.marginal("first"), expected[1])
    assert_near(one.attribution(), expected[0])
    assert_near(bp.hellinger(one, other).distance, bp.hellinger(*(game.play(pictures(), k) for k in (0, 1))).distance)


def test_refusals():
    game = bp.RoutingGame(Picture().double().eval())
    for targets, words in (
        (3, "targets must be a list"),
        ("cat", "targets must be a list"),
        (None, "targets must be a list"),
        (("first", (0, 1, 1)), "target must be None, an int"),
        ([], "empty list"),
        ([0, 7], "target 7 is out of range"),
    ):
        with pytest.raises(bp.BackplayError, match=words) as error:
            game.plays(pictures(), targets)
        assert len(str(error.value).splitlines()) <= 2
