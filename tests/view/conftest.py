"""Plays that several pictures are drawn of: made once."""

import pytest
import torch

import backplay as bp
from backplay import zoo

pytest.importorskip("matplotlib")


@pytest.fixture(scope="session")
def batch():
    return zoo.images(3)


@pytest.fixture(scope="session")
def model():
    return zoo.load("vgg")


@pytest.fixture(scope="session")
def play(model, batch):
    return bp.RoutingGame(model).play(batch.x, batch.target)


@pytest.fixture(scope="session")
def vit(batch):
    return bp.RoutingGame(zoo.load("vit")).play(batch.x, batch.target)


@pytest.fixture(scope="session")
def resnet(batch):
    return bp.RoutingGame(zoo.load("resnet")).play(batch.x, batch.target)


@pytest.fixture(scope="session")
def table():
    """A play on a plain vector: no image."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).double().eval()
    return bp.RoutingGame(net).play(torch.randn(2, 5, dtype=torch.float64))
