"""The paper's selected modes by name, each with what it is for and the table that it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from backplay.errors import KeywordError, instead
from backplay.games.reynolds import Reynolds
from backplay.games.routing import RoutingGame
from backplay.games.stopping import StoppingGame
from backplay.network import Network, Node
from backplay.network.attention import Attention
from backplay.network.nodes import Sum


def _has(network: Network, kind: type[Node]) -> bool:
    return any(isinstance(node, kind) for node in network.reached)


# by architecture: what a network of that kind has and has not
_LOOKS: dict[str, dict[type[Node], bool]] = {
    "any": {},
    "vit": {Attention: True},
    "vgg": {Attention: False, Sum: False},
    "resnet": {Attention: False, Sum: True},
}
_WORDS: dict[type[Node], str] = {Attention: "attention", Sum: "residual sums"}


@dataclass(frozen=True)
class Preset:
    """A game with its keywords, what it is for, the architecture it was selected on and the table that reports it."""

    game: type[RoutingGame] | type[StoppingGame]
    table: str
    architecture: str  # a key of _LOOKS
    purpose: str
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])
    reynolds: dict[str, Any] | None = None  # keywords of the average over transformed inputs, if there is one

    def __call__(self, model: nn.Module | Network) -> RoutingGame | StoppingGame | Reynolds:
        """The game on a model; it warns at its first play if the network is not of the preset's kind."""
        game = self.game(model, **self.keywords).meant_for(self.misfit)
        return game if self.reynolds is None else Reynolds(game, **self.reynolds)

    def misfit(self, network: Network) -> str | None:
        """Why the preset is not meant for a network; None if it is."""
        for kind, wanted in _LOOKS[self.architecture].items():
            if _has(network, kind) is not wanted:
                has = f"{'no ' if wanted else ''}{_WORDS[kind]}"
                return f"this preset ({self.purpose}) was selected on {self.architecture}; this network has {has}."
        return None


_AVERSE_KEYS = {"tau": 0.5, "attention_risk": -10.0, "input_variance": 2.0}
_AVERSE = {"risk": -1.0, "input_variance": 10.0}

PRESETS: dict[str, Preset] = {
    "sg": Preset(StoppingGame, "tab:double-random-hellinger", "any", "the gradient"),
    "rg-anchor": Preset(RoutingGame, "tab:eval-vit", "any", "αβ-LRP, where all modes start"),
    "rg-vit-localise": Preset(RoutingGame, "tab:eval-vit", "vit", "localisation", _AVERSE_KEYS),
    # this row prints λ = −1 beside the modes of tab:eval-vit, which the text says it takes as they are; it prints no σ²
    "rg-vit-voc": Preset(
        RoutingGame, "tab:eval-vit-voc", "vit", "localisation on other data", {**_AVERSE_KEYS, "risk": -1.0}
    ),
    "rg-vit-focus": Preset(RoutingGame, "tab:vit-duals", "vit", "sharp maps", {"tau": 0.5}),
    "rg-eq": Preset(RoutingGame, "tab:eval-vit", "vit", "stable maps, averaged over moved images", {}, {"n": 50}),
    "rg-eq-vit-localise": Preset(
        RoutingGame, "tab:eval-vit", "vit", "localisation, averaged over moved images", {"tau": 0.5}, {"n": 50}
    ),
    "rg-vgg-localise": Preset(RoutingGame, "tab:eval-vgg16", "vgg", "localisation", _AVERSE),
    "rg-vgg-entropy": Preset(
        RoutingGame, "tab:vgg-lent-tau08", "vgg", "pointing and robustness", {"tau": 0.8, "entropy_bias": 0.3}
    ),
    "sg-vgg-localise": Preset(
        StoppingGame, "tab:eval-vgg16", "vgg", "localisation", {"risk": -2.0, "input_variance": 1.0, "gate": "noisy"}
    ),
    "rg-resnet-localise": Preset(
        RoutingGame, "tab:baselines-resnet50", "resnet", "localisation", {"tau": 0.7, "epsilon": 1.0}
    ),
    "rg-resnet-point": Preset(RoutingGame, "tab:baselines-resnet50", "resnet", "pointing", {"epsilon": 1.0}),
    "rg-resnet-robust": Preset(RoutingGame, "tab:sweeps-resnet-rg", "resnet", "robustness", _AVERSE),
}


def preset(name: str) -> Preset:
    """One of the paper's selected modes; `preset("rg-anchor")(model).attribute(x)`."""
    if not isinstance(name, str) or name not in PRESETS:
        where = f"bp.presets lists all {len(PRESETS)}"
        raise KeywordError(f"no preset named {name!r}{instead(name, PRESETS, where=where)}.")
    return PRESETS[name]
