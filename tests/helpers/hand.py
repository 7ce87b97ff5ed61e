"""Plain formulas of the modes, written from the paper and the contract alone: dense matrices, one sample, loops."""

import itertools
import math

import numpy as np
import torch
from torch import nn

SQRT2, SQRT_TAU = math.sqrt(2.0), math.sqrt(2 * math.pi)
cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / SQRT2), otypes=[float])


def density(z):
    """The standard normal density."""
    return np.exp(-np.square(z) / 2) / SQRT_TAU


def gaussian_moments(function, mean, deviation, low=-math.inf, points=120, pieces=8, reach=13.0):
    """Mean and variance of `function(X)`, `X ~ N(mean, deviation²)`, by composite Gauss-Legendre integration.

    `function` is 0 below `low`, where it may have a kink. Moments are taken about `function(mean)`.
    """
    nodes, weights = np.polynomial.legendre.leggauss(points)
    centre = float(function(np.array([mean]))[0]) if mean > low else 0.0
    start, stop = max(mean - reach * deviation, low), max(mean + reach * deviation, low + reach * deviation)
    edges = np.linspace(start, stop, pieces + 1)
    first = second = 0.0
    for a, b in itertools.pairwise(edges):
        at = (a + b) / 2 + (b - a) / 2 * nodes
        mass = weights * (b - a) / 2 * density((at - mean) / deviation) / deviation
        departure = function(at) - centre
        first += float((mass * departure).sum())
        second += float((mass * departure**2).sum())
    if low > -math.inf:  # everything below shows 0
        lower = 0.5 * math.erfc((mean - low) / deviation / SQRT2)
        first -= lower * centre
        second += lower * centre**2
    return centre + first, second - first**2


def gridded_moments(function, mean, deviation, points=200_001, reach=9.0):
    """`gaussian_moments` on a fine grid: kinks may lie anywhere."""
    at = np.linspace(-reach, reach, points)
    mass = density(at) / density(at).sum()
    centre = float(function(np.array([mean]))[0])
    departure = function(mean + deviation * at) - centre
    first = float((mass * departure).sum())
    return centre + first, float((mass * departure**2).sum()) - first**2


def each(function, mean, variance, low=-math.inf):
    """`gaussian_moments` of every element; certain elements show their value."""
    mean, variance = np.asarray(mean, float), np.asarray(variance, float)
    first, second = np.empty_like(mean), np.empty_like(mean)
    for at in np.ndindex(mean.shape):
        m, s = float(mean[at]), math.sqrt(float(variance[at]))
        first[at], second[at] = gaussian_moments(function, m, s, low)
    return first, second


def relu_moments(mean, variance):
    """Moments of ReLU(X) by integration."""
    return each(lambda z: z, mean, variance, low=0.0)


def relu_closed(mean, variance):
    """gast2018lightweight's formulas as printed: `μΦ(α) + σφ(α)` and `(μ² + σ²)Φ(α) + μσφ(α) − E²`."""
    mean, variance = np.asarray(mean, float), np.asarray(variance, float)
    deviation = np.sqrt(variance)
    ratio = mean / deviation
    first = mean * cdf(ratio) + deviation * density(ratio)
    second = (mean**2 + variance) * cdf(ratio) + mean * deviation * density(ratio)
    return first, second - first**2


def v_risk(mean, variance, risk):
    """`V_λ = max(0, μ_a + λ σ_a)` of a ReLU (app:adf-variance)."""
    first, second = relu_moments(mean, variance)
    return np.maximum(0.0, first + risk * np.sqrt(np.maximum(second, 0)))


def matrix(layer, shape):
    """The dense matrix (outputs, inputs) of an affine module on one sample of this shape, and its bias."""
    size = math.prod(shape)
    with torch.no_grad():
        eye = torch.eye(size, dtype=torch.float64).view(size, *shape)
        zero = layer(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        return (layer(eye).flatten(1) - zero).T.numpy(), zero.numpy()


def policies(contributions, epsilon=0.0, tau=1.0):
    """`π_σ` of both streams (S13) in log space, (outputs, inputs) each; an empty stream is all outside."""
    answer = []
    for sign in (1, -1):
        c = np.maximum(sign * contributions, 0)
        with np.errstate(divide="ignore"):
            logs = np.log(c) / tau
            aside = np.full((len(c), 1), math.log(epsilon) / tau if epsilon > 0 else -math.inf)
        both = np.concatenate([logs, aside], 1)
        top = both.max(1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0)
        total = np.exp(both - top).sum(1, keepdims=True)
        answer.append(np.where(total > 0, np.exp(logs - top) / np.where(total > 0, total, 1), 0))
    return answer


def route(mass, weight, observed, epsilon, tau=1.0, alpha=2.0, beta=1.0):
    """One affine step of `Γ₊ − Γ₋`: `Σ_j R_j (α π₊ − β π₋)` (eq:lrp-eps-recursion at τ = 1)."""
    plus, minus = policies(weight * observed[None, :], epsilon, tau)
    return mass @ (alpha * plus - beta * minus)


def share(mass, weight, observed, tau=1.0):
    """One mix of non-negative things: one stream, no outside option (S18)."""
    plus, _ = policies(weight * observed[None, :], 0.0, tau)
    return mass @ plus


def fan_in_entropy(rows):
    """`H̃` of each row of weights (app:entropy-mode)."""
    answer = []
    for row in np.abs(np.asarray(rows, float).reshape(len(rows), -1)):
        p = row / row.sum()
        p = p[p > 0]
        answer.append(float(-(p * np.log(p)).sum() / math.log(row.size)))
    return np.array(answer)


def numbers(tensor):
    """numpy of a tensor."""
    return tensor.detach().numpy()


def mlp(*sizes, gate=nn.ReLU):
    """A float64 multi-layer perceptron with biases, from the global generator."""
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), gate()]
    return nn.Sequential(*layers[:-1]).double().eval()


def unit(size, at):
    """A unit vector."""
    return np.eye(size)[at]


class Attention(nn.Module):
    """Tokens → linear, ReLU → attention of two heads → linear → logits; fused, or softmax spelled out."""

    def __init__(self, fused, tokens=3, wide=4, heads=2):
        super().__init__()
        self.fused, self.heads, self.each = fused, heads, wide // heads
        self.embed, self.relu = nn.Linear(3, wide), nn.ReLU()
        self.q, self.k, self.v = nn.Linear(wide, wide), nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.proj, self.head = nn.Linear(wide, wide), nn.Linear(tokens * wide, 3)

    def split(self, t):
        return t.unflatten(-1, (self.heads, self.each)).transpose(1, 2)

    def forward(self, x):
        h = self.relu(self.embed(x))
        q, k, v = (self.split(f(h)) for f in (self.q, self.k, self.v))
        if self.fused:
            o = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            o = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.each), -1) @ v
        return self.head(self.proj(o.transpose(1, 2).flatten(2)).flatten(1))


def attention(fused=True, seed=3):
    """An `Attention` whose weights are the same, fused or not."""
    torch.manual_seed(seed)
    model = Attention(fused).double().eval()
    with torch.no_grad():
        for layer in (model.q, model.k):
            layer.weight.mul_(2)
        model.embed.bias.add_(0.7)  # tokens are alive
    return model
