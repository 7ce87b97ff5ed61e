"""What a picture says is explained: a class, one class rather than another, a neuron."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.view.images import looks_of
from backplay.view.play import described

W = torch.tensor


@pytest.fixture(scope="module")
def game():
    torch.manual_seed(0)
    return bp.RoutingGame(nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4)).double().eval())


@pytest.fixture(scope="module")
def x():
    return torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "target, words",
    [
        (3, "class 3, value"),
        (W([0.0, 0.0, 0.0, 1.0]), "class 3, value"),
        (W([0.0, -1.0, 0.0, 1.0]), "class 3 rather than class 1, value"),
        (W([0.0, 0.5, -0.5, 0.0]), "class 1 rather than class 2, value"),
        (W([0.0, 2.0, -0.5, 0.0]), "value"),
        (W([1.0, 1.0, 0.0, 0.0]), "value"),
        (W([0.0, -1.0, 0.0, 0.0]), "value"),
        (("1", 2), "a neuron of 1, value"),
    ],
)
def test_titles(game, x, target, words):
    play = game.play(x, target.double() if isinstance(target, torch.Tensor) else target)
    looks = looks_of(play.network, None, None)
    plain = words.replace("class ", "") if looks.class_name(3) == "3" else words
    assert described(play, 0, looks).startswith(plain)


def test_rows_of_a_grid(game, x):
    """Each row says what is explained there."""
    target = torch.zeros(2, 4, dtype=torch.float64)
    target[0, 1], target[0, 2], target[1, 3] = 1.0, -1.0, 1.0
    play = game.play(x, target)
    figure = bp.view.grid(x, {"RG": play})
    looks = looks_of(play.network, None, None)
    said = {t.get_text().split("\n")[0] for t in figure.findobj(lambda a: hasattr(a, "get_text"))}
    assert f"{looks.class_name(1)} rather than {looks.class_name(2)}" in said and looks.class_name(3) in said
