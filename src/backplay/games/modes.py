"""The keywords of the games: what each may be, frozen once a game is made."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, Literal

from backplay.errors import KeywordError


def check_number(name: str, value: Any, low: float = -math.inf, strict: bool = False, high: float = math.inf) -> None:
    """A finite number from `low` (left out if `strict`) to `high`."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or number < low or number > high or (strict and number == low):
        bound = f" {'>' if strict else '>='} {low:g}" if low > -math.inf else ""
        bound += f" and <= {high:g}" if high < math.inf else ""
        raise KeywordError(f"{name}={value!r} is out of range: it must be a finite number{bound}.")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """One of a few words."""
    if not isinstance(value, (str, bool)) or value not in choices:
        raise KeywordError(f"{name}={value!r} is out of range: it must be one of {', '.join(map(repr, choices))}.")


@dataclass(frozen=True)
class Modes:
    """Keywords that both games have."""

    risk: float = 0.0  # λ, negative = averse
    input_variance: float = 0.0  # σ²
    entropy_bias: float = 0.0  # λ_ent
    gate: Literal["exact", "noisy"] = "exact"
    gate_noise: float = 1.0

    def __post_init__(self) -> None:
        check_number("risk", self.risk)
        check_number("input_variance", self.input_variance, 0)
        check_number("entropy_bias", self.entropy_bias, 0)
        check_choice("gate", self.gate, ("exact", "noisy"))
        check_number("gate_noise", self.gate_noise, 0, strict=True)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def check_names(cls, keywords: dict[str, Any]) -> None:
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            close = get_close_matches(unknown[0], known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise KeywordError(f"unknown keyword {unknown[0]!r}{hint}: this game takes {', '.join(known)}.")

    def changed(self) -> dict[str, Any]:
        """The keywords that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True)
class StoppingModes(Modes):
    """Keywords of the Stopping Game."""

    softplus: float | None = None  # θ
    multiply_by_input: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.softplus is not None:
            check_number("softplus", self.softplus, 0, strict=True)
            if self.risk != 0:
                raise KeywordError(
                    f"softplus={self.softplus!r} and risk={self.risk!r} both replace the activations; use one."
                )
            if self.gate == "noisy":
                raise KeywordError(f"softplus={self.softplus!r} and gate='noisy' both replace the gates; use one.")
        check_choice("multiply_by_input", self.multiply_by_input, (False, True))


@dataclass(frozen=True)
class RoutingModes(Modes):
    """Keywords of the Routing Game."""

    alpha: float = 2.0
    beta: float = 1.0
    epsilon: float = 0.5
    tau: float = 1.0
    attention_risk: float = 0.0  # λ_sm, negative = averse
    attention_score: Literal["key", "relative", "logit"] = "key"
    residual: Literal["uniform", "proportional"] = "uniform"
    bias: Literal["ignore", "absorb"] = "ignore"
    empty_stream: Literal["cemetery", "reroute"] = "cemetery"
    attention: Literal["value", "gradient"] = "value"
    tau_forward: bool = False
    risk_forward: bool = False
    output: Literal["logit", "one"] = "logit"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "beta", "epsilon"):
            check_number(name, getattr(self, name), 0)
        check_number("tau", self.tau, 0, strict=True)
        check_number("attention_risk", self.attention_risk)
        check_choice("attention_score", self.attention_score, ("key", "relative", "logit"))
        check_choice("residual", self.residual, ("uniform", "proportional"))
        check_choice("bias", self.bias, ("ignore", "absorb"))
        check_choice("empty_stream", self.empty_stream, ("cemetery", "reroute"))
        check_choice("attention", self.attention, ("value", "gradient"))
        check_choice("tau_forward", self.tau_forward, (False, True))
        check_choice("risk_forward", self.risk_forward, (False, True))
        check_choice("output", self.output, ("logit", "one"))
        if self.tau_forward and self.risk_forward:
            raise KeywordError("tau_forward=True and risk_forward=True both drive the forward pass; use one.")
        if self.risk_forward and self.entropy_bias > 0:
            raise KeywordError(f"risk_forward=True leaves no room for entropy_bias={self.entropy_bias!r}; use one.")
        if abs(self.alpha - self.beta - 1) > 1e-9:
            warnings.warn(
                f"alpha - beta = {self.alpha - self.beta:g}, not 1: the map does not conserve the logit.", stacklevel=5
            )
