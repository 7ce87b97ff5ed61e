"""The keywords of the games (sec:modes): what each may be, frozen once a game is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from backplay.errors import KeywordError, suggestion
from backplay.keywords import Choice, Keyword, Number


def keyword(accepts: Keyword) -> Any:
    """A field of the modes that says what it accepts."""
    return field(default=accepts.default, metadata={"accepts": accepts})


@dataclass(frozen=True)
class Modes:
    """Keywords that both games have."""

    risk: float = keyword(Number(0.0, note="λ, negative is averse; idle while input_variance is 0"))
    input_variance: float = keyword(Number(0.0, 0, note="σ², noise on every input element that risk is measured under"))
    entropy_bias: float = keyword(Number(0.0, 0, note="λ_ent, lowers what gates with an even fan-in show"))
    gate: Literal["exact", "noisy"] = keyword(
        Choice("exact", ("exact", "noisy"), note="of ReLU; other gates stay as they are")
    )
    gate_noise: float = keyword(Number(1.0, 0, strict=True, note='idle unless gate="noisy"'))

    def __post_init__(self) -> None:
        for name, accepts in self.accepts().items():
            object.__setattr__(self, name, accepts.check(name, getattr(self, name)))
        self.check_idle()

    @classmethod
    def accepts(cls) -> dict[str, Keyword]:
        """What each keyword may be."""
        return {f.name: f.metadata["accepts"] for f in fields(cls)}

    def check_idle(self) -> None:
        """Refuse a keyword that cannot act beside the others.

        A number that switches its mode off (0 of a risk or a variance, a temperature of 1) is a point of a grid like
        any other, and so is what stands beside it.
        """
        if self.gate == "exact" and self.gate_noise != 1:
            raise KeywordError(f'gate_noise={self.gate_noise!r} is idle with gate="exact"; give gate="noisy" too.')

    def warning(self) -> str | None:
        """What these modes give reason to warn of."""
        for name in ("risk", "attention_risk"):
            risk = getattr(self, name, 0)
            if risk != 0 and self.input_variance == 0:
                return f"{name}={risk!r} is idle while input_variance is 0; give a variance, such as 10.0."
        return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def check_names(cls, keywords: dict[str, Any]) -> None:
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            hint = suggestion(unknown[0], known)
            raise KeywordError(f"unknown keyword {unknown[0]!r}{hint}: this game takes {', '.join(known)}.")

    def changed(self) -> dict[str, Any]:
        """The keywords that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True)
class StoppingModes(Modes):
    """Keywords of the Stopping Game."""

    softplus: float | None = keyword(Number(None, 0, strict=True, note="θ, ReLUs become Softplus(θ)"))
    residual: Literal["uniform", "proportional"] = keyword(
        Choice("uniform", ("uniform", "proportional"), note="how a sum splits the walk; the gradient stays")
    )
    multiply_by_input: bool = keyword(Choice(False, (False, True), note="the map times the input"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.softplus is not None:
            if self.risk != 0:
                raise KeywordError(
                    f"softplus={self.softplus!r} and risk={self.risk!r} both replace the activations; use one."
                )
            if self.gate == "noisy":
                raise KeywordError(f"softplus={self.softplus!r} and gate='noisy' both replace the gates; use one.")


@dataclass(frozen=True)
class RoutingModes(Modes):
    """Keywords of the Routing Game."""

    alpha: float = keyword(Number(2.0, 0, note="discount of the positive stream"))
    beta: float = keyword(Number(1.0, 0, note="discount of the negative stream"))
    epsilon: float = keyword(Number(0.5, 0, note="ε, the outside option, which leads to †"))
    tau: float = keyword(Number(1.0, 0, strict=True, note="temperature of the policies"))
    attention_risk: float = keyword(Number(0.0, note="λ_sm, negative is averse; idle while input_variance is 0"))
    attention_score: Literal["key", "relative", "logit"] = keyword(
        Choice("key", ("key", "relative", "logit"), note="how the uncertainty of a key is measured")
    )
    residual: Literal["uniform", "proportional"] = keyword(
        Choice("uniform", ("uniform", "proportional"), note="how a sum splits the mass among its operands")
    )
    bias: Literal["ignore", "absorb"] = keyword(
        Choice("ignore", ("ignore", "absorb"), note="whether biases take their share of the mass to †")
    )
    empty_stream: Literal["cemetery", "reroute"] = keyword(
        Choice("cemetery", ("cemetery", "reroute"), note="where mass of a stream without contributions goes")
    )
    attention: Literal["value", "gradient"] = keyword(
        Choice("value", ("value", "gradient"), note="mass goes through the values, or by gradient times input")
    )
    tau_forward: bool = keyword(Choice(False, (False, True), note="the forward pass is tempered too"))
    risk_forward: bool = keyword(Choice(False, (False, True), note="the forward pass is averse too"))
    output: Literal["logit", "one"] = keyword(Choice("logit", ("logit", "one"), note="unit of the map"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_forward and self.risk_forward:
            raise KeywordError("tau_forward=True and risk_forward=True both drive the forward pass; use one.")
        if self.risk_forward and self.entropy_bias > 0:
            raise KeywordError(f"risk_forward=True leaves no room for entropy_bias={self.entropy_bias!r}; use one.")

    def check_idle(self) -> None:
        super().check_idle()
        for name, idle in (("attention_risk", 0), ("attention_score", "key")):
            if self.attention == "gradient" and getattr(self, name) != idle:
                raise KeywordError(
                    f'{name}={getattr(self, name)!r} is idle with attention="gradient", which has no oracle; use one.'
                )

    def warning(self) -> str | None:
        if abs(self.alpha - self.beta - 1) <= 1e-9:
            return super().warning()
        return f"alpha - beta = {self.alpha - self.beta:g}, not 1: the map does not conserve the logit."
