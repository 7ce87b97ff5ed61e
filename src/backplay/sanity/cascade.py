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
from backplay.sanity.similarity import describe
from backplay.sanity.walks import Compared, Names, Unchanged, aim_of, captured, listed, meet, network_of, read_names


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
    own = Unchanged(network, x, aim_of(network, x, target))
    twin = Forgetting(network, which, seed)
    return (step_of(own, twin, number, explainers, played_games, asked) for number in range(len(twin.stages) + 1))


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


class Forgetting:
    """A copy of a network whose layers are drawn anew one after the other, from the output on."""

    def __init__(self, network: Network, which: Which, seed: int) -> None:
        self.network, self.which, self.seed = network, which, seed
        self.stages = layers(network, which=which)
        self.model, self.step = copy.deepcopy(network.model), 0

    def at(self, step: int, x: Tensor) -> Network:
        """The network with so many layers drawn anew; a copy that has forgotten more begins again."""
        if step < self.step:
            self.model, self.step = copy.deepcopy(self.network.model), 0
        for stage in self.stages[self.step : step]:
            draw(self.model, stage.parameters, self.seed)
        self.step = step
        return captured(self.network, self.model, x)


def step_of(
    own: Unchanged,
    twin: Forgetting,
    number: int,
    explainers: Mapping[str, Explainer],
    games: Sequence[str],
    further: Sequence[str] = (),
) -> Step:
    """One step of a cascade on the inputs of `own`; step 0 compares every play and map with itself."""
    maps = {name: own.maps(name, explainer) for name, explainer in explainers.items()}
    if number == 0:
        again, met = maps, meet({game: (own.play(game), own.play(game)) for game in games}, further)
    else:
        other = twin.at(number, own.x)
        again = {name: describe(e.on(other).attribute(own.x, own.aim)) for name, e in explainers.items()}
        met = own.compared_with(other, own.x, games, further)
    return Step(
        number=number,
        layer=twin.stages[number - 1] if number else None,
        model=twin.model,
        spearman={name: found.spearman(again[name]) for name, found in maps.items()},
        hog={name: found.hog(again[name]) for name, found in maps.items()},
        **met,
    )
