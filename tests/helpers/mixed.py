"""One small network with a node of nearly every kind, and games for it."""

import copy

import torch
from torch import nn

import backplay as bp


class Mixed(nn.Module):
    """Tokens, attention, a gated unit, a norm, maxima and sums."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(3, 4), nn.Linear(4, 12), nn.Linear(4, 4)
        self.norm, self.up, self.gate = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head, self.token = nn.Linear(4, 3), nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x):
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.embed(x)], 1)
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        h = torch.maximum(self.up(h) * torch.sigmoid(self.gate(h)), nn.functional.gelu(h))
        return self.head(h.mean(1))


def perturbed(model):
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.7 * torch.randn_like(p))
    return twin


GAMES = [
    (bp.StoppingGame, {}),
    (bp.RoutingGame, {}),
    (bp.RoutingGame, {"epsilon": 0.0, "tau": 0.6}),
    (bp.RoutingGame, {"bias": "absorb", "empty_stream": "reroute", "residual": "proportional", "tau": 1.5}),
    (bp.RoutingGame, {"risk": -0.5, "input_variance": 0.1, "entropy_bias": 0.1}),
]
