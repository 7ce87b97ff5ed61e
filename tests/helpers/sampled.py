"""Networks whose trajectories are drawn, and the law of trajectories written out."""

import numpy as np
import torch
from torch import nn

import hand
from mixed import Mixed


class Picture(nn.Module):
    """Convolutions with stride, padding and groups, pools of both kinds, a residual sum, up-sampling."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.third, self.head = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = nn.functional.max_pool2d(h + nn.functional.silu(self.second(h)), 2)
        h = nn.functional.interpolate(self.third(h), scale_factor=2.0, mode="bilinear")
        return self.head(nn.functional.avg_pool2d(h, 2).mean((2, 3)))


CASES = [(Picture, (2, 3, 8, 8)), (Mixed, (2, 3, 3))]


def routing_law(model, x, drawn, epsilon, tau):
    """Probability of each drawn trajectory in the Routing Game of a network of two linear layers (S13), by numpy."""
    hidden = np.maximum(hand.numbers(model[0](x))[0], 0)
    steps = [("2", "1", model[2], hidden), ("0", "input", model[0], hand.numbers(x)[0])]
    found = np.ones(drawn.n)
    for above, below, layer, observed in steps:
        policies = hand.policies(hand.numbers(layer.weight) * observed, epsilon, tau)
        j, i = drawn.states[above][0].numpy(), drawn.states[below][0].numpy()
        for policy, sign in zip(policies, (1, -1), strict=True):
            on = (j >= 0) & (drawn.streams[above][0].numpy() == sign)
            row = policy[j.clip(min=0)]
            moved = np.where(i >= 0, row[np.arange(len(i)), i.clip(min=0)], 1 - row.sum(1))
            found = np.where(on, found * moved / 2, found)
    return found
