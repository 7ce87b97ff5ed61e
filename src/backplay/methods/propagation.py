"""One backward pass of relevance on the captured graph, under a set of rules.

Relevance moves as mass moves in a game, by the same loop (`trajectory.passes.run`); so residual sums, pooling, norms
and attention need no code for any architecture, and powers of two keep it in range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backplay.errors import NEVER_WALKED, InputError
from backplay.kernels.kernel import DIFFERENCE, Kernel
from backplay.kernels.moves import moving_kernel
from backplay.kernels.pointwise import PassThrough, Split, evenly
from backplay.methods.bilinear import Bilinear, Factors, Softmax, factors_of
from backplay.methods.relays import Relay, over, stabilised
from backplay.methods.rules import Epsilon, Rule
from backplay.methods.subject import Subject, sees_input, source_of
from backplay.network.attention import Attention
from backplay.network.layout import Layout
from backplay.network.linear import Convolution
from backplay.network.mass import Mass
from backplay.network.nodes import Affine, Diagonal, Gate, Halves, Held, Input, Mix, Node, Norm, Oracle, Product, Sum
from backplay.network.patterns import fitting
from backplay.trajectory.passes import MassPass, Passed, run
from backplay.values.forward import Values

PLAIN = Epsilon(0.0)  # shares by contribution and no stabiliser: where nothing has parameters


@dataclass(frozen=True)
class Rules:
    """What each node does with relevance: a relay, or the kernel of a game where both do the same.

    Gates pass relevance on; so do maxima (to the winner), wires, and a product (to the factor that carries, S17, unless
    its rule is uniform).
    """

    convolution: Rule
    dense: Rule  # linear layers, and all other products with a constant matrix
    first: Rule | None = None  # convolutions that see the input itself; None: like the others
    first_dense: Rule | None = None  # linear layers that do
    named: Mapping[str, Rule] = field(default_factory=dict[str, Rule])  # layers by patterns; the last that fits, wins
    mix: Rule = PLAIN  # pooling, means, attention times values: no parameters
    softmax: Softmax | None = None  # how relevance enters queries and keys; None holds attention weights fixed
    passing: bool = False  # norms, constant scales and offsets pass all relevance on instead of being linear maps
    uniform: bool = False  # products give one half to each live factor, gates among them (Achtibat 2024, prop. 3.2)
    sums: str = "signed"  # "signed": by the operands; "absolute": by their magnitudes; "balanced": as Chefer has it
    sum_epsilon: float = 0.0  # stabiliser of signed sums

    def step(self, node: Node, values: Values) -> Kernel | Relay:
        match node:
            case Attention() if self.softmax is not None and node.scores is not None:
                return Bilinear(node, values, self.softmax)
            case Mix():
                return self.mix.relay(node, values)
            case Held() | Halves() if self.uniform and not any(_has_no_rule(f) for f in factors_of(node)):
                return Factors(node, values, 0.0 if self.softmax is None else self.softmax.epsilon)
            case Affine():
                return self.rule_of(node).relay(node, values)
            case Sum():
                return self._sum(node, values)
            case Diagonal() if not self.passing and node.offset is not None:
                return Linear(node, values)
            case Norm() if not self.passing:
                return _norm(node, values)
            case Gate() | Diagonal() | Norm():
                return PassThrough()
            case Product() if self.uniform and not node.divides:
                return Uniform(node)
            case Halves() | Product():
                return evenly(len(node.carriers))
            case Oracle():
                return Absorbing()
            case _:
                return moving_kernel(node, values)

    def rule_of(self, node: Affine) -> Rule:
        """The rule of a layer: that of a pattern, else by what the layer is and where."""
        patterns = () if isinstance(node, Held) else fitting(self.named, node)
        if patterns:
            return self.named[patterns[-1]]
        convolves = isinstance(node.map, Convolution)
        first = self.first if convolves else self.first_dense
        if first is not None and sees_input(node.operand):
            return first
        return self.convolution if convolves else self.dense

    def _sum(self, node: Sum, values: Values) -> Kernel | Relay:
        left, right = (values[n] for n in node.inputs)
        if self.sums == "signed":
            return Terms(left, right, epsilon=self.sum_epsilon)
        if self.sums == "balanced":
            return Balanced(node.layout, left, right)
        both = left.abs() + right.abs()
        share = torch.where(both > 0, left.abs() / both, 0.5)
        return Split((share, 1 - share))


class Absorbing(Relay):
    """Relevance that has come to an operator without a rule, somewhere behind queries and keys, ends there."""

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        return ()


class Uniform(Relay):
    """A product: one half to each factor; all to one if the other has no rule, as a mask has none."""

    def __init__(self, node: Product) -> None:
        self._carriers = tuple(f for f in node.factors if not _has_no_rule(f)) or node.carrying

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return self._carriers

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        return [relevance / len(self._carriers)] * len(self._carriers)


def _has_no_rule(node: Node) -> bool:
    """Whether, seen through wires and constant scales, a value comes from an operator without a rule."""
    return isinstance(source_of(node), Oracle)


class Terms(Relay):
    """A sum: each term gets `R · a / (a + b)`, the denominator stabilised."""

    def __init__(self, *terms: Tensor, carriers: tuple[Node, ...] | None = None, epsilon: float = 0.0) -> None:
        self.terms, self._carriers, self.epsilon = terms, carriers, epsilon

    @property
    def carriers(self) -> tuple[Node, ...] | None:
        return self._carriers

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        first, *others = self.terms
        per_unit = over(relevance, stabilised(sum(others, first), self.epsilon))
        return [term * per_unit for term in self.terms]


class Balanced(Relay):
    """A sum after Chefer (2021a, eqs. 8-10): `R · a / (a + b)`, then each term scaled as a whole.

    Of the sample's relevance a term gets the part that `|Σ R_a|` is of `|Σ R_a| + |Σ R_b|`, so that terms that cancel
    cannot raise the total.
    """

    def __init__(self, layout: Layout, *terms: Tensor) -> None:
        self.layout, self.terms = layout, terms

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        plain = Terms(*self.terms).back(relevance)
        sums = [self.layout.sum(part) for part in plain]
        size = torch.stack(sums).abs().sum(0)
        factors = [over(over(part.abs(), size) * self.layout.sum(relevance), part) for part in sums]
        return [p * self.layout.spread(f.to(p.dtype), p) for p, f in zip(plain, factors, strict=True)]


class Linear(Relay):
    """`y = s (x − mean x) + o` with a detached scale `s`: `R_x = x ∂y/∂x R_y / y`, and the offset keeps its part.

    Norms centre by a linear map, as Ali (2022, eq. 10) and Achtibat (2024, prop. 3.4) read them; RMS and L2 norms,
    spelled-out scales and constant ones do not centre.
    """

    def __init__(self, node: Diagonal | Norm, values: Values) -> None:
        self.x, self.y = values[node.operand], values[node]
        self.scale = 1.0 if node.scale is None else node.scale(values)
        self.average = node.average if isinstance(node, Norm) and node.centres else None

    def back(self, relevance: Tensor) -> Sequence[Tensor]:
        slope = self.scale * over(relevance, self.y)
        return (self.x * (slope if self.average is None else slope - self.average(slope)),)


def _norm(node: Norm, values: Values) -> Kernel | Relay:
    if node.average is not None:
        return Linear(node, values)
    if node.facts.reading != "addition":  # x times a statistic
        return PassThrough()
    # a spelled-out norm: the mean that is taken off is a term of its own
    left, right = node.inputs
    other = right if node.operand is left else left
    y, x = values[node], values[node.operand] * node.scale(values)
    terms = (x, y - x), (node.operand, other)
    return Terms(*terms[0], carriers=terms[1])


class RelevancePass(MassPass):
    """Relevance carried back under a set of rules."""

    def __init__(self, rules: Rules, values: Values, passed: Passed, keep: bool) -> None:
        super().__init__(values.network, passed.masses, keep)
        self.rules, self.values = rules, values

    def step(self, node: Node, mass: Mass) -> Iterable[tuple[Node, Tensor]]:
        step = self.rules.step(node, self.values)
        back = step.back(mass.value) if isinstance(step, Relay) else step.pull(mass.value, DIFFERENCE)
        return zip(step.carriers or node.carriers, back, strict=True)


def propagate(subject: Subject, rules: Rules, unit: bool = False, keep: bool = False) -> tuple[Values, Passed]:
    """Carry relevance from the target back to the inputs; it starts as `w · logit`, or as `w` if `unit` (S26b).

    With `keep` the values and the relevance at every node stay at hand.
    """
    network = subject.network
    values = Values(network, subject.inputs, network.weights())
    root = subject.weights if unit else subject.weights * values.logits
    passed = Passed.starting(network.output, root, counting=False)
    run(RelevancePass(rules, values, passed, keep), done=None if keep else values.forget)
    return values, passed.arrive()


def relevance(subject: Subject, rules: Rules) -> list[Tensor]:
    """The map of a set of rules at each source, in its shape."""
    layer = subject.layer
    values, passed = propagate(subject, rules, keep=layer is not None)
    if layer is not None and layer not in passed.masses and not isinstance(layer, Input):
        raise InputError(f"layer={layer.name!r} is {NEVER_WALKED}, or a method that follows it.")
    return [passed.masses[n].plain() if n in passed.masses else torch.zeros_like(values[n]) for n in subject.sources]
