"""Norms in one operator and spelled out: whether a norm centres is a fact of the norm, not of its operator's name."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp
from closeness import assert_near
from language_models import build as build_text
from language_models import words
from toys import picture, tiny_vit

METHODS = [
    *(("deeplift", {"rule": rule}) for rule in ("default", "gamma", "zplus")),
    *((name, {}) for name in ("lrp_epsilon", "lrp_gamma", "lrp_box", "lrp_abs", "cp_lrp", "attn_lrp")),
]
F64 = torch.float64


class LlamaNorm(nn.Module):
    """RMS norm as Llama writes it."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Spelled(nn.Module):
    """Layer norm in primitives."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


def with_norms(change):
    """The small transformer with each norm changed."""
    model = tiny_vit()
    for parent in [model, *model.blocks]:
        for name in ("norm", "norm1", "norm2"):
            if hasattr(parent, name):
                setattr(parent, name, change(getattr(parent, name)))
    return model


def rms(norm):
    found = nn.RMSNorm(6, eps=1e-4, dtype=F64)
    found.weight = norm.weight
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_one_operator_or_many(kind):
    """The same network gives the same map, whoever writes out its norms."""
    x, target = picture(), [2, 0]
    fused, plain = {
        "rms": (rms, lambda norm: LlamaNorm(rms(norm))),
        "layer": (lambda norm: norm, Spelled),
    }[kind]
    first, second = (bp.capture(with_norms(change), x) for change in (fused, plain))
    assert_near(first.model(x), second.model(x), what="the same network")
    for name, params in METHODS:
        expected = bp.explain(first, x, target, method=name, **params)
        assert expected.abs().max() > 0
        assert_near(bp.explain(second, x, target, method=name, **params), expected, 1e-9, what=name)


NORMS = {
    "normalize": lambda z, hold: z / hold(z.norm(dim=-1, keepdim=True).clamp_min(1e-12)),
    "functional": lambda z, hold: functional.normalize(z, dim=-1),
    "deviation alone": lambda z, hold: z / hold(z.std(-1, keepdim=True)),
    "eps outside": lambda z, hold: (z - z.mean(-1, keepdim=True)) / hold(z.std(-1, keepdim=True) + 0.1),
    "variance": lambda z, hold: z * hold((z.var(-1, keepdim=True) + 0.1).rsqrt()),
    "sum of squares": lambda z, hold: z * hold((z.square().sum(-1, keepdim=True) + 0.1).rsqrt()),
    "largest": lambda z, hold: z / hold(z.abs().amax(-1, keepdim=True)),
}


class Normed(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.norm, self.hold = NORMS[name], lambda t: t

    def forward(self, x):
        return self.last(self.norm(self.first(x), self.hold))


@pytest.mark.parametrize("name", NORMS)
def test_deeplift_completeness(name):
    """Whatever statistic a norm divides by, the map sums to f(x) − f(0)."""
    model, x = Normed(name).to(F64).eval(), torch.randn(3, 6, dtype=F64)
    for rule in ("default", "gamma", "zplus"):
        found = bp.explain(model, x, 1, method="deeplift", rule=rule).sum(1)
        assert_near(found, (model(x) - model(torch.zeros_like(x)))[:, 1], 1e-9, what=rule)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("norm", ["functional", "layer", "rms"])
def test_deeplift_from_nothing(norm, dtype):
    """Where the baseline's own norm is 0, its inverse is bounded by `eps` alone: the map stays of the logit's size."""
    model = Normed("functional").to(dtype).eval()
    model.first.bias = None
    layers = {"layer": nn.LayerNorm(5, 1e-12, dtype=dtype), "rms": nn.RMSNorm(5, 1e-12, dtype=dtype)}
    if norm in layers:
        model.norm = lambda z, hold: layers[norm](z)
    x = torch.randn(3, 6, dtype=dtype)
    found = bp.explain(model, x, 1, method="deeplift")
    rise = (model(x) - model(torch.zeros_like(x)))[:, 1]
    assert_near(found.sum(1), rise, 1e-12 if dtype == F64 else 1e-5)
    assert found.abs().max() < 10 * rise.abs().max()


@pytest.mark.parametrize("name", [n for n in NORMS if n != "functional"])
def test_cp_lrp_holds_the_statistic(name):
    """CP-LRP is input times gradient with the statistic held; only a mean that is taken off centres."""
    model, x = Normed(name).to(F64).eval(), torch.randn(3, 6, dtype=F64)
    found = bp.explain(model, x, 1, method="cp_lrp")
    model.hold = torch.detach
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert_near(found, x * gradient)


@pytest.mark.slow
def test_llama():
    """RMS norms in primitives, rotary embeddings, grouped heads, gated units: the sum holds.

    To single precision, in which its norms compute.
    """
    (model, network), x = build_text("llama"), words()
    zero = x | {"inputs_embeds": torch.zeros_like(x["inputs_embeds"])}
    with torch.no_grad():
        expected = (model(**x).logits - model(**zero).logits)[:, -1, 1]
    found = bp.explain(network, x, 1, method="deeplift")
    assert_near(found.flatten(1).sum(1), expected, 1e-5)
