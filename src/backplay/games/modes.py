"""The keywords of the games (sec:modes), for all of the network or by layer: what each may be, frozen in a game."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

from backplay.errors import KeywordError, instead
from backplay.keywords import ByLayer, Choice, Keyword, Number
from backplay.network import Network, Node
from backplay.network.attention import Attention
from backplay.network.nodes import Affine, Gate, Sum
from backplay.network.patterns import check_patterns, fitting


class Layers(Mapping[str, Mapping[str, Any]]):
    """`{pattern: {keyword: value}}` in the order in which it was given, read-only as all modes of a game are."""

    def __init__(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        self._keywords = {pattern: tuple(inner.items()) for pattern, inner in given.items()}

    def __getitem__(self, pattern: str) -> Mapping[str, Any]:
        return dict(self._keywords[pattern])

    def __iter__(self) -> Iterator[str]:
        return iter(self._keywords)

    def __len__(self) -> int:
        return len(self._keywords)

    def __eq__(self, other: object) -> bool:
        """Later patterns win: other orders are other modes."""
        if not isinstance(other, Mapping):
            return NotImplemented
        given: Mapping[Any, Any] = other
        return list(self.items()) == list(given.items())

    def __hash__(self) -> int:
        return hash(tuple(self._keywords))

    def __repr__(self) -> str:
        return repr(self.to_dict())

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The same as plain dicts."""
        return {pattern: dict(inner) for pattern, inner in self._keywords.items()}


def keyword(accepts: Number | Choice, at: type[Node] | None) -> Any:
    """A field of the modes: what it accepts, and at which kind of node it acts.

    None: it speaks of the game as a whole, and not of layers.
    """
    return field(default=accepts.default, metadata={"accepts": accepts, "at": at})


@dataclass(frozen=True)
class Modes:
    """Keywords that both games have."""

    risk: float = keyword(Number(0.0, note="λ, negative is averse; idle while input_variance is 0"), at=Gate)
    input_variance: float = keyword(
        Number(0.0, 0, note="σ², noise on every input element that risk is measured under"), at=None
    )
    entropy_bias: float = keyword(Number(0.0, 0, note="λ_ent, lowers what gates with an even fan-in show"), at=Gate)
    gate: Literal["exact", "noisy"] = keyword(
        Choice("exact", ("exact", "noisy"), note="of ReLU; other gates stay as they are"), at=Gate
    )
    gate_noise: float = keyword(Number(1.0, 0, strict=True, note='idle unless gate="noisy"'), at=Gate)
    layers: Layers | None = None  # keywords that hold in some modules instead

    # a keyword that has no effect while another has some value: (that keyword, that value)
    idle: ClassVar[dict[str, tuple[str, str]]] = {"gate_noise": ("gate", "exact")}

    def __post_init__(self) -> None:
        for name, accepts in self.accepts().items():
            object.__setattr__(self, name, accepts.check(name, getattr(self, name)))
        object.__setattr__(self, "layers", Layers(self.layers) if self.layers else None)
        self.check_idle()

    @classmethod
    def accepts(cls) -> dict[str, Keyword]:
        """What each keyword may be."""
        own = {f.name: f for f in fields(cls) if f.name != "layers"}
        within = {name: f.metadata["accepts"] for name, f in own.items() if f.metadata["at"] is not None}
        by_layer = ByLayer(within, tuple(name for name in (*own, "layers") if name not in within))
        return {name: f.metadata["accepts"] for name, f in own.items()} | {"layers": by_layer}

    @classmethod
    def acting(cls, node: Node) -> list[str]:
        """The keywords that act at a node of this kind, those of more general kinds first."""
        own = [f for f in fields(cls) if f.name != "layers"]
        return [f.name for kind in reversed(type(node).__mro__) for f in own if f.metadata["at"] is kind]

    # ---------------------------------------------------------------- by layer

    def at(self, node: Node) -> Self:
        """The modes that hold at a node: those of the game, changed by each pattern that means it in turn."""
        modes: Any = self if self.layers is None else _changed(self, fitting(self.layers, node))
        return modes

    def anywhere(self, name: str) -> set[Any]:
        """The values that a keyword has in the game and in its layers."""
        return {getattr(self, name), *(k[name] for k in (self.layers or {}).values() if name in k)}

    def varied(self, *names: str) -> tuple[Any, ...]:
        """What the layers say of some keywords, to tell games apart that differ in these."""
        known = (self.layers or {}).items()
        return tuple((p, *((n, k[n]) for n in names if n in k)) for p, k in known if any(n in k for n in names))

    def check_layers(self, network: Network) -> str | None:
        """Refuse patterns that match nothing, and keywords that cannot act together at a node; what to warn of."""
        if self.layers is None:
            return None
        check_patterns("layers", self.layers, network.nodes)
        try:
            everywhere = {self.at(node) for node in network.nodes}
        except KeywordError as error:
            raise KeywordError(f"layers: {error}") from None
        return next((said for modes in everywhere if (said := modes.warning()) is not None), None)

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
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "layers"}
        return own if self.layers is None else own | {"layers": self.layers.to_dict()}

    @classmethod
    def check_names(cls, keywords: dict[str, Any]) -> None:
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            where = f"help(bp.{cls.__name__.removesuffix('Modes')}Game) lists all {len(known)}"
            raise KeywordError(f"unknown keyword {unknown[0]!r}{instead(unknown[0], known, 'this game takes', where)}.")

    def changed(self) -> dict[str, Any]:
        """The keywords that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True)
class StoppingModes(Modes):
    """Keywords of the Stopping Game."""

    softplus: float | None = keyword(Number(None, 0, strict=True, note="θ, ReLUs become Softplus(θ)"), at=Gate)
    residual: Literal["uniform", "proportional"] = keyword(
        Choice("uniform", ("uniform", "proportional"), note="how a sum splits the walk; the gradient stays"), at=Sum
    )
    multiply_by_input: bool = keyword(Choice(False, (False, True), note="the map times the input"), at=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        soft, risks = self.anywhere("softplus") - {None}, self.anywhere("risk") - {0}
        if soft and risks:  # at different layers too: the moments of such a network are not defined
            raise KeywordError(f"softplus={min(soft)!r} and risk={min(risks)!r} both replace the activations; use one.")
        if self.softplus is not None and self.gate == "noisy":
            raise KeywordError(f"softplus={self.softplus!r} and gate='noisy' both replace the gates; use one.")


@dataclass(frozen=True)
class RoutingModes(Modes):
    """Keywords of the Routing Game."""

    alpha: float = keyword(Number(2.0, 0, note="discount of the positive stream"), at=Affine)
    beta: float = keyword(Number(1.0, 0, note="discount of the negative stream"), at=Affine)
    epsilon: float = keyword(Number(0.5, 0, note="ε, the outside option, which leads to †"), at=Affine)
    tau: float = keyword(Number(1.0, 0, strict=True, note="temperature of the policies"), at=Affine)
    attention_risk: float = keyword(
        Number(0.0, note="λ_sm, negative is averse; idle while input_variance is 0"), at=Attention
    )
    attention_score: Literal["key", "relative", "logit"] = keyword(
        Choice("key", ("key", "relative", "logit"), note="how the uncertainty of a key is measured"), at=Attention
    )
    residual: Literal["uniform", "proportional"] = keyword(
        Choice("uniform", ("uniform", "proportional"), note="how a sum splits the mass among its operands"), at=Sum
    )
    bias: Literal["ignore", "absorb"] = keyword(
        Choice("ignore", ("ignore", "absorb"), note="whether biases take their share of the mass to †"), at=Affine
    )
    empty_stream: Literal["cemetery", "reroute"] = keyword(
        Choice("cemetery", ("cemetery", "reroute"), note="where mass of a stream without contributions goes"), at=Affine
    )
    attention: Literal["value", "gradient"] = keyword(
        Choice("value", ("value", "gradient"), note="mass goes through the values, or by gradient times input"),
        at=Attention,
    )
    tau_forward: bool = keyword(Choice(False, (False, True), note="the forward pass is tempered too"), at=None)
    risk_forward: bool = keyword(Choice(False, (False, True), note="the forward pass is averse too"), at=None)
    output: Literal["logit", "one"] = keyword(Choice("logit", ("logit", "one"), note="unit of the map"), at=None)

    idle: ClassVar[dict[str, tuple[str, str]]] = Modes.idle | {
        "attention_risk": ("attention", "gradient"),
        "attention_score": ("attention", "gradient"),
    }

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


@lru_cache(maxsize=4096)
def _changed(modes: Modes, patterns: tuple[str, ...]) -> Modes:
    """The modes as some patterns change them, the last one last.

    What the game has and a pattern stills, such as its noise where gates are exact, goes back to its default there.
    """
    assert modes.layers is not None
    keywords = {name: value for pattern in patterns for name, value in modes.layers[pattern].items()}
    for name, (switch, off) in modes.idle.items():
        if keywords.get(switch) == off and name not in keywords:
            keywords[name] = modes.accepts()[name].default
    return replace(modes, layers=None, **keywords)
