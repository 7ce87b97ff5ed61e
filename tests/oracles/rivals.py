"""Slow and obvious versions of the methods beside the games, one loop for each sum of their formulas."""

import itertools
import math

import numpy as np
import torch


def gradient(score, x):
    """Gradient of `score(x)` (B,) in x."""
    x = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(score(x).sum(), x)
    return found


def smoothgrad(score, x, n, sigma, seed, aggregate):
    """All noisy gradients of one image (1, …) in one list; numpy's mean or std of them."""
    spread = sigma * float(x.max() - x.min())
    generator = torch.Generator().manual_seed(seed)
    maps = []
    for _ in range(n):
        noise = torch.randn(x.shape[1:], generator=generator, dtype=torch.float64)
        maps.append(gradient(score, x + spread * noise).numpy())
    return {"mean": np.mean, "std": np.std}[aggregate](maps, axis=0)


def integrated_gradients(score, x, steps):
    """x times the gradient at each point of the path, one after the other."""
    total = torch.zeros_like(x)
    for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        total += gradient(score, x * (node + 1) / 2) * weight / 2
    return total * x


def deeplift_mlp(weights, biases, x, target, plain, boost):
    """DeepLift of a ReLU network on one vector with the zero baseline, neuron by neuron.

    Each neuron hands its part of the rise to its inputs in proportion to `plain · c + boost · c [c agrees with Σc]`.
    """

    def forward(a):
        values = [a]
        for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
            z = w @ a + b
            a = z if k == len(weights) - 1 else np.maximum(z, 0)
            values += [z, a]
        return values

    at, base = forward(x), forward(np.zeros_like(x))
    part = np.where(np.arange(len(at[-1])) == target, at[-1] - base[-1], 0.0)
    # through a ReLU the part of the activation is the part of its pre-activation
    for k in reversed(range(len(weights))):
        below = at[2 * k] - base[2 * k]
        above = np.zeros(len(below))
        for j in range(len(part)):
            contributions = [weights[k][j, i] * below[i] for i in range(len(below))]
            total = sum(contributions)
            shares = [plain * c + boost * (c if c * total > 0 else 0.0) for c in contributions]
            if sum(shares) != 0:
                for i in range(len(below)):
                    above[i] += part[j] * shares[i] / sum(shares)
        part = above
    return part


def grad_cam_pp(activations, gradients):
    """Eq. 10 and 19 of Grad-CAM++ for one image (C, h, w), for the score exp(logit) without its common factor."""
    channels, height, width = activations.shape
    found = np.zeros((height, width))
    for k in range(channels):
        weight = 0.0
        for i, j in itertools.product(range(height), range(width)):
            g = gradients[k, i, j]
            below = 2 * g**2 + sum(
                activations[k, a, b] * g**3 for a, b in itertools.product(range(height), range(width))
            )
            alpha = g**2 / below if below != 0 else 0.0
            weight += alpha * max(g, 0.0)
        found += weight * activations[k]
    return found


def layer_cam(activations, gradients):
    """Σ_k ReLU(g) A of LayerCAM, for one image."""
    found = np.zeros(activations.shape[1:])
    for a, g in zip(activations, gradients, strict=True):
        found += np.where(g > 0, g, 0.0) * a
    return found


def shapley(worth, count):
    """Shapley values by definition: weighted marginal worth over all coalitions, `worth` takes a frozenset."""
    found = np.zeros(count)
    for i in range(count):
        others = [k for k in range(count) if k != i]
        for size in range(count):
            share = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in itertools.combinations(others, size):
                found[i] += share * (worth(frozenset({*chosen, i})) - worth(frozenset(chosen)))
    return found


def ridge(rows, values, weights, strength):
    """Weighted ridge regression with a free intercept, as least squares on an augmented system."""
    count = rows.shape[1]
    design = np.hstack([rows, np.ones((len(rows), 1))]) * np.sqrt(weights)[:, None]
    penalty = np.hstack([math.sqrt(strength) * np.eye(count), np.zeros((count, 1))])
    right = np.concatenate([values * np.sqrt(weights), np.zeros(count)])
    return np.linalg.lstsq(np.vstack([design, penalty]), right, rcond=None)[0][:-1]


def cosine_kernel(rows, width):
    """LIME's weight of a 0-1 row: √exp(−d²/width²), d the cosine distance from the row of ones."""
    ones = np.ones(rows.shape[1])
    found = []
    for row in rows:
        norm = np.linalg.norm(row) * np.linalg.norm(ones)
        distance = 1 - (row @ ones / norm if norm > 0 else 0.0)
        found.append(math.sqrt(math.exp(-(distance**2) / width**2)))
    return np.array(found)
