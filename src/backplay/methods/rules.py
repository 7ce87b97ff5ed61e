"""Rules of layer-wise relevance propagation, as `bp.lrp`: what a layer with weights does with relevance.

>>> bp.explain(model, x, method="lrp", rules={"features.*": bp.lrp.ZPlus(), "features.0": bp.lrp.Flat()})

`c_ij = a_i W_ij` is what input `i` contributes to output `j`, `z_j` their sum and the bias. Every rule adds `epsilon`
to its denominators, with their sign: what that takes is lost. Unless a rule says otherwise, a bias stands in the
denominator of its sign and keeps its part, as in zennit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from backplay.errors import KeywordError, instead, tensor_words
from backplay.kernels.kernel import Kernel
from backplay.kernels.pointwise import PassThrough
from backplay.keywords import Bound, Choice, Keyword, Number
from backplay.methods.relays import (
    BlindRelay,
    BoxRelay,
    PlainRelay,
    Relay,
    StreamsRelay,
    WeighingRelay,
    Weight,
)
from backplay.methods.subject import sees_input, source_of
from backplay.network.nodes import Affine, rerun
from backplay.values.forward import Values

__all__ = ["Absolute", "AlphaBeta", "Box", "Epsilon", "Flat", "Gamma", "Pass", "Rule", "WSquare", "ZPlus"]

BIASES = ("share", "absorb")
STABILISER = 1e-6  # as zennit has it
_ROUNDED = 1e-4  # of the input's magnitude: bounds of single precision lie this near to it
_EPSILON = Number(STABILISER, 0, note="ε, the stabiliser of the denominators")
_BIAS = Choice("absorb", BIASES, note="whether a bias hands its part of the relevance to the inputs or keeps it")


@dataclass(frozen=True)
class Rule(ABC):
    """What an affine node does with relevance."""

    accepts: ClassVar[dict[str, Keyword]] = {"epsilon": _EPSILON}

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in self.accepts:
                given = getattr(self, field.name)
                checked = self.accepts[field.name].check(f"{type(self).__name__}: {field.name}", given)
                object.__setattr__(self, field.name, checked)

    @abstractmethod
    def relay(self, node: Affine, values: Values) -> Relay | Kernel:
        """How a node hands relevance on to its input."""

    def refusal(self, node: Affine) -> str | None:
        """Why the rule is not for a layer; None if it is."""
        return None


@dataclass(frozen=True)
class Epsilon(Rule):
    """`R_i = Σ_j c_ij R_j / (z_j + ε sign z_j)`, the bias in `z` (Bach 2015, eq. 58)."""

    accepts = Rule.accepts | {"bias": _BIAS}

    epsilon: float = STABILISER
    bias: str = "absorb"

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        return 1.0, 1.0

    def relay(self, node: Affine, values: Values) -> Relay:
        if node.bias is None or self.bias == "absorb":
            return PlainRelay(self.epsilon, node, values)
        return WeighingRelay(self, node, values)


@dataclass(frozen=True)
class Gamma(Rule):
    """Contributions of the output's own sign count `1 + γ` (Montavon 2019; for values of any sign, Andéol 2021).

    An output of exactly 0 has no sign, and hands nothing on.
    """

    accepts = Rule.accepts | {"bias": _BIAS, "gamma": Number(0.25, 0)}

    gamma: float = 0.25
    epsilon: float = STABILISER
    bias: str = "absorb"

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        signed = (z != 0).to(z.dtype)
        return signed + self.gamma * (z > 0).to(z.dtype), signed + self.gamma * (z < 0).to(z.dtype)

    def relay(self, node: Affine, values: Values) -> Relay:
        return WeighingRelay(self, node, values)


@dataclass(frozen=True)
class Absolute(Rule):
    """`R_i = Σ_j |c_ij| R_j / Σ_k |c_kj|`: both signs share one denominator, which the bias has no part in."""

    epsilon: float = STABILISER

    @property
    def bias(self) -> str | None:
        return None

    def weights(self, z: Tensor) -> tuple[Weight, Weight]:
        return 1.0, -1.0

    def relay(self, node: Affine, values: Values) -> Relay:
        return WeighingRelay(self, node, values)


@dataclass(frozen=True)
class AlphaBeta(Rule):
    """`R_i = Σ_j (α c_ij⁺ / z_j⁺ − β c_ij⁻ / z_j⁻) R_j` (Bach 2015, eq. 60), the bias in the sum of its sign."""

    accepts = Rule.accepts | {"alpha": Number(2.0, 0), "beta": Number(1.0, 0)}

    alpha: float = 2.0
    beta: float = 1.0
    epsilon: float = STABILISER

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(self.alpha - self.beta - 1) > 1e-9:
            raise KeywordError(
                f"AlphaBeta: alpha={self.alpha!r} and beta={self.beta!r} must differ by 1, such as alpha=2.0, beta=1.0."
            )

    def relay(self, node: Affine, values: Values) -> Relay:
        return StreamsRelay(self.alpha, self.beta, self.epsilon, "absorb", node, values)


@dataclass(frozen=True)
class Activating(Rule):
    """The positive contributions alone, without stabiliser, the bias having no part: as Chefer has it."""

    accepts: ClassVar[dict[str, Keyword]] = {}

    def relay(self, node: Affine, values: Values) -> Relay:
        return StreamsRelay(1.0, 0.0, 0.0, None, node, values)


@dataclass(frozen=True)
class ZPlus(Rule):
    """The positive contributions alone: αβ with `α = 1, β = 0` (Montavon 2017)."""

    epsilon: float = STABILISER

    def relay(self, node: Affine, values: Values) -> Relay:
        return StreamsRelay(1.0, 0.0, self.epsilon, "absorb", node, values)


@dataclass(frozen=True)
class Flat(Rule):
    """Every input of an output gets the same (Lapuschkin 2019); the bias has no part."""

    epsilon: float = STABILISER

    def relay(self, node: Affine, values: Values) -> Relay:
        ones = torch.ones_like(node.weight(values))
        return BlindRelay(ones, None, self.epsilon, node, values[node.operand])


@dataclass(frozen=True)
class WSquare(Rule):
    """`R_i = Σ_j W_ij² R_j / (Σ_k W_kj² + b_j²)` (Montavon 2017), whatever the input is."""

    epsilon: float = STABILISER

    def relay(self, node: Affine, values: Values) -> Relay:
        bias = None if node.bias is None else node.bias(values).square()
        return BlindRelay(node.weight(values).square(), bias, self.epsilon, node, values[node.operand])


@dataclass(frozen=True, eq=False)
class Box(Rule):
    """zᴮ (Montavon 2017): `x_i W_ij − low_i W⁺_ij − high_i W⁻_ij ≥ 0` for pixels between `low` and `high`.

    Bounds are numbers, or tensors that can be broadcast to the input, such as (3, 1, 1) for the channels of an image;
    None is the smallest or largest entry of the sample's own input. The bias cancels.
    """

    accepts = Rule.accepts | {"low": Bound(), "high": Bound()}

    low: float | Tensor | None = None
    high: float | Tensor | None = None
    epsilon: float = STABILISER

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low is not None and self.high is not None:
            low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in (self.low, self.high))
            if not bool((low < high).all()):
                raise KeywordError(f"low={self.low!r} is out of range: it must be below high={self.high!r}.")

    def refusal(self, node: Affine) -> str | None:
        return None if sees_input(node.operand) else "it is for layers that see the input itself"

    def check_holds(self, x: Tensor) -> None:
        """Refuse an input with pixels outside of the box: contributions are nonnegative between the bounds alone."""
        for name, bound, side in (("low", self.low, -1), ("high", self.high, 1)):
            if bound is None:
                continue
            beyond = side * (x - _like(bound, x))
            if bool((beyond > _ROUNDED * x.abs().amax()).any()):
                worst = float(x.flatten()[beyond.flatten().argmax()])
                given = f"{name} {tensor_words(bound)}" if isinstance(bound, Tensor) else f"{name}={bound!r}"
                raise KeywordError(
                    f"{given} is out of range: the input holds {worst:.4g}, outside of the box; give bounds that hold "
                    "every pixel, or leave them out."
                )

    def relay(self, node: Affine, values: Values) -> Relay:
        return BoxRelay(*self.bounds(node, values), self.epsilon, node, values)

    def bounds(self, node: Affine, values: Values) -> tuple[Tensor, Tensor]:
        """The bounds as the layer sees them: wires and constant scales may lie before it, a negative one swaps them."""
        source = source_of(node.operand)
        x: Tensor = values[source]
        low, high = (source.layout.spread(b, x).expand(x.shape) for b in (x.flatten(1).amin(1), x.flatten(1).amax(1)))
        low = low if self.low is None else _like(self.low, x)
        high = high if self.high is None else _like(self.high, x)
        if bool((low > high).any()):
            given, ends = ("low", "highest") if self.high is None else ("high", "lowest")
            raise KeywordError(
                f"{given}={getattr(self, given)!r} is out of range: beyond the {ends} value of the image."
            )
        seen = [rerun(node.operand, {source: bound}, values) for bound in (low, high)]
        return torch.minimum(*seen), torch.maximum(*seen)


def _like(bound: float | Tensor, x: Tensor) -> Tensor:
    """A bound that can be broadcast to an input."""
    given = torch.as_tensor(bound, dtype=x.dtype, device=x.device)
    try:
        return given.expand(x.shape)
    except RuntimeError:
        raise KeywordError(
            f"a bound of shape {tuple(given.shape)} does not fit an input {tuple(x.shape)}; give a number, or a tensor "
            f"that can be broadcast to it, such as {(x.shape[1], *[1] * (x.ndim - 2))}."
        ) from None


@dataclass(frozen=True)
class Pass(Rule):
    """Relevance goes on unchanged, element by element: for a layer whose input has the shape of its output."""

    accepts: ClassVar[dict[str, Keyword]] = {}

    def refusal(self, node: Affine) -> str | None:
        inside, out = node.operand.shape, node.shape
        return None if inside == out else f"its input has another shape, {inside}, than its output, {out}"

    def relay(self, node: Affine, values: Values) -> Kernel:
        return PassThrough()


def check_rule(name: str, value: Any) -> Rule:
    """A rule, or one as JSON writes it: "ZPlus", {"Gamma": {"gamma": 0.25}}; a `KeywordError` unless it is one."""
    if isinstance(value, Rule):
        return value
    if isinstance(value, (str, Mapping)):
        return _named(name, cast("str | Mapping[str, Any]", value))
    known = ", ".join(each for each in __all__ if each != "Rule")
    if isinstance(value, type) and issubclass(value, Rule):
        raise KeywordError(f"{name}={value.__name__} is a class of rules; give a rule, {value.__name__}().")
    raise KeywordError(f"{name}={value!r} is no rule; give one of bp.lrp: {known}.")


def _named(name: str, written: str | Mapping[str, Any]) -> Rule:
    """The rule of that name, with the parameters behind it."""
    if not isinstance(written, str) and len(written) != 1:
        raise KeywordError(
            f'{name}={written!r} is no rule; write one with its parameters, {{"Gamma": {{"gamma": 1}}}}.'
        )
    kind, given = (written, {}) if isinstance(written, str) else next(iter(written.items()))
    known = [each for each in __all__ if each != "Rule"]
    if kind not in known:
        raise KeywordError(f"{name}={kind!r} is no rule{instead(kind, known, there='bp.lrp has')}.")
    rule: type[Rule] = globals()[kind]
    accepts = [field.name for field in fields(rule)]
    if not isinstance(given, Mapping) or any(key not in accepts for key in cast("Mapping[Any, Any]", given)):
        raise KeywordError(f"{name}={written!r}: {kind} takes a mapping of {', '.join(accepts) or 'nothing'}.")
    return rule(**cast("Mapping[str, Any]", given))
