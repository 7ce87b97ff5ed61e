"""Layer-wise relevance propagation and its kin: each method is a set of rules for one backward pass.

Relevance starts as the target's logit. A map is never rescaled or rectified beyond the formula that its method names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backplay.keywords import Choice, Number
from backplay.methods.bilinear import ATTENTION_STABILISER, Softmax
from backplay.methods.propagation import Rules, relevance
from backplay.methods.registry import method
from backplay.methods.relays import over
from backplay.methods.rules import BIASES, Absolute, Box, Epsilon, Gamma
from backplay.methods.subject import Subject

BACH = "Bach et al. 2015, PLoS ONE 10(7), On pixel-wise explanations for non-linear classifier decisions by LRP"
MONTAVON = "Montavon et al. 2019, Layer-wise relevance propagation: an overview; Kohlbrenner et al. 2020, IJCNN"
DEEP_TAYLOR = "Montavon et al. 2017, Pattern Recognition 65, Explaining nonlinear classification by deep Taylor"
VUKADIN = "Vukadin et al. 2024, arXiv:2412.09311, Relative absolute magnitude LRP"
NYIRI = "Nyiri and Gibaru 2025, arXiv:2501.14322, Relative layer-wise relevance propagation"
ALI = "Ali et al. 2022, ICML, XAI for transformers: better explanations through conservative propagation"
ACHTIBAT = "Achtibat et al. 2024, ICML, AttnLRP: attention-aware layer-wise relevance propagation for transformers"

_BIAS = Choice("share", BIASES, "whether a bias hands its part of the relevance to the inputs or keeps it")


def _epsilon(default: float) -> Number:
    return Number(default, low=0.0, note="ε, the stabiliser of the denominators: what it takes is lost")


@method(
    "lrp_epsilon",
    title="LRP-ε",
    family="relevance",
    reference=BACH,
    params={"epsilon": _epsilon(1e-6), "bias": _BIAS},
    grid=tuple({"epsilon": e, "bias": "absorb"} for e in (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)),
    layers=True,
)
def lrp_epsilon(subject: Subject, epsilon: float, bias: str) -> Sequence[Tensor]:
    """`R_i = Σ_j a_i W_ij R_j / (z_j + ε sign z_j)`; sums by `a / (a + b)`; attention weights held fixed.

    `z` holds the bias. Under `bias="share"` its part goes to the inputs in proportion to `|a_i W_ij|`: on networks of
    affine layers (batch norm folded), gates, sums and pooling the map then adds up to the logit but for what `ε` takes,
    and what an output keeps that is all bias, none of its inputs being active. Under "absorb" every bias keeps its
    part: that is the published rule and zennit's, and what the grid asks for. Offsets elsewhere (position embeddings,
    norms) and constant tokens always keep theirs.
    """
    rule = Epsilon(epsilon, bias)
    return relevance(subject, Rules(rule, rule))


@method(
    "lrp_gamma",
    title="LRP-γ",
    family="relevance",
    reference=MONTAVON,
    params={"epsilon": _epsilon(0.25), "gamma": Number(0.25, low=0.0), "bias": _BIAS},
    grid=tuple(
        {"epsilon": e, "gamma": g, "bias": "absorb"} for e in (0.1, 0.25, 0.5) for g in (0.1, 0.25, 0.5, 1.0, 2.0)
    ),
    layers=True,
)
def lrp_gamma(subject: Subject, epsilon: float, gamma: float, bias: str) -> Sequence[Tensor]:
    """Contributions of the output's own sign count `1 + γ` times in every layer; all else as in LRP-ε."""
    rule = Gamma(gamma, epsilon, bias)
    return relevance(subject, Rules(rule, rule))


@method(
    "lrp_box",
    title="LRP-Box",
    family="relevance",
    reference=DEEP_TAYLOR,
    needs=("first layer",),
    params={
        "epsilon": _epsilon(0.25),
        "gamma": Number(0.25, low=0.0),
        "low": Number(None, note="lowest value a pixel can have; None: the lowest of the image"),
        "high": Number(None, note="highest value a pixel can have; None: the highest of the image"),
        "bias": _BIAS,
    },
    grid=tuple({"epsilon": 0.25, "gamma": g, "low": -3.0, "high": 3.0, "bias": "absorb"} for g in (0.1, 0.25, 0.5)),
    layers=True,
)
def lrp_box(
    subject: Subject, epsilon: float, gamma: float, low: float | None, high: float | None, bias: str
) -> Sequence[Tensor]:
    """The zᴮ rule in the layers that see the image, LRP-γ above."""
    rule, box = Gamma(gamma, epsilon, bias), Box(low, high, 0.0)
    return relevance(subject, Rules(rule, rule, first=box, first_dense=box))


@method("lrp_abs", title="LRP-|z|", family="relevance", reference=VUKADIN, layers=True)
def lrp_abs(subject: Subject) -> Sequence[Tensor]:
    """`R_i = Σ_j |a_i W_ij| R_j / Σ_k |a_k W_kj|`: positive and negative contributions share one denominator.

    Sums are split by `|operand|`; norms and offsets pass relevance on; attention weights are held fixed. The map has
    one sign and adds up to the logit but for what reaches constant tokens.

    The authors' repository computes something else. There an input gets `a_i ∂(z_j + (|W||a|)_j)/∂a_i · R_j / |z_j|`:
    its positive contributions alone, twice, for each unit of the output, and nothing for negative ones, where here
    every input has its share of `|contribution|`. It also follows queries and keys, scales the relevance of every
    layer to the sum 1, and takes off the map of all other classes.
    """
    rule = Absolute(0.0)
    return relevance(subject, Rules(rule, rule, mix=rule, passing=True, sums="absolute"))


@method(
    "rel_lrp",
    title="RelLRP",
    family="relevance",
    reference=NYIRI,
    params={"max_norm": Number(None, low=0.0, strict=True, note="largest magnitude of each map; None: as it comes")},
    grid=({"max_norm": 0.1}, {"max_norm": 0.5}),
    layers=True,
)
def rel_lrp(subject: Subject, max_norm: float | None) -> Sequence[Tensor]:
    """Relative LRP: conservation up to one factor for each sample, and no division by a small activation.

    What is carried is relevance for each unit of activation, `R_i / a_i`, which obeys the chain rule; the map is input
    times gradient, times a factor that sets its largest magnitude. The article leaves norms and attention open; here
    they are differentiated like all else, and in the paper's tables the rows RelLRP and Gr×Inp agree on every network.
    """
    maps = [x * slope for x, slope in zip(subject.seen(), subject.gradients(), strict=True)]
    if max_norm is None:
        return maps
    layouts = [source.layout for source in subject.sources]
    largest = torch.stack([lay.amax(part.abs()) for lay, part in zip(layouts, maps, strict=True)]).amax(0)
    factor = over(torch.full_like(largest, max_norm), largest)
    return [part * lay.spread(factor, part) for lay, part in zip(layouts, maps, strict=True)]


@method("cp_lrp", title="CP-LRP", family="relevance", reference=ALI, layers=True)
def cp_lrp(subject: Subject) -> Sequence[Tensor]:
    """LRP-0 with attention weights and the scales of norms held fixed: input times gradient of that network.

    Norms still centre. Biases and offsets keep their part. On a ReLU network it is input times gradient.
    """
    rule = Epsilon(0.0)
    return relevance(subject, Rules(rule, rule))


def _attention_grid() -> tuple[dict[str, Any], ...]:
    pure = [
        {"epsilon": e, "gamma_conv": 0.0, "gamma_lin": 0.0, "epsilon_attn": 0.0} for e in (0.05, 0.1, 0.25, 0.5, 1.0)
    ]
    sweeps = [{"gamma_lin": g} for g in (0.01, 0.025, 0.1, 0.25)]
    sweeps += [{"gamma_conv": g} for g in (0.1, 0.5, 1.0)]
    sweeps += [{"epsilon_attn": e} for e in (0.05, 0.1, 0.5, 1.0)]
    return (*pure, {}, *sweeps)


@method(
    "attn_lrp",
    title="AttnLRP",
    family="relevance",
    architectures=("transformer",),
    reference=ACHTIBAT,
    needs=("attention",),
    params={
        "epsilon": _epsilon(1e-6),
        "gamma_conv": Number(0.25, low=0.0, note="γ in convolutions; 0 is the ε rule"),
        "gamma_lin": Number(0.05, low=0.0, note="γ in linear layers; 0 is the ε rule"),
        "epsilon_attn": Number(ATTENTION_STABILISER, low=0.0, note="ε in the two products of attention"),
    },
    grid=_attention_grid(),
    layers=True,
)
def attn_lrp(
    subject: Subject, epsilon: float, gamma_conv: float, gamma_lin: float, epsilon_attn: float
) -> Sequence[Tensor]:
    """Relevance through the softmax into queries and keys (props. 3.1-3.4); γ rules elsewhere, or ε rules at γ = 0.

    Products give each factor one half, so that the gate's branch of a gated unit (SwiGLU) gets as much as the other; a
    factor that is a mask, or comes from an operator without a rule, gets nothing and the other one all. The softmax
    gives `x_i (R_i − s_i Σ_j R_j)`; norms centre and hold their scale; biases keep their part. Weights of grouped heads
    are held fixed.
    """
    convolution = Gamma(gamma_conv, epsilon) if gamma_conv else Epsilon(epsilon)
    dense = Gamma(gamma_lin, epsilon) if gamma_lin else Epsilon(epsilon)
    return relevance(subject, Rules(convolution, dense, softmax=Softmax("taylor", epsilon_attn), uniform=True))
