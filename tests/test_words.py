"""What things say of themselves: a line or two, and no numbers of tensors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import backplay as bp
from backplay import models
from backplay.models.loaded import Loaded


class Long(nn.Module):
    """Many samples, many classes."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 40), nn.Linear(40, 30)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def play():
    torch.manual_seed(0)
    model = Long().double()
    x, target = torch.randn(64, 6, dtype=torch.float64), [k % 30 for k in range(64)]
    return bp.RoutingGame(model, tau=0.5, epsilon=0.01).play(x, target)


def loaded():
    return Loaded(Long(), lambda image: torch.zeros(3, 8, 8), tuple(f"class {k}" for k in range(1000)), (8, 8), "here")


THINGS = {
    "play": lambda play: play,
    "game": lambda play: play.game,
    "network": lambda play: play.network,
    "occupation": lambda play: play.occupation("first"),
    "trajectories": lambda play: play.sample(20),
    "decomposition": lambda play: bp.decompose(play.network, play.x),
    "pair": lambda play: bp.decompose(play.network, play.x)["first"],
    "moments": lambda play: bp.moments(play.network, play.x, 0.5),
    "moment": lambda play: bp.moments(play.network, play.x, 0.5)["first"],
    "hellinger": lambda play: bp.hellinger(play, bp.RoutingGame(play.network).play(play.x, 1)),
    "certificate": lambda play: bp.certify(play),
    "loaded": lambda play: loaded(),
    "explainer": lambda play: bp.Explainer(play.network, "lrp_gamma", gamma=0.5),
    "reynolds": lambda play: bp.Reynolds(play.game, n=3),
    "health": lambda play: play.health(),
}


@pytest.mark.parametrize("name", THINGS)
def test_a_line_or_two(play, name):
    """`repr` fits on the screen, names its class and prints no tensor."""
    shown = repr(THINGS[name](play))
    assert shown.startswith(type(THINGS[name](play)).__name__) and "tensor(" not in shown
    assert len(shown) <= 400 and shown.count("\n") <= 1, shown


def test_what_it_says(play):
    """The parts that a reader looks for."""
    assert "(64, 40) float64" in repr(play.occupation("first")) and "log scale" in repr(play.occupation("first"))
    assert "64 in all" in repr(play) and "tau=0.5" in repr(play)
    assert "1000 classes" in repr(loaded()) and "8 x 8" in repr(loaded()) and "here" in repr(loaded())
    assert "input variance 0.5" in repr(bp.moments(play.network, play.x, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["zoo:vgg", "zoo:vit"])
def test_a_verdict_at_the_tolerance_of_the_dtype(name, dtype):
    """Nobody gains by deviating, in either dtype, and the certificate says so; one that is tampered with does not."""
    model = models.load(name).model.to(dtype)
    x = torch.randn(1, 3, 96, 96, dtype=dtype)
    play = bp.RoutingGame(model, tau=0.7).play(x, 1)
    found = bp.certify(play, states=100)
    assert found.ok and bool(found) and "nobody gains" in str(found), found
    for node in play.visited():
        if node.kind == "gate":
            kernel = play.kernel(node)
            play._kernels[node] = replace(kernel, slope=(kernel.slope * 0.8 + 0.1).clamp(0, 1))
    caught = bp.certify(play, states=100)
    assert not caught.ok and not caught and "SOMEBODY GAINS" in str(caught), caught
