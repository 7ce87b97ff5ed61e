"""Which rows an experiment needs: a cell for each line or point that is shown, a job for each sample of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from backplay.bench.rows import Job, TableCell, canonical
from backplay.sanity.baselines import PAIRS, pairs_of
from backplay.sanity.config import SanityConfig, Trial

SPLIT = "test"

# network -> "all" or "weights": its layers from the output to the input; "fits": the methods, by label, that fit it
Known = Mapping[str, Mapping[str, Sequence[str]]]


def jobs(config: SanityConfig, known: Known, labels: Sequence[int]) -> list[Job]:
    """Everything that a run measures, network by network: a worker keeps one as long as it can."""
    found: list[Job] = []
    for place, network in enumerate(config.networks):
        for trial in config.trials:
            own = known[network.name]
            for cell, count in _cells(config, trial, place, own[trial.which], labels):
                found += [Job(cell, index, trial.metrics(index, own["fits"])) for index in range(count)]
    return found


def _cells(
    config: SanityConfig, trial: Trial, place: int, layers: Sequence[str], labels: Sequence[int]
) -> Iterator[tuple[TableCell, int]]:
    """The cells of an experiment on one network, each with its number of samples."""
    name = config.networks[place].name
    images = len(labels) if trial.images is None else min(len(labels), trial.images)

    def cell(**params: object) -> TableCell:
        return TableCell(name, config.data["name"], SPLIT, trial.name, canonical(params))

    match trial.kind:
        case "cascade" | "correlation":
            for step in chosen(trial, layers):
                yield cell(step=step, layer=layers[step - 1] if step else "", which=trial.which), images
        case "double-random":
            yield cell(which=trial.which), trial.count
        case "input-noise":
            for sigma in trial.sigmas:
                yield cell(sigma=sigma), images
        case "separability":
            for kind in PAIRS:
                yield cell(pair=kind), len(pairs_of(kind, labels, trial.count, config.seed))
        case _:
            names = [network.name for network in config.networks]
            for first, second in combinations(names, 2):
                if first == name:
                    yield cell(other=second), images


def chosen(trial: Trial, layers: Sequence[str]) -> list[int]:
    """The steps of a cascade on a network with these layers; step 0 draws nothing anew, step k the k-th layer too.

    Numbers and layers that the network has not are passed over: the list may be meant for several networks.
    """
    last = len(layers)
    if trial.steps is None:
        return list(range(last + 1))
    found = [
        (last if step == -1 else step)
        if isinstance(step, int)
        else next((k + 1 for k, layer in enumerate(layers) if layer == step), last + 1)
        for step in trial.steps
    ]
    return sorted({step for step in found if step <= last})
