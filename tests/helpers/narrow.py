"""Networks through which next to no walk comes, of any depth."""

import torch
from torch import nn

WIDE = 3


def tighten(layer, width):
    """The wide road leads to a dead neuron, and biases keep the others alive: few walks go on, in both games."""
    with torch.no_grad():
        road = torch.tensor([width, 2 * width, 1.0]).view(1, WIDE, *[1] * (layer.weight.ndim - 2))
        layer.weight.copy_(torch.rand_like(layer.weight) * road)
        layer.bias.copy_(torch.tensor([1.0, 0.5, -50.0]))
    return layer


def mlp(depth, width):
    layers = [layer for _ in range(depth) for layer in (tighten(nn.Linear(WIDE, WIDE), width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDE, 2))


def cnn(depth, width):
    layers = [layer for _ in range(depth) for layer in (tighten(nn.Conv2d(WIDE, WIDE, 3, padding=1), width), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDE, 2))


class Residual(nn.Module):
    """Residual sums around attention, a narrow layer before each."""

    def __init__(self, depth, width):
        super().__init__()
        self.narrow = nn.ModuleList(tighten(nn.Linear(WIDE, WIDE), width) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(WIDE, 3 * WIDE) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(depth))
        self.head = nn.Linear(WIDE, 2)
        with torch.no_grad():
            for out in self.out:  # the dead channel stays dead behind the sum
                out.weight[2], out.bias[2] = 0.0, 0.0

    def forward(self, x):
        for narrow, qkv, out in zip(self.narrow, self.qkv, self.out, strict=True):
            x = torch.relu(narrow(x))
            q, k, v = qkv(x).chunk(3, -1)
            x = x + out(nn.functional.scaled_dot_product_attention(q, k, v))
        return self.head(x.mean(1))


SHAPES = {mlp: (2, WIDE), cnn: (1, WIDE, 4, 4), Residual: (2, 2, WIDE)}
