"""The guide to layers: its examples run."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import backplay as bp

PAGE = (Path(__file__).parents[2] / "docs" / "layers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


class Named(nn.Module):
    """The modules that the guide speaks of."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.layer3, self.layer4 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 1000)

    def forward(self, x):
        return self.head(torch.relu(self.layer4(torch.relu(self.layer3(self.features(x))))).mean((2, 3)))


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks(block, capsys):
    torch.manual_seed(0)
    exec(block, {"bp": bp, "torch": torch, "model": Named().eval(), "x": torch.randn(1, 3, 8, 8)})


def test_names():
    """Every composite, rule and keyword that the guide names is there."""
    from backplay.methods.composites import COMPOSITES

    assert all(f"`{name}`" in PAGE for name in COMPOSITES)
    assert all(f"`{name}`" in PAGE for name in bp.lrp.__all__ if name != "Rule")
    for game in (bp.RoutingGame, bp.StoppingGame):
        elsewhere = game.modes_type.accepts()["layers"].elsewhere
        assert all(f"`{name}`" in PAGE for name in elsewhere)
