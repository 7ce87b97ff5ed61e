"""Walks, their flow and what a play shows of itself."""

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection

import backplay as bp
from backplay.view.colours import MINUS, PLUS, share
from backplay.view.play import arriving, layers, shares
from legible import assert_legible, images, texts


def dots(axes):
    return next(c for c in axes.collections if isinstance(c, PathCollection))


def test_ends_of_walks_are_where_they_were_drawn(play):
    drawn = play.sample(200)
    figure = bp.view.walks(drawn, sample=1, paths=25)
    alive = (drawn.ends[1] == 0).nonzero()[:25, 0]
    state = drawn.states["input"][1, alive].numpy()
    places = dots(figure.axes[0]).get_offsets()
    assert np.allclose(places[:, 0], state % 96) and np.allclose(places[:, 1], state // 96 % 96)
    red = np.all(np.isclose(dots(figure.axes[0]).get_facecolors()[:, :3], _rgb(PLUS)), axis=1)
    assert (red == (drawn.players["input"][1, alive].numpy() > 0)).all()
    assert_legible(figure)


def test_steps_have_the_colour_of_their_player(play):
    drawn = play.sample(50)
    figure = bp.view.walks(drawn, paths=1)
    walk = int((drawn.ends[0] == 0).nonzero()[0, 0])
    lines = [c for c in figure.axes[1].collections if not isinstance(c, PathCollection)]
    names = [n.name for n in reversed(play.network.nodes) if len(n.shape) == 4]
    expected = [PLUS if int(drawn.players[name][0, walk]) > 0 else MINUS for name in names[1:]]
    assert np.allclose(lines[0].get_colors()[:, :3], [_rgb(c) for c in expected])
    # from the side: the column of the cell in the image, at every layer
    columns = [float(segment[0][0]) for segment in lines[0].get_segments()] + [float(lines[0].get_segments()[-1][1][0])]
    for name, column in zip(names, columns, strict=True):
        width = play.network.find(name).shape[3]
        assert column == pytest.approx((int(drawn.states[name][0, walk]) % width + 0.5) * 96 / width - 0.5)


def test_tokens_have_places(vit):
    drawn = vit.sample(3000)
    figure = bp.view.walks(drawn)
    alive = (drawn.ends[0] == 0).nonzero()[:40, 0]
    assert len(dots(figure.axes[0]).get_offsets()) == len(alive) > 0
    # the tokens behind the class token: number k is patch k − 1, in rows of six
    labels = [t.get_text() for t in figure.axes[1].get_yticklabels()]
    assert "input" in labels and any("attention" in name or "norm" in name for name in labels)
    assert_legible(figure)


def test_share_that_arrives_is_written(play, vit):
    said = " ".join(texts(bp.view.walks(play.sample(60))))
    assert f"{share(float(1 - play.cemetery[0] - play.constant[0]))} of all walks arrive" in said
    none = vit.sample(1)
    assert int(none.ends[0, 0]) != 0
    said = " ".join(texts(bp.view.walks(none))).replace("\n", " ")
    assert "none of 1 walks arrives" in said


def test_arriving_trajectories_know_their_share(play):
    """All of these arrive; what is written is the share of all walks that do."""
    drawn = play.sample(10, arriving=True)
    said = " ".join(texts(bp.view.walks(drawn))).replace("\n", " ")
    assert f"{share(float(drawn.share[0]))} of all walks arrive" in said


@pytest.mark.slow
@pytest.mark.parametrize("width", [3.3, 5, 12])
def test_walks_are_legible(resnet, vit, width):
    for play in (resnet, vit):
        assert_legible(bp.view.walks(play.sample(500), width=width))


@pytest.mark.slow
@pytest.mark.parametrize("width", [3.3, 8])
def test_flow_draws_the_law_of_the_walk(play, resnet, vit, table, width):
    for each in (play, resnet, vit, table):
        figure = bp.view.flow(each, sample=1, width=width)
        assert_legible(figure)
        axes = figure.axes[0]
        rows = layers(each)
        _, plus, minus, ends = axes.containers
        for bar, other, (_, node) in zip(plus, minus, rows, strict=True):
            total = node.layout.sum(each.marginal(node))[1]
            assert bar.get_width() + other.get_width() == pytest.approx(float(total), rel=1e-5, abs=1e-9)
        assert ends[0].get_width() == pytest.approx(float(each.cemetery[1]))
        assert plus[-1].get_width() + minus[-1].get_width() + sum(e.get_width() for e in ends) == pytest.approx(
            1, abs=1e-5
        )


def test_shares_of_players_are_those_of_drawn_walks(play):
    n = 4000
    drawn = play.sample(n)
    for name in ("features.8", "features.3", "input"):
        plus, minus = shares(play, play.network.find(name))
        for player, expected in ((1, plus), (-1, minus)):
            seen = (drawn.players[name] == player).double().mean(1)
            assert (seen - expected).abs().max() < 4 * np.sqrt(0.25 / n)
    assert torch.allclose(arriving(play), 1 - play.cemetery - play.constant, atol=1e-6)


def test_deep_networks_are_shown_by_their_modules(vit):
    names = [name for name, _ in layers(vit)]
    assert names[-1] == "input" and len(names) <= 24 and "features.3" in names
    order = [vit.network.nodes.index(node) for _, node in layers(vit)]
    assert order == sorted(order, reverse=True)


def test_a_play_shows_its_map(play, table):
    figure = play.plot(sample=1)
    assert np.allclose(images(figure)[1], play.attribution()[1].double().sum(0))
    said = " ".join(texts(figure))
    assert "ring" in said and "of walks arrive" in said
    assert_legible(figure)
    bars = table.plot(sample=1).axes[0].containers[0]
    assert np.allclose([bar.get_height() for bar in bars], table.attribution()[1])


def test_tables_of_tokens():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).eval()
    play = bp.RoutingGame(net).play(torch.randn(2, 3, 4))
    assert np.allclose(images(play.plot(sample=1))[0], play.attribution()[1])


def test_bad_input(play, table):
    for call, says in (
        (lambda: bp.view.walks(play), "walks takes trajectories"),
        (lambda: bp.view.walks(play.sample(3), sample=3), "sample 3 is out of range: the play holds samples 0 to 2"),
        (lambda: bp.view.walks(play.sample(3), paths=0), "paths=0"),
        (lambda: bp.view.walks(table.sample(3)), "draws images"),
        (lambda: bp.view.players(table), "draws images"),
        (lambda: bp.view.flow(play.sample(3)), "flow takes a play"),
        (lambda: bp.view.flow(play, sample=-1), "sample -1"),
        (lambda: play.plot(colour="red"), None),
    ):
        with pytest.raises((bp.BackplayError, TypeError), match=says) as error:
            call()
        assert str(error.value).count("\n") <= 1


def _rgb(colour):
    return [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
