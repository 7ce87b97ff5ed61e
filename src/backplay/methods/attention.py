"""Explanations read off attention weights: raw attention, rollout, and the two of Chefer.

Of an image all of them are (B, 1, H, W): a score for each patch, up-sampled bilinearly; of embeddings (B, T, features)
they are (B, T, 1). A score is read in the rows of the tokens that the head reads: the class token's, or the mean over
the patches that are pooled, whatever other tokens stand before them; of a distilled DeiT, whose two heads are averaged,
the mean of its class and distillation token, where published code reads the first alone. Samples never meet, whatever
the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.keywords import Number
from backplay.methods.bilinear import Softmax, halves
from backplay.methods.propagation import Rules, propagate
from backplay.methods.registry import method
from backplay.methods.rules import Activating
from backplay.methods.subject import Subject, differentiated
from backplay.methods.tokens import Tokens, find_tokens
from backplay.network import Node
from backplay.network.attention import Attention
from backplay.values.forward import Values

ABNAR = "Abnar and Zuidema 2020, ACL, Quantifying attention flow in transformers"
CHEFER_A = "Chefer et al. 2021, CVPR, Transformer interpretability beyond attention visualization"
CHEFER_B = "Chefer et al. 2021, ICCV, Generic attention-model explainability for bi-modal transformers"
VASWANI = "Vaswani et al. 2017, NeurIPS, Attention is all you need; Dosovitskiy et al. 2021, ICLR"

_NEEDS = ("global attention",)


def _tokens(subject: Subject) -> Tokens:
    tokens = find_tokens(subject.network)
    assert tokens is not None, "the registry has asked for global attention"
    return tokens


def _values(subject: Subject) -> Values:
    return Values(subject.network, subject.inputs, subject.network.weights())


def deciding(values: Values, subject: Subject, tokens: Tokens) -> Tensor:
    """(B, T) which tokens the logits depend on behind the last block's attention.

    All classes are asked at once, with weights drawn at random, for their sum may be constant: a map of attention
    weights shall not depend on the target.
    """
    logits, generator = values.logits, torch.Generator().manual_seed(0)
    weights = torch.randn(logits.shape[-1], generator=generator, dtype=torch.float64).to(logits)
    places = logits.flatten(1).unflatten(1, (-1, logits.shape[-1]))
    root = torch.zeros_like(places)
    root += weights * subject.weights.flatten(1).view_as(places).ne(0).any(2, keepdim=True)
    last = tokens.blocks[-1]
    asked = tokens.queries(last, differentiated(values, last, root.view_as(logits))).ne(0).any(2)
    if not bool(asked.any(1).all()):
        raise UnsupportedError(
            "no token's row of the last attention block reaches the logits, so none can be read; a method that needs "
            "no attention map, such as 'gradient', will tell whether the network depends on its input at all."
        )
    return asked


def _map(scores: Tensor, values: Values, subject: Subject, tokens: Tokens) -> Tensor:
    """Scores (B, T, T) of the tokens that decide, laid out on the input."""
    return tokens.map(scores, deciding(values, subject, tokens), subject.x)


def attention_weights(values: Values, tokens: Tokens) -> list[Tensor]:
    """The weights of every block, mean over heads, (B, T, T)."""
    return [tokens.weights(block, block.weight(values)).mean(1) for block in tokens.blocks]


def attention_gradients(subject: Subject, tokens: Tokens) -> list[tuple[Tensor, Tensor]]:
    """The weights of every block and the gradients of the target's logit in them, both (B, heads, T, T).

    The captured program is replayed with the weights as tensors of their own, fused or not; a gradient holds all that
    a weight changes, later weights included.
    """
    known: dict[Attention, Tensor] = {}  # the weights of each block, as tensors that the logits depend on

    def split(node: Node, values: Values) -> Tensor | None:
        if not isinstance(node, Attention) or node not in tokens.blocks:
            return None
        known[node] = node.weight(values)
        return node.map.apply(values[node.operand], known[node])

    network = subject.network
    with torch.enable_grad():
        inputs = subject.inputs.at([subject.x.detach().clone().requires_grad_()])
        logits = Values(network, inputs, network.weights(), split).logits
        score = (logits * subject.weights).sum()
        weights = [known[block] for block in tokens.blocks]
        gradients = torch.autograd.grad(score, weights)
    pairs = zip(tokens.blocks, weights, gradients, strict=True)
    return [(tokens.weights(b, w.detach()), tokens.weights(b, g)) for b, w, g in pairs]


def compose(layers: list[Tensor], step: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Run through the layers (B, T, T) from the input on, starting from the identity."""
    first = layers[0]
    product = torch.eye(first.shape[-1], dtype=first.dtype, device=first.device).expand(first.shape)
    for layer in layers:
        product = step(layer, product)
    return product


def _added(layer: Tensor, found: Tensor) -> Tensor:
    """`R ← R + A R`."""
    return found + layer @ found


@method(
    "raw_attention",
    title="RawAttn",
    family="cam and attention",
    architectures=("transformer",),
    reference=VASWANI,
    needs=_NEEDS,
)
def raw_attention(subject: Subject) -> Tensor:
    """The last block's weights, mean over heads. They do not depend on the target."""
    tokens, values = _tokens(subject), _values(subject)
    return _map(attention_weights(values, tokens)[-1], values, subject, tokens)


@method(
    "rollout",
    title="AR",
    family="cam and attention",
    architectures=("transformer",),
    reference=ABNAR,
    needs=_NEEDS,
    params={"residual_weight": Number(0.5, low=0.0, high=1.0, note="w_r, the weight of the skip connection")},
    grid=tuple({"residual_weight": w} for w in (0.0, 0.25, 0.5, 0.75, 1.0)),
)
def rollout(subject: Subject, residual_weight: float) -> Tensor:
    """`Π_l (1 − w_r) A_l + w_r I`, rows normalised, `A_l` the mean over heads. It does not depend on the target."""
    tokens, values = _tokens(subject), _values(subject)

    def step(weight: Tensor, found: Tensor) -> Tensor:
        eye = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
        mixed = (1 - residual_weight) * weight + residual_weight * eye
        return mixed / mixed.sum(-1, keepdim=True) @ found

    return _map(compose(attention_weights(values, tokens), step), values, subject, tokens)


@method("gae", title="GAE", family="relevance", architectures=("transformer",), reference=CHEFER_B, needs=_NEEDS)
def gae(subject: Subject) -> Tensor:
    """`R ← R + E_h[(∇A ⊙ A)⁺] R` through the blocks, from `R = I` (eqs. 5 and 6)."""
    tokens = _tokens(subject)
    layers = [(gradient * weight).clamp(min=0).mean(1) for weight, gradient in attention_gradients(subject, tokens)]
    return _map(compose(layers, _added), _values(subject), subject, tokens)


@method("tibav", title="TIBAV", family="relevance", architectures=("transformer",), reference=CHEFER_A, needs=_NEEDS)
def tibav(subject: Subject) -> Tensor:
    """`Π_l (I + E_h[(∇A_l ⊙ R_l)⁺])`, `R_l` the relevance of the weights `A_l` (eqs. 13 and 14).

    Relevance starts as 1 at the target: αβ with α = 1 in layers, the normalised split of eqs. 8-10 at sums, one half
    to either factor of each product in attention; the softmax, norms, gates and offsets pass it on. The authors' code
    adds over the whole batch at sums; here every sample is normalised by itself.
    """
    tokens = _tokens(subject)
    rule = Activating()
    rules = Rules(rule, rule, softmax=Softmax("pass"), passing=True, sums="balanced")
    values, passed = propagate(subject, rules, unit=True, keep=True)
    layers: list[Tensor] = []
    for block, (weight, gradient) in zip(tokens.blocks, attention_gradients(subject, tokens), strict=True):
        factors = block.weight(values), values[block.operand]
        arrived = passed.masses[block].plain()
        slope, _ = halves(lambda a, v, block=block: block.map.apply(v, a), factors, arrived, 0.0)
        layers.append((gradient * weight * tokens.weights(block, slope)).clamp(min=0).mean(1))
    return _map(compose(layers, _added), values, subject, tokens)
