"""Which rows an experiment needs: a cell for each line or point that is shown, a job for each sample of it.

Samples of a cell are played together, and a worker keeps what it found on the unchanged network for the cells that
follow on the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from backplay.bench.rows import Job, Portion, TableCell, canonical
from backplay.sanity.baselines import PAIRS, pairs_of
from backplay.sanity.config import SanityConfig, Trial

SPLIT = "test"

# network -> "all" or "weights": its layers from the output to the input; "fits": the methods, by label, that fit it;
# "together": how many samples are best played at once
Known = Mapping[str, Mapping[str, Any]]
_Cell = tuple[Trial, TableCell, int]  # the last: its number of samples


def portions(config: SanityConfig, known: Known, labels: Sequence[int]) -> list[Portion]:
    """Everything that a run measures, network by network: a worker keeps one as long as it can."""
    found: list[Portion] = []
    for place, network in enumerate(config.networks):
        own = known[network.name]
        size: int = own.get("together", 1)
        images: list[_Cell] = []  # all that compares with the unchanged network on an image
        for trial in config.trials:
            cells = [(trial, *cell) for cell in _cells(config, trial, place, own[trial.which], labels)]
            if trial.kind in ("cascade", "correlation", "input-noise"):
                images += cells
                continue
            for cell in cells:
                found += _shared_out([cell], 1 if trial.kind == "double-random" else size, own["fits"])
        found += _shared_out(images, size, own["fits"])
    return found


def _shared_out(cells: Sequence[_Cell], size: int, fits: Sequence[str]) -> Iterator[Portion]:
    """Samples in portions of at most `size` that want the same metrics: the first samples of all cells, then the next.

    Portions of all cells are cut at the same samples, so that what one cell finds serves the others.
    """
    most = max((count for _, _, count in cells), default=0)
    limits = {limit for trial, _, _ in cells for limit in trial.limits.values()}
    cuts = sorted({*range(0, most, size), most, *(limit for limit in limits if limit < most)})
    for first, end in pairwise(cuts):
        for trial, cell, count in cells:
            jobs = [Job(cell, index, trial.metrics(index, fits)) for index in range(first, min(end, count))]
            if jobs:
                yield tuple(jobs)


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
