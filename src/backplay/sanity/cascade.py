"""The cascade: layer after layer forgets, and maps and walks are compared with its own (sec:hellinger-cascading)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backplay.errors import CaptureError, KeywordError, suggestion
from backplay.games import Play, RoutingGame, StoppingGame
from backplay.games.game import Game
from backplay.games.neurons import names_neurons
from backplay.methods import Explainer
from backplay.network import Model, Network, capture, read_model
from backplay.sanity.randomise import Stage, Which, draw, layers
from backplay.sanity.similarity import hog, spearman
from backplay.trajectory.hellinger import hellinger

GAMES: dict[str, tuple[type[Game[Any]], dict[str, Any]]] = {
    "sg": (StoppingGame, {}),
    "rg": (RoutingGame, {"epsilon": 0.0}),  # as in tab:double-random-hellinger
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a cascade: the model with all layers from the output to `layer` drawn anew, beside the model."""

    number: int  # 0: nothing is drawn anew yet
    layer: Stage | None  # what this step has drawn anew
    model: nn.Module  # the randomised copy; the next step changes it further
    spearman: Mapping[str, Tensor]  # method -> (B,) rank correlation of its two maps
    hog: Mapping[str, Tensor]  # method -> (B,) correlation of their histograms of oriented gradients
    distance: Mapping[str, Tensor]  # game -> (B,) H between the walks
    surviving: Mapping[str, Tensor]  # game -> (B,) H between the walks that arrive; NaN where none does


def cascade(
    model: Model,
    x: Tensor,
    target: Any = None,
    method: str | Sequence[str] | Mapping[str, Explainer] = "rg",
    *,
    games: Sequence[str] = ("sg", "rg"),
    which: Which = "all",
    seed: int = 0,
) -> Iterator[Step]:
    """Draw layer after layer anew, from the output to the input, and compare each time (fig:hellinger-sanity).

    >>> for step in bp.sanity.cascade(model, x, method=["rg", "gradient"]):
    ...     print(step.number, step.layer, step.spearman["rg"].mean(), step.distance["sg"].mean())

    `method` is one name, several, or explainers under names of your own; `games` are those whose walks are compared.
    Without a target both models are asked about the class that the given model finds. The first step compares the
    model with itself.
    """
    unknown = [name for name in games if name not in GAMES]
    if unknown:
        raise KeywordError(f"games has {unknown[0]!r}{suggestion(unknown[0], GAMES)}: there are {', '.join(GAMES)}.")
    found = read_model(model, "cascade")
    network = found if isinstance(found, Network) else capture(found, x)
    return _steps(network, x, target, _explainers(network, method), games, which, seed)


def _explainers(network: Network, method: str | Sequence[str] | Mapping[str, Explainer]) -> dict[str, Explainer]:
    if isinstance(method, Mapping):
        return {name: Explainer(network, given.info.name, **given.params) for name, given in method.items()}
    return {name: Explainer(network, name) for name in ([method] if isinstance(method, str) else method)}


def _steps(
    network: Network,
    x: Tensor,
    target: Any,
    explainers: Mapping[str, Explainer],
    games: Sequence[str],
    which: Which,
    seed: int,
) -> Iterator[Step]:
    aim = target if names_neurons(target) else StoppingGame(network).targets(x, target)
    if isinstance(aim, Tensor) and not aim.is_floating_point() and aim.ndim == 2 and aim.shape[1] == 1:
        aim = aim[:, 0]
    maps = {name: e.attribute(x, aim) for name, e in explainers.items()}
    plays = {name: _play(network, name, x, aim) for name in games}
    twin = copy.deepcopy(network.model)
    for number, layer in enumerate((None, *layers(network, which=which))):
        if layer is not None:
            draw(twin, layer.parameters, seed)
        other = network if layer is None else _captured(network, twin, x)
        again = {name: Explainer(other, e.info.name, **e.params).attribute(x, aim) for name, e in explainers.items()}
        met = {
            name: hellinger(play, play if layer is None else _play(other, name, x, aim)) for name, play in plays.items()
        }
        yield Step(
            number=number,
            layer=layer,
            model=twin,
            spearman={name: spearman(maps[name], again[name]) for name in maps},
            hog={name: hog(maps[name], again[name]) for name in maps},
            distance={name: h.distance for name, h in met.items()},
            surviving={name: h.surviving for name, h in met.items()},
        )


def _play(network: Network, game: str, x: Tensor, target: Any) -> Play:
    kind, keywords = GAMES[game]
    with torch.no_grad():
        return kind(network, **keywords).play(x, target)


def _captured(network: Network, twin: nn.Module, x: Tensor) -> Network:
    """The same graph on other weights; captured anew where a sign among them makes it another graph (S5)."""
    other = network.on(twin)
    try:
        other.weights()
    except CaptureError:
        return capture(twin, x)
    return other
