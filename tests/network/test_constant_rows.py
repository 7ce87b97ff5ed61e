"""Rows that a concatenation took from a constant are constants, whoever's they are (S2, S26)."""

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import array, assert_near

pytestmark = pytest.mark.capture


class Frames(nn.Module):
    """A class token before the patches of every frame; the first rows of all frames are read for the samples."""

    def __init__(self, row):
        super().__init__()
        self.row = row
        self.embed, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 6, 6))

    def forward(self, x):
        batch = x.shape[0]
        tokens = self.embed(x).relu().flatten(0, 1)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1) + self.place
        token = nn.functional.dropout(tokens, 0.5, False)[:batch, self.row].unsqueeze(1)
        patches = tokens[:, 1:].reshape(batch, -1, 6)
        return self.head(torch.cat([token, patches], 1).mean(1))


def test_constant_row_of_other_samples():
    """The class token of the first frames serves every sample: it is a terminal, and each sample keeps its mass."""
    model, x = Frames(0).double(), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    network = bp.capture(model, x)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    for game in (bp.StoppingGame(network), bp.RoutingGame(network)):
        play = game.play(x, 1)
        assert play.health().ok and play.health().mass_error < 1e-10, play.health()
        assert (array(play.constant) > 0).all()
        assert_near(game.attribute(x[1:], 1), play.attribution()[1:], what="one sample")
    assert_near(bp.StoppingGame(network).attribute(x, 1), expected, what="gradient")


def test_live_row_of_other_samples():
    """A row that lives belongs to its sample: reading another's is refused."""
    with pytest.raises(bp.BackplayError, match="samples of a batch"):
        bp.capture(Frames(2).double(), torch.randn(2, 3, 5, 4, dtype=torch.float64))
