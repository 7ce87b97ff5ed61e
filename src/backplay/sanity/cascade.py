"""The cascade: layer after layer forgets, and maps and walks are compared with its own (sec:hellinger-cascading)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from backplay.entry import entry
from backplay.errors import InputTypeError
from backplay.keywords import SEED
from backplay.methods import Explainer
from backplay.network import Model, Network
from backplay.sanity.randomise import Stage, Which, check_which, draw, layers
from backplay.sanity.similarity import hog, spearman
from backplay.sanity.walks import Compared, Names, aim_of, captured, listed, meet, network_of, played, read_names


@dataclass(frozen=True, kw_only=True)
class Step(Compared):
    """One step of a cascade: the model with all layers from the output to `layer` drawn anew, beside the model."""

    number: int  # 0: nothing is drawn anew yet
    layer: Stage | None  # what this step has drawn anew
    model: nn.Module  # the randomised copy; the next step changes it further
    spearman: Mapping[str, Tensor]  # method -> (B,) rank correlation of its two maps
    hog: Mapping[str, Tensor]  # method -> (B,) correlation of their histograms of oriented gradients


@entry
def cascade(
    model: Model,
    x: Tensor,
    target: Any = None,
    method: str | Sequence[str] | Mapping[str, Explainer] = "rg",
    *,
    games: Names = ("sg", "rg"),
    further: Names = (),
    which: Which = "all",
    seed: int = 0,
) -> Iterator[Step]:
    """Draw layer after layer anew, from the output to the input, and compare each time (fig:hellinger-sanity).

    >>> for step in bp.sanity.cascade(model, x, method=["rg", "gradient"]):
    ...     print(step.number, step.layer, step.spearman["rg"].mean(), step.distance["sg"].mean())

    `method` is one name, several, or explainers under names of your own; `games` are those whose walks are compared,
    and `further` asks more of them: "permuted", "ordinary", "bound", "floor" (see `backplay.sanity.walks`). Without a
    target both models are asked about the class that the given model finds. The first step compares the model with
    itself.
    """
    played_games, asked = read_names(games, further)
    check_which(which)
    seed = SEED.check("seed", seed)
    network = network_of(model, x, "cascade")
    explainers = _explainers(network, method)
    return _steps(network, x, aim_of(network, x, target), explainers, played_games, asked, which, seed)


def _explainers(network: Network, method: str | Sequence[str] | Mapping[str, Explainer]) -> dict[str, Explainer]:
    if isinstance(method, Mapping):
        wrong = [name for name, given in method.items() if not isinstance(given, Explainer)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if wrong:
            raise InputTypeError(f"method[{wrong[0]!r}] is no explainer; give bp.Explainer(model, …).")
        return {name: given.on(network) for name, given in method.items()}
    return {
        name: Explainer(network, name)
        for name in ([method] if isinstance(method, str) else listed("method", method, "names"))
    }


def _steps(
    network: Network,
    x: Tensor,
    aim: Any,
    explainers: Mapping[str, Explainer],
    games: Sequence[str],
    further: Sequence[str],
    which: Which,
    seed: int,
) -> Iterator[Step]:
    maps = {name: e.attribute(x, aim) for name, e in explainers.items()}
    plays = {name: played(network, name, x, aim) for name in games}
    twin = copy.deepcopy(network.model)
    for number, layer in enumerate((None, *layers(network, which=which))):
        if layer is not None:
            draw(twin, layer.parameters, seed)
        other = network if layer is None else captured(network, twin, x)
        again = {name: e.on(other).attribute(x, aim) for name, e in explainers.items()}
        pairs = {game: (play, play if layer is None else played(other, game, x, aim)) for game, play in plays.items()}
        yield Step(
            number=number,
            layer=layer,
            model=twin,
            spearman={name: spearman(maps[name], again[name]) for name in maps},
            hog={name: hog(maps[name], again[name]) for name in maps},
            **meet(pairs, further),
        )
