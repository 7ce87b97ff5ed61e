"""What the games refuse around attention, each with its reason (S1, api: errors)."""

import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from refusals import refused

F64 = torch.float64


class Tokens(nn.Module):
    """(B, T, 4) → logits (B, T, 6), with an optional second tensor."""

    def __init__(self, softmax=False):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 6)
        self.softmax = softmax
        self.double().eval()

    def forward(self, embeds, other=None, mask=None):
        x = self.head(self.attend(embeds, embeds, embeds, need_weights=False)[0])
        if other is not None:
            x = x + other
        if mask is not None:
            x = x * mask[..., None]
        return x.softmax(-1) if self.softmax else x


def embeds(batch=2):
    return torch.randn(batch, 3, 4, dtype=F64)


@pytest.mark.parametrize("game", [bp.RoutingGame, bp.StoppingGame])
def test_no_floating_tensor(game):
    """A dict of inputs needs one tensor to explain."""
    keywords = {"embeds": torch.ones(2, 3, 4, dtype=torch.long), "mask": torch.ones(2, 3, dtype=torch.long)}
    refused(lambda: game(Tokens()).attribute(keywords, 0), "floating", "embeds", "mask", kind=ValueError)
    refused(lambda: game(Tokens()).attribute({}, 0), "floating", kind=ValueError)


def test_keywords_that_were_not_captured():
    """A network captured with one set of inputs names them when it gets others."""
    model = Tokens()
    network = bp.capture(model, {"embeds": embeds(), "mask": torch.ones(2, 3, dtype=torch.long)})
    refused(lambda: bp.RoutingGame(network).attribute({"embeds": embeds()}, 0), "mask", kind=ValueError)
    refused(lambda: bp.RoutingGame(network).attribute(embeds(), 0), "embeds", kind=ValueError)


@pytest.mark.parametrize(
    "target, words",
    [
        (6, (6, "range")),
        (-1, (-1, "range")),
        ((3, 0), ("(3, 0)", "range")),
        ((0, 6), ("(0, 6)", "range")),
        ((-1, 0), ("(-1, 0)", "range")),
        ([1, 2, 3], (3, 2)),
        ([(0, 1), (0, 9)], ("(0, 9)", "range")),
        ([(0, 0, 1), (0, 0, 2)], ("target",)),
    ],
    ids=str,
)
def test_target_of_positions(target, words):
    """(B, T, K): positions and classes are checked, and the message says what is there."""
    network = alike(Tokens(), embeds())
    for game in (bp.RoutingGame(network), bp.StoppingGame(network)):
        refused(lambda game=game: game.attribute(embeds(), target), *words, kind=ValueError)


@pytest.mark.parametrize("target", [1.5, "cat", True, [0.5, 1.0]], ids=str)
def test_target_of_another_type(target):
    """Targets are integers."""
    network = alike(Tokens(), embeds())
    refused(lambda: bp.RoutingGame(network).attribute(embeds(), target), "target", kind=TypeError)


@pytest.mark.parametrize("game", [bp.RoutingGame, bp.StoppingGame])
def test_softmax_at_the_end(game):
    """A softmax gives weights, it carries no mass: the logits before it are to be explained."""
    refused(lambda: game(Tokens(softmax=True)).attribute(embeds(), 0), "softmax", "logits")


def test_gradient_fallback_has_no_kernel():
    """S25: with attention="gradient" only `attribute` works, everything else raises."""
    game = bp.RoutingGame(Tokens(), attention="gradient")
    assert game.attribute(embeds(), 0).shape == (2, 3, 4)
    for ask in (
        lambda: game.play(embeds(), 0).occupation("input"),
        lambda: game.play(embeds(), 0).marginal("input"),
        lambda: game.play(embeds(), 0).cemetery,
    ):
        refused(ask, "gradient")


@pytest.mark.parametrize("layer", ["head", "nowhere"])
def test_attention_of_a_layer_without_it(layer):
    """`play.attention` names what has attention."""
    play = bp.RoutingGame(Tokens()).play(embeds(), 0)
    refused(lambda: play.attention(layer), layer, kind=ValueError)
