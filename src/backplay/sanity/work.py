"""What the workers of a run of experiments do: the experiments of this room, a portion of samples at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.bench.rows import SECONDS, Job, Outcome, Portion
from backplay.bench.sources import Contender
from backplay.bench.worker import Worker
from backplay.network import Network
from backplay.sanity.baselines import image_of, noisy, pairs_met, pairs_of, random_round, sides_of
from backplay.sanity.cascade import Forgetting, step_of
from backplay.sanity.config import Trial
from backplay.sanity.distances import twin_of
from backplay.sanity.plan import SPLIT
from backplay.sanity.similarity import readouts_of
from backplay.sanity.walks import USUAL, Compared, Unchanged, aim_of


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


@dataclass(frozen=True)
class Asked:
    """What a portion asks for: samples of one cell of an experiment, and the same metrics of each."""

    trial: Trial
    given: Mapping[str, Any]  # the parameters of the cell
    indices: tuple[int, ...]
    metrics: tuple[str, ...]
    loaded: models.Loaded
    network: Network

    @property
    def further(self) -> list[str]:
        """The readouts of walks beside the usual ones."""
        asked = {metric.rpartition(".")[2] for metric in self.metrics}
        return [name for name in self.trial.readouts if name in asked and name not in USUAL]


Found = tuple[list[str], dict[str, Tensor]]  # names of the samples; metric -> (B,)


class SanityWorker(Worker):
    """Keeps at hand what portions share that follow each other: plays of the unchanged network, and the other one."""

    def __init__(self, order: SanityOrder) -> None:
        super().__init__(order.networks, order.data, order.threads)
        self.order = order
        self._pairs: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.forget()

    def forget(self) -> None:
        self._network: Network | None = None
        self._own: tuple[object, list[str], Unchanged] | None = None  # on the images of the last portion
        self._twin: Forgetting | None = None  # the copy that a cascade draws anew
        self._other: tuple[str, Network] | None = None  # the network that this one was compared with last

    def measured(self, portion: Portion, attempt: int) -> list[Outcome]:
        cell = portion[0].cell
        trial, loaded = self.order.trials[cell.method], self.load(cell.model)
        begin = time.perf_counter()
        if self._network is None:
            self._network = bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))
        indices = tuple(job.index for job in portion)
        asked = Asked(trial, cell.given, indices, portion[0].metrics, loaded, self._network)
        names, found = self._experiment(asked)
        seconds = (time.perf_counter() - begin) / len(portion)
        return [self._outcome(job, names[k], found, k, seconds, attempt) for k, job in enumerate(portion)]

    def _outcome(
        self, job: Job, name: str, found: Mapping[str, Tensor], k: int, seconds: float, attempt: int
    ) -> Outcome:
        values = {metric: _known(float(found[metric][k])) for metric in job.metrics}
        notes = {metric: "no walk arrives" for metric, value in values.items() if value is None}
        return Outcome(job, name, {**values, SECONDS: seconds}, notes, None, self.name, attempt, seconds)

    def _experiment(self, asked: Asked) -> Found:
        match asked.trial.kind:
            case "cascade" | "correlation":
                return self._cascade(asked)
            case "double-random":
                return self._double_random(asked)
            case "input-noise":
                return self._noise(asked)
            case "separability":
                return self._between_inputs(asked)
            case _:
                return self._between_networks(asked)

    def _image(self, index: int, loaded: models.Loaded) -> tuple[str, Tensor, int]:
        """Name, input (C, H, W) and label of an image."""
        sample = self.sample(SPLIT, index, loaded)
        return sample.name, sample.x, sample.target

    def _unchanged(self, asked: Asked, labelled: bool = False) -> tuple[list[str], Unchanged]:
        """The network on the images of a portion, asked about the classes that it finds, or about their labels."""
        key = asked.indices, labelled
        if self._own is None or self._own[0] != key:
            self._own = None
            names, inputs, labels = zip(*(self._image(k, asked.loaded) for k in asked.indices), strict=True)
            x = torch.stack(inputs)
            aim = torch.tensor(labels) if labelled else aim_of(asked.network, x, None)
            self._own = key, list(names), Unchanged(asked.network, x, aim)
        return self._own[1], self._own[2]

    def _cascade(self, asked: Asked) -> Found:
        names, own = self._unchanged(asked)
        trial = asked.trial
        if self._twin is None or self._twin.which != trial.which:
            self._twin = Forgetting(asked.network, trial.which, self.order.seed)
        fitting = {label for label in trial.methods if f"{label}.spearman" in asked.metrics}
        explainers = {
            label: bp.Explainer(asked.network, method, **params)
            for label, (method, params) in trial.methods.items()
            if label in fitting
        }
        step = step_of(own, self._twin, int(asked.given["step"]), explainers, trial.games, asked.further)
        return names, readouts_of(step) | _numbers(step, asked)

    def _double_random(self, asked: Asked) -> Found:
        """Rounds, one by one: each has weights of its own."""
        seed, trial, names = self.order.seed, asked.trial, list[str]()
        found: dict[str, list[Tensor]] = {}
        for number in asked.indices:
            image = image_of(number, self.data.size(SPLIT), seed)
            name, x, label = self._image(image, asked.loaded)
            names.append(name)
            aim = torch.tensor([label])
            met = random_round(
                asked.network, x[None], aim, number, image, trial.games, asked.further, trial.which, seed
            )
            for metric, value in _numbers(met, asked).items():
                found.setdefault(metric, []).append(value)
        return names, {metric: torch.cat(values) for metric, values in found.items()}

    def _noise(self, asked: Asked) -> Found:
        names, own = self._unchanged(asked)
        x = noisy(own.x, float(asked.given["sigma"]), self.order.seed, asked.indices)
        return names, _numbers(Compared(**own.compared_with(asked.network, x, asked.trial.games, asked.further)), asked)

    def _between_inputs(self, asked: Asked) -> Found:
        kind: str = asked.given["pair"]
        key = asked.trial.name, kind
        if key not in self._pairs:
            labels = [self.data.target(SPLIT, k) for k in range(self.data.size(SPLIT))]
            self._pairs[key] = pairs_of(kind, labels, asked.trial.count, self.order.seed)
        names: list[str] = []
        sides: list[tuple[Tensor, Tensor]] = []
        like = torch.zeros(3, *asked.loaded.size)
        for number in asked.indices:
            images = self._pairs[key][number]
            shown = {k: self._image(k, asked.loaded) for k in images if k >= 0}
            names.append(" and ".join(shown[k][0] if k >= 0 else "noise" for k in images))
            sides.append(sides_of(lambda k, shown=shown: shown[k][1], like, kind, number, images, self.order.seed))
        a, b = (torch.cat(side) for side in zip(*sides, strict=True))
        return names, _numbers(Compared(**pairs_met(asked.network, a, b, asked.trial.games, asked.further)), asked)

    def _between_networks(self, asked: Asked) -> Found:
        names, own = self._unchanged(asked, labelled=True)
        other: str = asked.given["other"]
        if self._other is None or self._other[0] != other:
            self._other = None
            contender = self.networks[other]
            model = models.load(contender.load, contender.weights).model
            self._other = other, twin_of(asked.network, model, own.x)
        met = own.compared_with(self._other[1], own.x, asked.trial.games, asked.further)
        return names, _numbers(Compared(**met), asked)


def _numbers(met: Compared, asked: Asked) -> dict[str, Tensor]:
    """metric -> (B,) what walks say."""
    return {
        f"{game}.{name}": met.readout(name)[game] for game in asked.trial.games for name in (*USUAL, *asked.further)
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
