"""The paper's selected modes by name, each with the table that it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from backplay.errors import KeywordError, suggestion
from backplay.games.reynolds import Reynolds
from backplay.games.routing import RoutingGame
from backplay.games.stopping import StoppingGame
from backplay.network import Network


@dataclass(frozen=True)
class Preset:
    """A game with its keywords, the architecture it was selected on and the table that reports it."""

    game: type[RoutingGame] | type[StoppingGame]
    table: str
    architecture: str
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])
    reynolds: dict[str, Any] | None = None  # keywords of the average over transformed inputs, if there is one

    def __call__(self, model: nn.Module | Network) -> RoutingGame | StoppingGame | Reynolds:
        """The game on a model."""
        game = self.game(model, **self.keywords)
        return game if self.reynolds is None else Reynolds(game, **self.reynolds)


PRESETS: dict[str, Preset] = {
    "sg": Preset(StoppingGame, "tab:double-random-hellinger", "any"),
    "rg-anchor": Preset(RoutingGame, "tab:eval-vit", "any"),
    "rg-vit-localise": Preset(
        RoutingGame, "tab:eval-vit", "vit", {"tau": 0.5, "attention_risk": -10.0, "input_variance": 2.0}
    ),
    "rg-vit-focus": Preset(RoutingGame, "tab:vit-duals", "vit", {"tau": 0.5}),
    "rg-eq": Preset(RoutingGame, "tab:eval-vit", "vit", {}, {"n": 50}),
    "rg-eq-vit-localise": Preset(RoutingGame, "tab:eval-vit", "vit", {"tau": 0.5}, {"n": 50}),
    "rg-vgg-localise": Preset(RoutingGame, "tab:eval-vgg16", "vgg", {"risk": -1.0, "input_variance": 10.0}),
    "rg-vgg-entropy": Preset(RoutingGame, "tab:vgg-lent-tau08", "vgg", {"tau": 0.8, "entropy_bias": 0.3}),
    "sg-vgg-localise": Preset(
        StoppingGame, "tab:eval-vgg16", "vgg", {"risk": -2.0, "input_variance": 1.0, "gate": "noisy"}
    ),
}


def preset(name: str) -> Preset:
    """One of the paper's selected modes; `preset("rg-anchor")(model).attribute(x)`."""
    if not isinstance(name, str) or name not in PRESETS:
        hint = suggestion(name, PRESETS)
        raise KeywordError(f"no preset named {name!r}{hint}: there are {', '.join(PRESETS)}.")
    return PRESETS[name]
