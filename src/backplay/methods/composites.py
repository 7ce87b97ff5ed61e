"""LRP composites: named sets of rules, and rules by the names of layers (`method="lrp"`).

On any captured network: batch norms are folded and sums found in the graph, so that nothing has to be prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from backplay.errors import KeywordError
from backplay.keywords import Bound, ByPattern, Choice
from backplay.methods.bilinear import ATTENTION_STABILISER, Softmax
from backplay.methods.propagation import Rules, relevance
from backplay.methods.registry import method
from backplay.methods.rules import STABILISER, AlphaBeta, Box, Epsilon, Flat, Gamma, Rule, ZPlus, check_rule
from backplay.methods.subject import Subject, sees_input, source_of, weighted_layers
from backplay.network import Network
from backplay.network.linear import Convolution
from backplay.network.nodes import Input
from backplay.network.patterns import check_patterns, fitting

ANDERS = (
    "Anders et al. 2021, arXiv:2106.13200, Software for dataset-wide XAI; Montavon et al. 2019; Kohlbrenner et al. 2020"
)


def _composite(convolution: Rule, first: Rule | None = None, first_dense: Rule | None = None) -> Rules:
    """Rules as zennit's composites have them: ε in linear layers; sums and pooling share by contribution.

    Gates, norms and constant scales pass relevance on, maxima to their winner; products and attention are crossed as
    AttnLRP does.
    """
    return Rules(
        convolution,
        Epsilon(),
        first,
        first_dense,
        mix=Epsilon(),
        softmax=Softmax("taylor", ATTENTION_STABILISER),
        passing=True,
        uniform=True,
        sum_epsilon=STABILISER,
    )


Bounds = Tensor | float | None
COMPOSITES: dict[str, Callable[[Bounds, Bounds], Rules]] = {
    "epsilon_plus": lambda low, high: _composite(ZPlus()),
    "epsilon_plus_flat": lambda low, high: _composite(ZPlus(), Flat(), Flat()),
    "epsilon_alpha2_beta1": lambda low, high: _composite(AlphaBeta(2.0, 1.0)),
    "epsilon_alpha2_beta1_flat": lambda low, high: _composite(AlphaBeta(2.0, 1.0), Flat(), Flat()),
    "epsilon_gamma_box": lambda low, high: _composite(Gamma(0.25), Box(low, high)),
}
BOXED = "epsilon_gamma_box"


@method(
    "lrp",
    title="LRP",
    family="relevance",
    reference=ANDERS,
    params={
        "composite": Choice("epsilon_plus_flat", tuple(COMPOSITES), note="a named set of rules"),
        "rules": ByPattern(check_rule, "{'features.*': bp.lrp.ZPlus()}", note="rules of layers; later patterns win"),
        "low": Bound(note=f"lowest values of the input, for {BOXED}; None: the sample's own"),
        "high": Bound(note=f"highest values of the input, for {BOXED}; None: the sample's own"),
    },
    layers=True,
)
def lrp(
    subject: Subject, composite: str, rules: Mapping[str, Rule] | None, low: Bounds, high: Bounds
) -> Sequence[Tensor]:
    """Relevance under a composite, as zennit names them, and under the rules that layers are given by name.

    `rules` are by patterns of module paths and go before the composite: they hold in the convolutions and linear
    layers that lie in the modules that fit. Everything else is as in all composites: sums and pooling share by
    contribution (ε = 1e-6), maxima give all to their winner, gates, norms and constant scales pass relevance on,
    products and attention are crossed as in `attn_lrp`. Layers that see the input itself, wherever they are, are the
    first layers of the composites that have a rule for these.
    """
    composed = COMPOSITES[composite](low, high)
    if composite != BOXED:
        _check_idle(composite, low=low, high=high)
    composed = replace(composed, named=rules or {})
    _check_fits(composed, subject.network)
    _check_boxes(composed, subject)
    return relevance(subject, composed)


def _check_idle(composite: str, **bounds: Any) -> None:
    for name, value in bounds.items():
        if value is not None:
            raise KeywordError(
                f"{name}={value!r} is idle with composite={composite!r}; it is for {BOXED!r}, or give rules with "
                f"bp.lrp.Box({name}=…)."
            )


def _check_boxes(rules: Rules, subject: Subject) -> None:
    """Refuse bounds that do not hold the input of their layer."""
    inputs = dict(zip(subject.network.inputs, subject.xs, strict=True))
    for layer in weighted_layers(subject.network):
        rule, source = rules.rule_of(layer), source_of(layer.operand)
        if isinstance(rule, Box) and isinstance(source, Input) and source in inputs:
            rule.check_holds(inputs[source])


def _check_fits(rules: Rules, network: Network) -> None:
    """Refuse patterns that name no layer with weights, rules that are not for their layer, and bounds of no layer."""
    layers = weighted_layers(network)
    check_patterns("rules", rules.named, layers, "layer with weights")
    for layer in layers:
        why = rules.rule_of(layer).refusal(layer) if fitting(rules.named, layer) else None
        if why is not None:
            rule = type(rules.rule_of(layer)).__name__
            raise KeywordError(f"rules: {rule} does not fit the layer {layer.name!r}: {why}; give it another rule.")
    box, first = rules.first, [layer for layer in layers if sees_input(layer.operand)]
    bounded = isinstance(box, Box) and (box.low is not None or box.high is not None)
    if bounded and not any(isinstance(layer.map, Convolution) for layer in first):
        raise KeywordError(
            "low and high are idle here: no convolution sees the input itself; give rules={'…': bp.lrp.Box(…)} for the "
            "layer that does."
        )
