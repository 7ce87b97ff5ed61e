"""Small networks that the methods are tried on, with an input each; built once."""

import functools
from dataclasses import dataclass

import torch
from torch import nn

import backplay as bp
from families import prepared, torchvision_vit
from networks import SIDE, photo, small

F64 = torch.float64


def plain():
    """Convolutions, ReLUs that are modules of their own, non-overlapping max pooling: what captum can follow."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


class Reused(nn.Module):
    """One GELU and one ReLU called several times, a residual sum, an elementwise maximum."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(c, 6, 3, padding=1) for c in (3, 6, 6))
        self.relu, self.gelu, self.head = nn.ReLU(), nn.GELU(), nn.Linear(6, 5)

    def forward(self, x):
        x = self.relu(self.first(x))
        y = self.gelu(self.second(x)) + x
        return self.head(torch.maximum(self.relu(self.third(y)), self.gelu(y)).mean((2, 3)))


def sharp_vit():
    """A ViT whose attention is far from uniform, so that softmax is bent between the baseline and the input."""
    model = prepared(torchvision_vit())
    with torch.no_grad():
        for block in model.encoder.layers:
            block.self_attention.in_proj_weight[:32] *= 6
    return model


_BUILDERS = {
    "plain": (lambda: plain().to(F64).eval(), SIDE),
    "residual": (small, SIDE),
    "reused": (lambda: Reused().to(F64).eval(), SIDE),
    "vit": (lambda: prepared(torchvision_vit()), 32),
    "sharp vit": (sharp_vit, 32),
}


TARGETS = (1, 3, 0)


def scores(model, x, targets=TARGETS):
    """(B,) the targets' logits."""
    return model(x).gather(1, torch.tensor(targets)[:, None])[:, 0]


@dataclass(frozen=True)
class Case:
    """A network, captured once, and three images with a target each."""

    model: nn.Module
    network: bp.Network
    x: torch.Tensor

    def explain(self, method, **params):
        return bp.explain(self.network, self.x, TARGETS, method=method, **params)

    def scores(self, x):
        return scores(self.model, x)

    def rise(self):
        """(B,) f(x) − f(0)."""
        with torch.no_grad():
            return self.scores(self.x) - self.scores(torch.zeros_like(self.x))


@functools.cache
def build(name):
    """A network in float64 and eval mode."""
    torch.manual_seed(11)
    make, side = _BUILDERS[name]
    model, x = make(), photo(3, side)
    return Case(model, bp.capture(model, x), x)
