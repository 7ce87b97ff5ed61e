"""Relevance propagation (LRP) on the captured graph: one backward pass, a set of rules, a few lines for each method.

Relevance starts as the target's logit and moves as mass moves in a game, by `trajectory.passes.pull`; so residual sums,
pooling, norms and attention need no code for any architecture, and powers of two keep it in range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.errors import KeywordError
from backplay.games.keywords import Choice, Number
from backplay.games.structure import structural_kernel
from backplay.kernels.kernel import DIFFERENCE, Kernel, Measure, PassThrough, Split
from backplay.methods.bilinear import Bilinear, Softmax
from backplay.methods.registry import method
from backplay.methods.rules import BIASES, Absolute, Box, Epsilon, Gamma, Propagation, Rule, over, sees_input
from backplay.methods.subject import Subject
from backplay.network.attention import Attention
from backplay.network.layout import Layout
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine, Diagonal, Gate, Mix, Node, Norm, Oracle, Product, Sum
from backplay.trajectory.passes import Passed, pull
from backplay.values.forward import Values


@dataclass(frozen=True)
class Rules:
    """Which kernel each node gets.

    Gates pass relevance on; so do maxima (to the winner), wires, and a product (to the factor that carries, S17).
    """

    convolution: Rule
    dense: Rule  # linear layers, and all other products with a constant matrix
    first: Rule | None = None  # convolutions and linear layers that see the input itself
    mix: Rule = Epsilon()  # pooling, means, attention times values: no parameters, no stabiliser
    softmax: Softmax | None = None  # how relevance enters queries and keys; None holds attention weights fixed
    passing: bool = False  # norms, constant scales and offsets pass all relevance on instead of being linear maps
    sums: str = "signed"  # "signed": by the operands; "absolute": by their magnitudes; "balanced": as Chefer has it

    def kernel(self, node: Node, values: Values) -> Kernel:
        match node:
            case Attention() if self.softmax is not None and node.scores is not None:
                return Bilinear(node, values, self.softmax)
            case Mix():
                return Propagation(self.mix, node, values)
            case Affine():
                return Propagation(self._layer(node), node, values)
            case Sum():
                return self._sum(node, values)
            case Diagonal() if not self.passing and node.offset is not None:
                return Linear(node, values)
            case Norm() if not self.passing:
                return _norm(node, values)
            case Gate() | Diagonal() | Norm():
                return PassThrough()
            case Product():
                return PassThrough() if len(node.carrying) == 1 else Split((0.5, 0.5))
            case Oracle():
                return Absorbing()
            case _:
                return structural_kernel(node, values)

    def _layer(self, node: Affine) -> Rule:
        if self.first is not None and sees_input(node.operand):
            return self.first
        return self.convolution if isinstance(node.map, Convolution) else self.dense

    def _sum(self, node: Sum, values: Values) -> Kernel:
        left, right = (values[n] for n in node.inputs)
        if self.sums == "signed":
            return Terms(left, right)
        if self.sums == "balanced":
            return Balanced(node.layout, left, right)
        both = left.abs() + right.abs()
        share = torch.where(both > 0, left.abs() / both, 0.5)
        return Split((share, 1 - share))


class Absorbing(Kernel):
    """Relevance that has come to an operator without a rule, somewhere behind queries and keys, ends there."""

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        return ()


class Terms(Kernel):
    """A sum: each term gets `R · a / (a + b)`."""

    def __init__(self, *terms: Tensor, carriers: tuple[Node, ...] | None = None) -> None:
        self.terms, self.carriers = terms, carriers

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        first, *others = self.terms
        per_unit = over(mass, sum(others, first))
        return [term * per_unit for term in self.terms]


class Balanced(Kernel):
    """A sum after Chefer (2021a, eqs. 8-10): `R · a / (a + b)`, then each term scaled as a whole.

    Of the sample's relevance a term gets the part that `|Σ R_a|` is of `|Σ R_a| + |Σ R_b|`, so that terms that cancel
    cannot raise the total.
    """

    def __init__(self, layout: Layout, *terms: Tensor) -> None:
        self.layout, self.terms = layout, terms

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        plain = Terms(*self.terms).pull(mass, measure)
        sums = [self.layout.sum(part) for part in plain]
        size = torch.stack(sums).abs().sum(0)
        factors = [over(over(part.abs(), size) * self.layout.sum(mass), part) for part in sums]
        return [p * self.layout.spread(f.to(p.dtype), p) for p, f in zip(plain, factors, strict=True)]


class Linear(Kernel):
    """`y = s (x − mean x) + o` with a detached scale `s`: `R_x = x ∂y/∂x R_y / y`, and the offset keeps its part.

    Norms centre by a linear map, as Ali (2022, eq. 10) and Achtibat (2024, prop. 3.4) read them; RMS norms and
    constant scales do not centre.
    """

    def __init__(self, node: Diagonal | Norm, values: Values) -> None:
        self.x, self.y = values[node.operand], values[node]
        self.scale = 1.0 if node.scale is None else node.scale(values)
        centred = isinstance(node, Norm) and "rms" not in node.operator
        self.average = node.average if isinstance(node, Norm) and centred else None

    def pull(self, mass: Tensor, measure: Measure) -> Sequence[Tensor]:
        slope = self.scale * over(mass, self.y)
        return (self.x * (slope if self.average is None else slope - self.average(slope)),)


def _norm(node: Norm, values: Values) -> Kernel:
    if node.average is not None:
        return Linear(node, values)
    if node.operator not in ("add", "sub", "rsub"):  # x times a statistic
        return PassThrough()
    # a spelled-out norm: the mean that is taken off is a term of its own
    left, right = node.inputs
    other = right if node.operand is left else left
    y, x = values[node], values[node.operand] * node.scale(values)
    terms = (x, y - x), (node.operand, other)
    return Terms(*terms[0], carriers=terms[1])


def propagate(subject: Subject, rules: Rules, start: Tensor | None = None, keep: bool = False) -> tuple[Values, Passed]:
    """Carry relevance from the target back to the input; it starts as `start` (B,), else as the logit.

    With `keep` the values and the relevance at every node stay at hand.
    """
    network = subject.network
    values = Values(network, subject.inputs, network.weights())
    logits, target = values.logits, subject.flat[:, None]
    root = torch.zeros_like(logits)
    amount = logits.flatten(1).gather(1, target) if start is None else start[:, None]
    root.flatten(1).scatter_(1, target, amount)
    done = None if keep else values.forget
    passed = pull(network, lambda node: rules.kernel(node, values), root, DIFFERENCE, keep=keep, done=done)
    return values, passed


def relevance(subject: Subject, rules: Rules) -> Tensor:
    """The map of a set of rules, of the input's shape."""
    _, passed = propagate(subject, rules)
    return passed.masses[subject.network.input].plain()


# ------------------------------------------------------------------------------------------------------------- methods

BACH = "Bach et al. 2015, PLoS ONE 10(7), On pixel-wise explanations for non-linear classifier decisions by LRP"
MONTAVON = "Montavon et al. 2019, Layer-wise relevance propagation: an overview; Kohlbrenner et al. 2020, IJCNN"
DEEP_TAYLOR = "Montavon et al. 2017, Pattern Recognition 65, Explaining nonlinear classification by deep Taylor"
VUKADIN = "Vukadin et al. 2024, arXiv:2412.09311, Relative absolute magnitude LRP"
NYIRI = "Nyiri and Gibaru 2025, arXiv:2501.14322, Relative layer-wise relevance propagation"
ALI = "Ali et al. 2022, ICML, XAI for transformers: better explanations through conservative propagation"
ACHTIBAT = "Achtibat et al. 2024, ICML, AttnLRP: attention-aware layer-wise relevance propagation for transformers"

_BIAS = Choice("share", BIASES, "whether a bias hands its part of the relevance to the inputs or keeps it")
_GAMMAS = (0.1, 0.25, 0.5)


def _epsilon(default: float) -> Number:
    return Number(default, low=0.0, note="ε, the stabiliser of the denominators: what it takes is lost")


@method(
    "lrp_epsilon",
    title="LRP-ε",
    family="relevance",
    reference=BACH,
    params={"epsilon": _epsilon(1e-6), "bias": _BIAS},
    grid=tuple({"epsilon": e} for e in (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)),
)
def lrp_epsilon(subject: Subject, epsilon: float, bias: str) -> Tensor:
    """`R_i = Σ_j a_i W_ij R_j / (z_j + ε sign z_j)`; sums by `a / (a + b)`; attention weights held fixed.

    `z` holds the bias. Under `bias="share"` its part goes to the inputs in proportion to `|a_i W_ij|`: on networks of
    affine layers (batch norm folded), gates, sums and pooling the map then adds up to the logit but for what `ε` takes.
    Under "absorb" the bias keeps its part, as in zennit. Offsets elsewhere (position embeddings, norms) keep theirs.
    """
    rule = Epsilon(epsilon, bias)
    return relevance(subject, Rules(rule, rule))


@method(
    "lrp_gamma",
    title="LRP-γ",
    family="relevance",
    reference=MONTAVON,
    params={"epsilon": _epsilon(0.25), "gamma": Number(0.25, low=0.0), "bias": _BIAS},
    grid=tuple({"epsilon": e, "gamma": g} for e in (0.1, 0.25, 0.5) for g in (0.1, 0.25, 0.5, 1.0, 2.0)),
)
def lrp_gamma(subject: Subject, epsilon: float, gamma: float, bias: str) -> Tensor:
    """Contributions of the output's own sign count `1 + γ` times in every layer; all else as in LRP-ε."""
    rule = Gamma(gamma, epsilon, bias)
    return relevance(subject, Rules(rule, rule))


@method(
    "lrp_box",
    title="LRP-Box",
    family="relevance",
    reference=DEEP_TAYLOR,
    params={
        "epsilon": _epsilon(0.25),
        "gamma": Number(0.25, low=0.0),
        "low": Number(None, note="lowest value a pixel can have; None: the lowest of the image"),
        "high": Number(None, note="highest value a pixel can have; None: the highest of the image"),
        "bias": _BIAS,
    },
    grid=tuple({"epsilon": 0.25, "gamma": g, "low": -3.0, "high": 3.0} for g in _GAMMAS),
)
def lrp_box(
    subject: Subject, epsilon: float, gamma: float, low: float | None, high: float | None, bias: str
) -> Tensor:
    """The zᴮ rule in the layers that see the image, LRP-γ above."""
    if low is not None and high is not None and low >= high:
        raise KeywordError(f"low={low!r} is out of range: it must be below high={high!r}.")
    rule = Gamma(gamma, epsilon, bias)
    return relevance(subject, Rules(rule, rule, first=Box(low, high)))


@method("lrp_abs", title="LRP-|z|", family="relevance", reference=VUKADIN)
def lrp_abs(subject: Subject) -> Tensor:
    """`R_i = Σ_j |a_i W_ij| R_j / Σ_k |a_k W_kj|`: positive and negative contributions share one denominator.

    Sums are split by `|operand|`; norms and offsets pass relevance on; attention weights are held fixed. The map has
    one sign and adds up to the logit but for what reaches constant tokens. The authors' code differs: it normalises
    every layer and takes off the map of all other classes.
    """
    rule = Absolute()
    return relevance(subject, Rules(rule, rule, mix=rule, passing=True, sums="absolute"))


@method(
    "rel_lrp",
    title="RelLRP",
    family="relevance",
    reference=NYIRI,
    params={"max_norm": Number(None, low=0.0, strict=True, note="largest magnitude of each map; None: as it comes")},
    grid=({"max_norm": 0.1}, {"max_norm": 0.5}),
)
def rel_lrp(subject: Subject, max_norm: float | None) -> Tensor:
    """Relative LRP: conservation up to one factor for each sample, and no division by a small activation.

    What is carried is relevance for each unit of activation, `R_i / a_i`, which obeys the chain rule; the map is input
    times gradient, times a factor that sets its largest magnitude. The article leaves norms and attention open; here
    they are differentiated like all else, and in the paper's tables the rows RelLRP and Gr×Inp agree on every network.
    """
    found = subject.x * subject.gradient()
    if max_norm is None:
        return found
    largest = found.flatten(1).abs().amax(1).view([-1] + [1] * (found.ndim - 1))
    return found * over(torch.full_like(largest, max_norm), largest)


@method("cp_lrp", title="CP-LRP", family="relevance", reference=ALI)
def cp_lrp(subject: Subject) -> Tensor:
    """LRP-0 with attention weights and the scales of norms held fixed: input times gradient of that network.

    Norms still centre. Biases and offsets keep their part. On a ReLU network it is input times gradient.
    """
    rule = Epsilon()
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
        "epsilon_attn": Number(0.25, low=0.0, note="ε in the two products of attention"),
    },
    grid=_attention_grid(),
)
def attn_lrp(
    subject: Subject, epsilon: float, gamma_conv: float, gamma_lin: float, epsilon_attn: float
) -> Tensor:
    """Relevance through the softmax into queries and keys (props. 3.1-3.4); γ rules elsewhere, or ε rules at γ = 0.

    Products give each factor one half, the softmax `x_i (R_i − s_i Σ_j R_j)`; norms centre and hold their scale; biases
    keep their part. Weights of grouped heads are held fixed.
    """
    convolution = Gamma(gamma_conv, epsilon) if gamma_conv else Epsilon(epsilon)
    dense = Gamma(gamma_lin, epsilon) if gamma_lin else Epsilon(epsilon)
    return relevance(subject, Rules(convolution, dense, softmax=Softmax("taylor", epsilon_attn)))
