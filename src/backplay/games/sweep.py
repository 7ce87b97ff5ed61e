"""A grid of modes played on one capture: what the grid shares is computed once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from backplay.entry import entry
from backplay.errors import InputTypeError, KeywordError
from backplay.games.game import Game
from backplay.games.play import Play
from backplay.inputs import Target
from backplay.network import Network
from backplay.network.arguments import Arguments, Inputs
from backplay.pictured import Pictured
from backplay.values.shared import Shared


class Sweep(Pictured, dict[tuple[tuple[str, Any], ...], Any]):
    """The maps of a sweep by their keywords, with the input that they explain."""

    def __init__(self, maps: dict[tuple[tuple[str, Any], ...], Any], inputs: Arguments, network: Network) -> None:
        super().__init__(maps)
        self.x: Any = inputs.pack([inputs[key] for key in network.keys])
        self.model = network.model


@entry
def sweep(
    game: Game[Any],
    x: Inputs,
    target: Target = None,
    additional_forward_args: Any = None,
    **grid: Sequence[Any],
) -> Sweep:
    """The map of every point of a grid, by its keywords: `sweep(game, x, tau=[0.5, 1.0], risk=[0.0, -1.0])`.

    Keys are tuples of (keyword, value) in the order of the grid. Without a target the class with the model's largest
    logit is explained at every point. Points share every forward pass and every pass of moments that they can: they
    are played in the order of these, so that one of each is held at a time.
    """
    if not isinstance(game, Game):
        raise InputTypeError(f"sweep takes a game, got {type(game).__name__}; make one with bp.RoutingGame(model).")
    grid = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in grid.items()}  # type: ignore[attr-defined]
    if not grid:
        raise KeywordError("sweep needs at least one keyword with a list of values, e.g. tau=[0.5, 1.0].")
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise KeywordError(f"{name}={values!r}: a sweep takes a list of values for each keyword.")
    if "layers" in grid:
        raise KeywordError("layers cannot be swept: a grid varies keywords; play game.replace(layers=…) for each.")
    points = [tuple(zip(grid, chosen, strict=True)) for chosen in itertools.product(*grid.values())]
    games = {point: game.replace(**dict(point)) for point in points}
    network, inputs = game.prepare(x, additional_forward_args)
    shared = Shared(network, inputs, network.weights().overwriting())
    maps: dict[tuple[tuple[str, Any], ...], Any] = {}
    for point in _by_passes(games):
        maps[point] = Play(games[point], network, inputs, target, keep=False, shared=shared).attribution()
    return Sweep({point: maps[point] for point in points}, inputs, network)


def _by_passes(games: dict[Any, Game[Any]]) -> list[Any]:
    """The points with equal passes and powers together, those on the network's own pass first: it names the class."""
    keys = list(dict.fromkeys(game.forward_key() for game in games.values()))
    taus = list(dict.fromkeys(_temperature(game) for game in games.values()))

    def place(point: Any) -> tuple[bool, int, float, int]:
        game = games[point]
        key, tau = game.forward_key(), _temperature(game)
        return key != (), keys.index(key), game.modes.input_variance, taus.index(tau)

    return sorted(games, key=place)


def _temperature(game: Game[Any]) -> float:
    return getattr(game.modes, "tau", 1.0)
