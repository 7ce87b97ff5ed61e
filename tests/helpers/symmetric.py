"""Small networks with hidden symmetries: channels, heads, features of heads, groups of convolutions and of norms."""

import functools
import math

import torch
from torch import nn

import backplay as bp


class Residual(nn.Module):
    """Folded and unfolded batch norms, a residual sum, a pool, a flatten."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.folded, self.plain = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.hidden, self.head = nn.Linear(6 * 16, 7), nn.Linear(7, 3)
        for norm in (self.folded, self.plain):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 2)

    def forward(self, x):
        h = torch.relu(self.folded(self.first(x)))
        h = self.plain(h + torch.relu(self.second(h)))
        return self.head(torch.relu(self.hidden(nn.functional.max_pool2d(h, 2).flatten(1))))


class Transformer(nn.Module):
    """Patches, class token, position, one block with norms, heads and a GELU layer; `shared` heads of key and value."""

    def __init__(self, fused=True, packed=True, heads=2, features=3, shared=None, mask=False):
        super().__init__()
        self.fused, self.packed, self.heads, self.features = fused, packed, heads, features
        self.shared = shared or heads
        width, kv = heads * features, self.shared * features
        self.patch, self.token = nn.Conv2d(3, width, 4, stride=4), nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        if packed:
            self.qkv = nn.Linear(width, width + 2 * kv)
        else:
            self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, kv), nn.Linear(width, kv)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 8), nn.Linear(8, width)
        self.head = nn.Linear(width, 3)
        self.register_buffer("mask", torch.randn(heads, 5, 5) if mask else None)
        for norm in (self.norm, self.last):
            nn.init.uniform_(norm.weight, 0.5, 2)

    def attend(self, q, k, v):
        mask = None if self.mask is None else 2 * self.mask  # computed, so that no parameter can follow
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.shared != self.heads)
        if self.shared != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.shared, 1) for t in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.features)
        return torch.softmax(scores if mask is None else scores + mask, -1) @ v

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), h], 1) + self.position
        y, kv = self.norm(h), self.shared * self.features
        parts = self.qkv(y).split([h.shape[-1], kv, kv], -1) if self.packed else (self.q(y), self.k(y), self.v(y))
        q, k, v = (t.unflatten(-1, (-1, self.features)).transpose(1, 2) for t in parts)
        h = h + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return self.head((h + self.down(nn.functional.gelu(self.up(self.last(h)))))[:, 0])


class Grouped(nn.Module):
    """A convolution in groups between two plain ones, and a norm, over groups of its own if `norm`."""

    def __init__(self, groups=4, times=1, norm=None):
        super().__init__()
        wide = 8 * times
        self.first, self.grouped = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, wide, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(wide) if norm is None else nn.GroupNorm(norm, wide)
        nn.init.uniform_(self.norm.weight, 0.5, 2)
        self.last, self.head = nn.Conv2d(wide, 6, 1), nn.Linear(6, 3)

    def forward(self, x):
        h = self.norm(torch.relu(self.grouped(torch.relu(self.first(x)))))
        return self.head(torch.relu(self.last(h)).mean((2, 3)))


class Turned(nn.Module):
    """Weights that hold their rows second: `x @ W` with a square matrix, a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.square = nn.Linear(4, 6), nn.Parameter(torch.randn(6, 6))
        self.wide, self.head = nn.ConvTranspose1d(6, 5, 2), nn.Linear(5, 3)

    def forward(self, x):
        h = torch.relu(torch.relu(self.first(x)) @ self.square)
        return self.head(torch.relu(self.wide(h[:, :, None])).mean(2))


class Gated(nn.Module):
    """A spelled-out RMS norm and a gated unit whose halves are tied."""

    def __init__(self):
        super().__init__()
        self.first, self.both, self.head = nn.Linear(4, 6), nn.Linear(6, 10), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        h = self.first(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        value, gate = self.both(h).chunk(2, -1)
        return self.head(value * torch.sigmoid(gate))


class Halves(nn.Module):
    """Two halves of one layer that go different ways: they look alike, but none may replace another's."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.head(torch.cat([h[:, :3].amax((2, 3)), h[:, 3:].mean((2, 3))], 1))


def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def cnn():
    layers = [nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 9, 3))


def coloured():
    """Groups that read the colours of the image, which stay."""
    return nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3))


IMAGE = (2, 3, 8, 8)
NETWORKS = {
    "mlp": (mlp, (2, 5)),
    "cnn": (cnn, IMAGE),
    "residual": (Residual, IMAGE),
    "transformer, fused": (Transformer, IMAGE),
    "transformer, spelled out": (lambda: Transformer(fused=False, packed=False, heads=3, features=2), IMAGE),
    "transformer, shared keys": (lambda: Transformer(heads=4, features=2, shared=2), IMAGE),
    "groups of a convolution": (Grouped, IMAGE),
    "groups that widen": (lambda: Grouped(2, times=2), IMAGE),
    "groups of the input": (coloured, IMAGE),
    "depthwise": (lambda: Grouped(8), IMAGE),
    "groups of a norm": (lambda: Grouped(1, norm=4), IMAGE),
    "groups in groups": (lambda: Grouped(4, norm=2), IMAGE),
    "rows second": (Turned, (2, 4)),
    "gated": (Gated, (2, 4)),
    "halves": (Halves, IMAGE),
}


@functools.cache
def make(name):
    """The network in float64, an input, and its capture, made once."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, x = build().double().eval(), torch.randn(shape, dtype=torch.float64)
    return model, x, bp.capture(model, x)
