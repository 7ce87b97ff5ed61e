"""Networks as the Stopping Game sees them (S9): gates, statistics, softmax weights and product factors detached.

`held(model)` copies a network and replaces its gates, norms and attention by twins whose backward pass is that of
the game; `Spelled` networks take the function `hold` themselves, identity for the network and detach for its twin.
"""

import copy

import torch
from torch import nn

EXACT = {
    nn.GELU: lambda z: 0.5 * torch.erfc(-z / 2**0.5),
    nn.SiLU: torch.sigmoid,
    nn.Hardswish: lambda z: ((z + 3) / 6).clamp(0, 1),
}


def tanh_gate(z):
    """c(z) of the tanh GELU."""
    return 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3)))


class HeldGate(nn.Module):
    """z · c(z) with c detached: the gate as the Stopping Game sees it."""

    def __init__(self, openness):
        super().__init__()
        self.openness = openness

    def forward(self, z):
        return z * self.openness(z).detach()


class HeldLayerNorm(nn.Module):
    """Layer norm with detached mean and deviation."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        axes = tuple(range(-len(self.norm.normalized_shape), 0))
        mean = x.mean(axes, keepdim=True).detach()
        deviation = (x.var(axes, correction=0, keepdim=True) + self.norm.eps).sqrt().detach()
        y = (x - mean) / deviation
        if self.norm.weight is not None:
            y = y * self.norm.weight
        return y if self.norm.bias is None else y + self.norm.bias


class HeldGroupNorm(nn.Module):
    """Group norm with detached mean and deviation."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        grouped = x.unflatten(1, (self.norm.num_groups, -1)).flatten(2)
        mean = grouped.mean(2, keepdim=True).detach()
        deviation = (grouped.var(2, correction=0, keepdim=True) + self.norm.eps).sqrt().detach()
        y = ((grouped - mean) / deviation).reshape(x.shape)
        shape = [-1] + [1] * (x.ndim - 2)
        return y * self.norm.weight.view(shape) + self.norm.bias.view(shape)


class HeldRMSNorm(nn.Module):
    """RMS norm with a detached mean square."""

    def __init__(self, weight, eps):
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt().detach() * self.weight


class HeldMultihead(nn.Module):
    """torch's multi-head self-attention, batch first, with detached weights."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, query, *_, **__):
        layer, width = self.layer, self.layer.embed_dim
        projected = nn.functional.linear(query, layer.in_proj_weight, layer.in_proj_bias)
        q, k, v = (t.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for t in projected.split(width, -1))
        out = held_weights(q, k) @ v
        return layer.out_proj(out.transpose(1, 2).flatten(2)), None


def held_weights(q, k, mask=None, scale=None):
    """Softmax weights, detached."""
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (scores if mask is None else scores + mask).softmax(-1).detach()


class HeldGatedMLP(nn.Module):
    """down(act(gate(x)) · up(x)): the factor that comes out of the gate is detached (S17)."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, x):
        return self.mlp.down_proj(self.mlp.act_fn(self.mlp.gate_proj(x)).detach() * self.mlp.up_proj(x))


def _twin(child):
    if type(child) in EXACT and getattr(child, "approximate", "none") == "none":
        return HeldGate(EXACT[type(child)])
    name = type(child).__name__
    if name in ("GELUActivation", "GELU"):  # transformers, timm
        return HeldGate(EXACT[nn.GELU])
    if name in ("NewGELUActivation", "GELUTanh"):
        return HeldGate(tanh_gate)
    if name == "SiLUActivation":
        return HeldGate(torch.sigmoid)
    if isinstance(child, nn.LayerNorm):
        return HeldLayerNorm(child)
    if isinstance(child, nn.GroupNorm):
        return HeldGroupNorm(child)
    if name == "LlamaRMSNorm":
        return HeldRMSNorm(child.weight, child.variance_epsilon)
    if isinstance(child, nn.MultiheadAttention):
        return HeldMultihead(child)
    return HeldGatedMLP(child) if name == "LlamaMLP" else None


def held(model):
    """A copy of `model` with every known module replaced by its twin."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            twin = _twin(child)
            if twin is not None:
                setattr(parent, name, twin)
    return model


def gradient(logits_of, x):
    """Gradient of the chosen logits (B,) with respect to x."""
    x = x.clone().requires_grad_()
    logits = logits_of(x)
    (grad,) = torch.autograd.grad(logits.sum(), x)
    return logits.detach(), grad
