"""What the workers of a run of experiments do: the experiments of this room, one sample at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.bench.rows import SECONDS, Job, Outcome
from backplay.bench.sources import Contender
from backplay.bench.worker import Worker
from backplay.network import Network
from backplay.sanity.baselines import image_of, input_pair, noisy, pairs_of, random_round
from backplay.sanity.config import Trial
from backplay.sanity.distances import between, twin_of
from backplay.sanity.plan import SPLIT
from backplay.sanity.randomise import forgetful, layers
from backplay.sanity.similarity import hog, spearman
from backplay.sanity.walks import USUAL, Compared, aim_of, captured, meet, played

SIMILARITY = {"spearman": spearman, "hog": hog}


@dataclass(frozen=True)
class SanityOrder:
    """The order to the workers of a run."""

    networks: dict[str, Contender]
    data: dict[str, Any]
    seed: int
    threads: int
    trials: dict[str, Trial]

    def worker(self) -> SanityWorker:
        return SanityWorker(self)


class SanityWorker(Worker):
    """Keeps the captured network and another one at hand: a copy drawn anew, or the one that it is compared with."""

    def __init__(self, order: SanityOrder) -> None:
        super().__init__(order.networks, order.data, order.threads)
        self.order = order
        self._network: Network | None = None
        self._other: tuple[str, Network] | None = None
        self._pairs: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def forget(self) -> None:
        self._network = self._other = None

    def measured(self, job: Job, attempt: int) -> Outcome:
        trial = self.order.trials[job.cell.method]
        loaded = self.load(job.cell.model)
        begin = time.perf_counter()
        if self._network is None:
            self._network = bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))
        further = _further(trial, job.metrics)
        match trial.kind:
            case "cascade" | "correlation":
                name, found = self._cascade(job, trial, loaded, self._network, further)
            case "double-random":
                name, found = self._double_random(job, trial, loaded, self._network, further)
            case "input-noise":
                name, found = self._noise(job, trial, loaded, self._network, further)
            case "separability":
                name, found = self._pair(job, trial, loaded, self._network, further)
            case _:
                name, found = self._between(job, trial, loaded, self._network, further)
        values = {metric: _known(found[metric]) for metric in job.metrics}
        notes = {metric: "no walk arrives" for metric, value in values.items() if value is None}
        seconds = time.perf_counter() - begin
        return Outcome(job, name, {**values, SECONDS: seconds}, notes, None, self.name, attempt, seconds)

    def _image(self, index: int, loaded: models.Loaded) -> tuple[str, Tensor, Tensor]:
        """Name, input (1, C, H, W) and label (1,) of an image."""
        sample = self.sample(SPLIT, index, loaded)
        return sample.name, sample.x[None], torch.tensor([sample.target])

    def _cascade(
        self, job: Job, trial: Trial, loaded: models.Loaded, network: Network, further: Sequence[str]
    ) -> tuple[str, dict[str, float]]:
        name, x, _ = self._image(job.index, loaded)
        aim = aim_of(network, x, None)
        step = int(job.cell.given["step"])
        other = self._step(network, trial, step, x)
        plays = {game: played(network, game, x, aim) for game in trial.games}
        pairs = {game: (play, play if step == 0 else played(other, game, x, aim)) for game, play in plays.items()}
        found = _numbers(Compared(**meet(pairs, further)), trial.games, further)
        for label, (method, params) in trial.methods.items():
            if f"{label}.spearman" not in job.metrics:  # it does not fit the network
                continue
            maps = [bp.Explainer(side, method, **params).attribute(x, aim) for side in (network, other)]
            found |= {f"{label}.{kind}": float(measure(maps[0], maps[1])) for kind, measure in SIMILARITY.items()}
        return name, found

    def _step(self, network: Network, trial: Trial, step: int, x: Tensor) -> Network:
        """The network with so many layers drawn anew, kept for the images that follow."""
        key = f"{trial.which} {step}"
        if step == 0:
            return network
        if self._other is None or self._other[0] != key:
            self._other = None
            stages = layers(network, which=trial.which)[:step]
            self._other = key, captured(network, forgetful(network.model, stages, self.order.seed), x)
        return self._other[1]

    def _double_random(
        self, job: Job, trial: Trial, loaded: models.Loaded, network: Network, further: Sequence[str]
    ) -> tuple[str, dict[str, float]]:
        seed = self.order.seed
        image = image_of(job.index, self.data.size(SPLIT), seed)
        name, x, label = self._image(image, loaded)
        met = random_round(network, x, label, job.index, image, trial.games, further, trial.which, seed)
        return name, _numbers(met, trial.games, further)

    def _noise(
        self, job: Job, trial: Trial, loaded: models.Loaded, network: Network, further: Sequence[str]
    ) -> tuple[str, dict[str, float]]:
        name, x, _ = self._image(job.index, loaded)
        aim = aim_of(network, x, None)
        other = noisy(x, float(job.cell.given["sigma"]), self.order.seed, job.index)
        pairs = {game: (played(network, game, x, aim), played(network, game, other, aim)) for game in trial.games}
        return name, _numbers(Compared(**meet(pairs, further)), trial.games, further)

    def _pair(
        self, job: Job, trial: Trial, loaded: models.Loaded, network: Network, further: Sequence[str]
    ) -> tuple[str, dict[str, float]]:
        kind: str = job.cell.given["pair"]
        if (trial.name, kind) not in self._pairs:
            labels = [self.data.target(SPLIT, k) for k in range(self.data.size(SPLIT))]
            self._pairs[trial.name, kind] = pairs_of(kind, labels, trial.count, self.order.seed)
        images = self._pairs[trial.name, kind][job.index]
        shown = [self._image(k, loaded) if k >= 0 else ("noise", None, None) for k in images]
        inputs = [x for _, x, _ in shown if x is not None] or [torch.zeros(1, 3, *loaded.size)]
        places = [-1 if k < 0 else sum(j >= 0 for j in images[:side]) for side, k in enumerate(images)]
        met = input_pair(
            network, torch.cat(inputs), kind, job.index, (places[0], places[1]), trial.games, further, self.order.seed
        )
        return " and ".join(name for name, _, _ in shown), _numbers(met, trial.games, further)

    def _between(
        self, job: Job, trial: Trial, loaded: models.Loaded, network: Network, further: Sequence[str]
    ) -> tuple[str, dict[str, float]]:
        name, x, label = self._image(job.index, loaded)
        other: str = job.cell.given["other"]
        if self._other is None or self._other[0] != other:
            self._other = None
            contender = self.networks[other]
            model = models.load(contender.load, contender.weights).model
            self._other = other, twin_of(network, model, x)
        return name, _numbers(between(network, self._other[1], x, label, trial.games, further), trial.games, further)


def _further(trial: Trial, metrics: Sequence[str]) -> list[str]:
    """The readouts beside the usual ones that a job asks for."""
    asked = {metric.rpartition(".")[2] for metric in metrics}
    return [name for name in trial.readouts if name in asked and name not in USUAL]


def _numbers(met: Compared, games: Sequence[str], further: Sequence[str]) -> dict[str, float]:
    return {f"{game}.{name}": float(met.readout(name)[game]) for game in games for name in (*USUAL, *further)}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
