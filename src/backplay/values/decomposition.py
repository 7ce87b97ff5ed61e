"""Decompositions (app:decompositions): a non-negative pair at every node whose difference is the node's value (S10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backplay.entry import at, entry
from backplay.errors import KeywordError, UnsupportedError, scale_words, tensor_words
from backplay.keywords import Choice, Number
from backplay.network import Model, Network, Node, read_model
from backplay.network.arguments import Inputs
from backplay.network.captures import Captures
from backplay.network.choices import Max, Select
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Affine, Diagonal, Gate, Halves, Input, Norm, Overlay, Product, Sum
from backplay.network.wires import Wire
from backplay.values.forward import Deform, Values
from backplay.values.gates import stopping_slope


@dataclass(frozen=True, repr=False)
class Pair:
    """True decomposed activations are `plus, minus · exp(log_scale)`; scales are (B,)."""

    plus: Tensor
    minus: Tensor
    log_scale: Tensor

    def __repr__(self) -> str:
        return f"Pair(plus, minus {tensor_words(self.plus)}; log scale {scale_words(self.log_scale)})"


@dataclass
class _Parts:
    """Both parts of a node's value as masses on one scale."""

    plus: Mass
    minus: Mass

    def each(self, change: Callable[[Mass], Mass]) -> _Parts:
        """Both parts changed alike."""
        return _Parts(change(self.plus), change(self.minus))

    def added(self, other: _Parts) -> _Parts:
        """The sum of two pairs, part by part (prop:addition-equivalence)."""
        return _Parts(self.plus.plus(other.plus), self.minus.plus(other.minus)).aligned()

    def linear(self, keep: Callable[[Tensor], Tensor], switch: Callable[[Tensor], Tensor], node: Node) -> _Parts:
        """`(K p + X m, X p + K m)` for a map with positive part `K` and negative part `X`."""
        p, m, e = self.plus.value, self.minus.value, self.plus.exponent
        plus = Mass(keep(p) + switch(m), e, node.layout)
        return _Parts(plus, Mass(keep(m) + switch(p), e, node.layout))

    def shifted(self, offset: Tensor) -> _Parts:
        """Add a signed quantity to the part of its sign."""
        zeros = torch.zeros_like(self.plus.value)
        parts = (offset.clamp(min=0) + zeros, (-offset).clamp(min=0) + zeros)
        unit = torch.zeros_like(self.plus.exponent)
        plus, minus = (
            mass.plus(Mass(part, unit, mass.layout)) for mass, part in zip((self.plus, self.minus), parts, strict=True)
        )
        return _Parts(plus, minus).aligned()

    def aligned(self) -> _Parts:
        """Both parts on the larger of their scales, near 1."""
        (plus, minus), common = aligned((self.plus, self.minus))
        layout = self.plus.layout
        scale = Mass(torch.maximum(plus.abs(), minus.abs()), common, layout).normalised().exponent
        plus, minus = (Mass(Mass(part, common, layout).times(common - scale), scale, layout) for part in (plus, minus))
        return _Parts(plus, minus)


Activation = Callable[[Gate, _Parts, Values], _Parts]


class Decomposition(Mapping[str, Pair]):
    """The pair at every node, by node or module name (def:decomposition).

    It is valid: everywhere `plus − minus` is the value of the network (def:valid-decomposition,
    eq:network-decomposition-recovery, thm:decomp-recovery).
    """

    def __init__(self, values: Values, activation: Activation) -> None:
        self.network: Network = values.network
        self._pairs: dict[Node, _Parts] = {}
        for node in self.network.nodes:
            if isinstance(values[node], Tensor) and values[node].is_floating_point():
                with at(node):
                    self._pairs[node] = _step(node, values, self._pairs, activation).aligned()

    def __repr__(self) -> str:
        return f"Decomposition({type(self.network.model).__name__}: pairs at {len(self)} nodes)"

    def __getitem__(self, name: str | Node) -> Pair:
        pair = self._pairs[self.network.find(name)]
        return Pair(pair.plus.value, pair.minus.value, pair.plus.log_scale)

    def __iter__(self) -> Iterator[str]:
        return (node.name for node in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


def _step(node: Node, values: Values, pairs: dict[Node, _Parts], activation: Activation) -> _Parts:
    """The canonical non-negative map of a node (eq:split-pos, eq:split-neg); what carries no mass is split by sign."""
    if not node.carries:
        return _values_pair(node, values)
    match node:
        case Input():
            return _values_pair(node, values)
        case Affine():
            return _affine(node, values, pairs[node.operand])
        case Gate():
            return activation(node, pairs[node.operand], values)
        case Halves():
            return _average([pairs[n] for n in node.inputs])
        case Sum():
            left, right = (pairs[n] for n in node.inputs)
            return left.added(right)
        case Diagonal(scale=None):
            return pairs[node.operand].shifted(_offset(node, values, None))
        case Diagonal() | Norm():
            assert node.scale is not None
            scale = node.scale(values).to(values[node].dtype)
            return _scaled(pairs[node.operand], scale, node).shifted(_offset(node, values, scale))
        case Product():
            return _product(node, values, pairs)
        case Max():
            return _winner(node, values, pairs)
        case Select():
            # where a constant is chosen, the value's own pair
            return _either(
                node, values, [pairs[s] if isinstance(s, Node) else _values_pair(node, values) for s in node.sides]
            )
        case Wire():
            return _wire(node, values, pairs)
        case _:
            return _values_pair(node, values)


def _values_pair(node: Node, values: Values) -> _Parts:
    """The positive and the negative part of a value (eq:input-split-convention)."""
    value = values[node]
    value = value if value.is_floating_point() else value.to(values.logits.dtype)  # a mask is 0 and 1
    exponent = torch.zeros(values.batch, dtype=torch.float64, device=value.device)
    return _Parts(*(Mass(part.clamp(min=0), exponent, node.layout) for part in (value, -value)))


def _affine(node: Affine, values: Values, below: _Parts) -> _Parts:
    weight = values.weight(node)
    positive, negative = weight.clamp(min=0), (-weight).clamp(min=0)
    pair = below.linear(lambda a: node.map.apply(a, positive), lambda a: node.map.apply(a, negative), node)
    return pair if node.bias is None else pair.shifted(node.bias(values))


def _average(readings: list[_Parts]) -> _Parts:
    """Both ways of reading a contraction stand for one half of it (S7)."""
    if len(readings) == 1:
        return readings[0]
    first, second = (pair.each(lambda m: Mass(m.value, m.exponent - 1, m.layout)) for pair in readings)
    return first.added(second)


def _scaled(below: _Parts, scale: Tensor, node: Node) -> _Parts:
    return below.linear(lambda a: a * scale.clamp(min=0), lambda a: a * (-scale).clamp(min=0), node)


def _offset(node: Diagonal | Norm, values: Values, scale: Tensor | None) -> Tensor:
    """What the node adds to `scale · x`: constants, and a norm's detached mean."""
    operand = values[node.operand]
    return values[node] - (operand if scale is None else scale * operand)


def _product(node: Product, values: Values, pairs: dict[Node, _Parts]) -> _Parts:
    count = len(node.carrying)
    first, *other = (_scaled(pairs[f], node.scale_of(f, values) / count, node) for f in node.carrying)
    return first.added(other[0]) if other else first


def _winner(node: Max, values: Values, pairs: dict[Node, _Parts]) -> _Parts:
    """The pair of the winner (prop:maxpool-equivalence)."""
    if node.winner is None:
        return _either(node, values, [pairs[n] for n in node.inputs])
    return pairs[node.inputs[0]].each(lambda m: Mass(node.pick([m.value], values), m.exponent, node.layout))


def _either(node: Max | Select, values: Values, sides: list[_Parts]) -> _Parts:
    """Each element's pair is that of the side that is chosen there."""
    first = node.first(values)
    return _masked(sides[0], first, node).added(_masked(sides[1], ~first, node))


def _masked(pair: _Parts, mask: Tensor, node: Node) -> _Parts:
    """A pair where a mask holds, zeros elsewhere."""
    return pair.each(lambda m: Mass(m.value * mask, m.exponent, node.layout))


def _wire(node: Wire, values: Values, pairs: dict[Node, _Parts]) -> _Parts:
    operands = [pairs[n] for n in node.inputs]
    values_of_parts, common = aligned([part for pair in operands for part in (pair.plus, pair.minus)])
    plus, minus = (Mass(node.move(values_of_parts[k::2], values), common, node.layout) for k in (0, 1))
    pair = _Parts(plus, minus)
    if not node.constants:
        return pair
    zeros = {n: torch.zeros_like(values[n]) for n in node.inputs}
    filled = node.run(Overlay(zeros, values))
    return pair.shifted(torch.where(torch.isfinite(filled), filled, 0))  # −∞ before a max is no element (S3e)


def stopping(node: Gate, below: _Parts, values: Values) -> _Parts:
    """`f_stop` (eq:stop-relu); what a gate adds to `c(z) z` goes to the part of its sign.

    With the canonical map below it this is eq:adf-astop-recursion: monotone while no gate changes (lem:stop-monotone),
    and a sum over paths, by the parity of their negative weights (lem:parity-path).
    """
    form = values.form(node)
    slope = stopping_slope(node, values, form) * form.scale
    return _scaled(below, slope, node) if form.name == "relu" else stopped(node, below, values, slope)


def stopped(node: Gate, below: _Parts, values: Values, slope: Tensor) -> _Parts:
    """Both parts times the gate's slope, and what it adds to that in the part of its sign."""
    return _scaled(below, slope, node).shifted(values[node] - slope * values[node.operand])


def mixing(eta: float) -> Activation:
    """`f_mix` (eq:dc-relu): `η = 1` convex (thm:dc-extreme-conv-conc), `η = 0` its arithmetic dual.

    That one is not concave (rem:eta-0-concavity).
    """

    def activation(node: Gate, below: _Parts, values: Values) -> _Parts:
        form = values.form(node)
        if form.name != "relu" or form.scale != 1:
            raise UnsupportedError(
                f"the mixing decomposition knows ReLU gates only, but {node.name!r} is {node.operator}; "
                "use kind='stopping'."
            )
        up, down = below.plus.value, below.minus.value
        exponent = below.plus.exponent
        plus = eta * torch.maximum(up, down) + (1 - eta) * up
        minus = eta * down + (1 - eta) * torch.minimum(up, down)
        return _Parts(Mass(plus, exponent, node.layout), Mass(minus, exponent, node.layout))

    return activation


def softplus(theta: float) -> tuple[Activation, Deform]:
    """`f_soft` (eq:softplus-decomp), and the network with ReLU replaced by Softplus(θ) that it decomposes.

    eq:decomp-recovery-softplus; for the two others eq:decomp-recovery-stop-mix holds. Not all slopes of its parts keep
    their sign (rem:soft-monotone).
    """

    def activation(node: Gate, below: _Parts, values: Values) -> _Parts:
        form = values.form(node)
        if form.name != "relu":
            return stopping(node, below, values)
        z = values[node.operand] / theta
        # θ H_θ: the entropy of the Gibbs weight is even in z, and this form keeps its digits on both sides
        entropy = torch.log1p(torch.exp(-z.abs())) + z.abs() * torch.sigmoid(-z.abs())
        return _scaled(below, form.scale * torch.sigmoid(z), node).shifted(form.scale * theta * entropy)

    return activation, softplus_forward(theta)


def softplus_forward(theta: float) -> Deform:
    """The network with ReLU replaced by Softplus(θ), the value of a soft choice (eq:softplus-soft-value)."""

    def deform(node: Node, values: Values) -> Tensor | None:
        form = values.form(node) if isinstance(node, Gate) else None
        if not isinstance(node, Gate) or form is None or form.name != "relu":
            return None
        # straight where that changes no digit of float64; torch's own threshold of 20 is seen in the ninth
        return form.scale * theta * functional.softplus(values[node.operand] / theta, threshold=40.0)

    return deform


@entry
def decompose(
    model: Model,
    x: Inputs,
    kind: str = "stopping",
    *,
    eta: float | None = None,
    theta: float | None = None,
    additional_forward_args: Any = None,
) -> Decomposition:
    """Non-negative pairs at every node: `"stopping"`, `"mixing"` (with `eta` in [0, 1]) or `"softplus"` (`theta` > 0).

    >>> bp.decompose(model, x)["features.3"].plus
    """
    Choice("stopping", ("stopping", "mixing", "softplus")).check("kind", kind)
    _check_parameter("eta", eta, kind == "mixing")
    _check_parameter("theta", theta, kind == "softplus")
    network, inputs = Captures(read_model(model, "decompose")).prepare(x, additional_forward_args)
    deform: Any = None
    activation = stopping
    if eta is not None:
        Number(0.5, 0, high=1).check("eta", eta)
        activation = mixing(eta)
    elif theta is not None:
        Number(1.0, 0, strict=True).check("theta", theta)
        activation, deform = softplus(theta)
    return Decomposition(Values(network, inputs, network.weights(), deform), activation)


def _check_parameter(name: str, value: float | None, needed: bool) -> None:
    if needed and value is None:
        raise KeywordError(f"this kind of decomposition needs {name}=….")
    if not needed and value is not None:
        raise KeywordError(f"{name}={value!r} does not belong to this kind of decomposition; leave it out.")
