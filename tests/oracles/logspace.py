"""Maps of the Routing Game in log space, float64, for torchvision's VGG and VisionTransformer (S12-S18, S23, S37).

No contribution is ever raised to a power: scores are `(log|a| + log|W|)/τ`, the outside option is one more score
`log(ε)/τ`, and only normalised log-probabilities are exponentiated, so that no τ overflows or loses digits. The layers
are walked by hand for one image. What moves is `Γ₊ − Γ₋`; the first dimension of a mass is the temperature, since all
temperatures share the logarithms.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

CHUNK = 1 << 16  # scores that are held at once: rows are taken in groups of this size


@dataclass(frozen=True)
class Rules:
    """The keywords of the game."""

    taus: tuple[float, ...]
    epsilon: float
    alpha: float = 2.0
    beta: float = 1.0

    @property
    def outside(self):
        """log ε, what the outside option contributes."""
        return math.log(self.epsilon) if self.epsilon > 0 else -math.inf


class Logged(NamedTuple):
    """Values as log|a| and a sign; log 0 = −∞."""

    log: torch.Tensor
    negative: torch.Tensor


def logged(a):
    return Logged(a.abs().log(), a < 0)


def logged_gelu(z):
    """z·Φ(z), far left of 0 too: log|z| + log Φ(z)."""
    return Logged(z.abs().log() + torch.special.log_ndtr(z), z < 0)


# policies -------------------------------------------------------------------------------------------------------------
def policy(contributed, outside, tau):
    """c_i^{1/τ} / (o^{1/τ} + Σ c^{1/τ}) along the last dimension, from log c and log o; 0 in an empty stream (S16)."""
    scores = functional.pad(contributed, (0, 1), value=outside).div_(tau)
    found = torch.softmax(scores, -1)[..., :-1]  # exp(s − logsumexp(s))
    return found if outside > -math.inf else found.nan_to_num_(0.0)


def contributions(below, weight):
    """log [c_ij]^σ of some rows, for both signs of the product (S12)."""
    log, negative = below.log + weight.abs().log_(), below.negative ^ (weight < 0)
    return log.masked_fill(negative, -math.inf), log.masked_fill_(~negative, -math.inf)


def spread(masses, below, weight, outside, taus):
    """Masses on the two streams of every row to the predecessors, by ([c_ij]^σ)^{1/τ} and the outside option (S13).

    `masses` (T, P, J) each, `below` (P, K), `weight` (J, K) give (T, P, K). Rows without mass and predecessors that are
    0 take no part.
    """
    lower = torch.zeros(len(taus), *below.log.shape, dtype=torch.float64)
    for p, active in enumerate(((masses[0] != 0) | (masses[1] != 0)).any(0)):
        columns = below.log[p].isfinite().nonzero()[:, 0]
        here, all_live = Logged(*(part[p, columns] for part in below)), len(columns) == weight.shape[1]
        for rows in active.nonzero()[:, 0].split(max(1, CHUNK // max(1, len(columns)))):
            part = weight[rows] if all_live else weight[rows][:, columns]
            for mass, contributed in zip(masses, contributions(here, part), strict=True):
                for t, tau in enumerate(taus):
                    lower[t, p, columns] += mass[t, p, rows] @ policy(contributed, outside, tau)
    return lower


def route(mass, below, weight, rules):
    """An affine node: α on the positive stream; β on the negative one, where the player switches."""
    return spread((rules.alpha * mass, -rules.beta * mass), below, weight, rules.outside, rules.taus)


def mix(mass, weight, a, taus):
    """S18: policy ∝ (w_i a_i)^{1/τ}, one stream, no outside option; `mass` (T, C, J), `weight` (J, K), `a` (C, K)."""
    contributed = weight.log() + a.log()[:, None]
    shares = torch.stack([policy(contributed, -math.inf, tau) for tau in taus])
    return torch.einsum("tcj,tcjk->tck", mass, shares)


# layers ---------------------------------------------------------------------------------------------------------------
def convolution(layer, a, mass, rules):
    """Patches are positions, kernels are rows; zero padding contributes log 0."""
    shape = {"kernel_size": layer.kernel_size, "padding": layer.padding, "stride": layer.stride}
    assert layer.groups == 1 and layer.dilation == (1, 1)
    patches = functional.unfold(a, **shape)[0].mT
    lower = route(mass.flatten(2).mT, logged(patches), layer.weight.flatten(1), rules)
    return functional.fold(lower.mT, a.shape[2:], **shape)


def linear(layer, a, mass, rules):
    return route(mass.view(len(rules.taus), len(a), -1), logged(a), layer.weight, rules)


def max_pooling(layer, a, mass, rules):
    """The winner of smallest index takes all (S7)."""
    assert layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode
    shape = {"kernel_size": layer.kernel_size, "stride": layer.stride}
    windows = functional.unfold(a[0][:, None], **shape)  # (C, entries, windows)
    largest = windows == windows.amax(1, keepdim=True)
    winner = largest & (largest.cumsum(1) == 1)
    sent = mass.flatten(2)[:, :, None] * winner  # (T, C, entries, windows)
    return functional.fold(sent.flatten(1, 2), a.shape[2:], **shape)


def average_windows(size, result):
    """Weights (result, size) of adaptive average pooling along one side."""
    weight = torch.zeros(result, size, dtype=torch.float64)
    for i in range(result):
        start, stop = i * size // result, -(-(i + 1) * size // result)
        weight[i, start:stop] = 1 / (stop - start)
    return weight


def average_pooling(layer, a, mass, rules):
    assert (a >= 0).all()
    weight = torch.kron(*(average_windows(*sides) for sides in zip(a.shape[2:], mass.shape[2:], strict=True)))
    return mix(mass.flatten(2), weight, a[0].flatten(1), rules.taus).view(-1, *a.shape[1:])


def relu(layer, a, mass, rules):
    return mass * (a > 0)


LAYERS = {
    nn.Conv2d: convolution,
    nn.Linear: linear,
    nn.MaxPool2d: max_pooling,
    nn.AdaptiveAvgPool2d: average_pooling,
    nn.ReLU: relu,
    nn.Flatten: lambda layer, a, mass, rules: mass.view(-1, *a.shape[1:]),
    nn.Dropout: lambda layer, a, mass, rules: mass,
}


def vgg(model, x, target, rules):
    """Layer after layer back to the pixels."""
    layers = [*model.features, model.avgpool, nn.Flatten(), *model.classifier]
    values = [x]
    for layer in layers:
        # torchvision's gates work in place, which would overwrite what they are given
        values.append(values[-1].relu() if isinstance(layer, nn.ReLU) else layer(values[-1]))
    logits = values.pop()
    mass = root(logits, target, rules)
    for layer in reversed(layers):
        mass = LAYERS[type(layer)](layer, values.pop(), mass, rules)
    return mass * logits[0, target]


def root(logits, target, rules):
    """Every walk starts at the target's logit."""
    mass = torch.zeros(len(rules.taus), *logits.shape, dtype=torch.float64)
    mass[:, 0, target] = 1.0
    return mass


# transformers ---------------------------------------------------------------------------------------------------------
@dataclass
class Block:
    """What one encoder block saw, for one sample: tokens (N, D)."""

    attended: torch.Tensor  # behind the first norm
    weights: torch.Tensor  # (heads, N, N) log A
    mixed: torch.Tensor  # the heads' output, before the output projection
    normed: torch.Tensor  # behind the second norm
    hidden: torch.Tensor  # before the GELU


def forward_block(layer, x):
    """The block's result and what it saw."""
    attention, (up, _, _, down, _) = layer.self_attention, layer.mlp
    attended = layer.ln_1(x)
    query, key, value = (
        part.unflatten(1, (attention.num_heads, -1)).transpose(0, 1)
        for part in functional.linear(attended, attention.in_proj_weight, attention.in_proj_bias).chunk(3, 1)
    )
    weights = torch.log_softmax(query @ key.mT / math.sqrt(query.shape[2]), -1)
    mixed = (weights.exp() @ value).transpose(0, 1).flatten(1)
    x = x + attention.out_proj(mixed)
    normed = layer.ln_2(x)
    hidden = up(normed)
    return x + down(functional.gelu(hidden)), Block(attended, weights, mixed, normed, hidden)


def backward_block(layer, seen, mass, rules):
    """Residual sums take one half each (S17), norms pass through."""
    up, _, _, down, _ = layer.mlp
    half = mass / 2
    inner = route(half, logged_gelu(seen.hidden), down.weight, rules) * torch.special.ndtr(seen.hidden)
    half = (half + route(inner, logged(seen.normed), up.weight, rules)) / 2
    mixed = linear(layer.self_attention.out_proj, seen.mixed, half, rules)
    return half + attention(layer.self_attention, seen, mixed, rules)


def attention(layer, seen, mass, rules):
    """S23: `mass` (T, N, D) at the heads' output chooses a sign and a key, then an input of the V projection."""
    width = mass.shape[2]
    weight, below = layer.in_proj_weight[2 * width :], logged(seen.attended)
    # log A[q, k] for every feature of its head: (queries, features, keys)
    oracle = seen.weights.repeat_interleave(width // layer.num_heads, 0).transpose(0, 1)
    sent = []
    for discount, stream in zip((rules.alpha, -rules.beta), projected(below, weight), strict=True):
        keys = torch.stack([policy(oracle + stream.mT, rules.outside, tau) for tau in rules.taus])
        sent.append(discount * torch.einsum("tqd,tqdk->tkd", mass, keys))
    return spread(sent, below, weight, -math.inf, rules.taus)


def projected(below, weight):
    """log ṽ^σ (N, D): plain sums of the contributions of each sign, whatever τ."""
    sums = (
        [stream.logsumexp(1) for stream in contributions(Logged(*token), weight)] for token in zip(*below, strict=True)
    )
    return [torch.stack(stream) for stream in zip(*sums, strict=True)]


def vit(model, x, target, rules):
    """Class token and positions are constants: what reaches the token's row is no pixel's (S2, S26)."""
    patches = model.conv_proj(x)
    tokens = torch.cat([model.class_token[0], patches[0].flatten(1).mT]) + model.encoder.pos_embedding[0]
    seen = []
    for layer in model.encoder.layers:
        tokens, saw = forward_block(layer, tokens)
        seen.append(saw)
    first = model.encoder.ln(tokens)[:1]
    (head,) = model.heads
    logits = head(first)
    mass = torch.zeros(len(rules.taus), *tokens.shape, dtype=torch.float64)
    mass[:, :1] = linear(head, first, root(logits, target, rules), rules)
    for layer in reversed(model.encoder.layers):
        mass = backward_block(layer, seen.pop(), mass, rules)
    mass = convolution(model.conv_proj, x, mass[:, 1:].mT.reshape(-1, *patches.shape[1:]), rules)
    return mass * logits[0, target]


@torch.no_grad()
def attribution(model, x, target, taus, **options):
    """(Γ₊ − Γ₋) · logit at the pixels of one image (1, 3, H, W) for each τ: (T, 3, H, W)

    The model is in eval mode and float64.
    """
    from torchvision.models import VGG

    assert x.shape[0] == 1 and x.dtype == torch.float64 and not model.training
    return (vgg if isinstance(model, VGG) else vit)(model, x, target, Rules(tuple(taus), **options))
