"""What the benchmark's workers do: a map of a sample, its metrics, and the time that it took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.bench.metrics import Map, Meter, Sample
from backplay.bench.rows import CPU, SECONDS, Job, Outcome
from backplay.bench.sources import Contender
from backplay.bench.worker import Worker


@dataclass(frozen=True)
class MapOrder:
    """The benchmark's order to its workers."""

    networks: dict[str, Contender]
    data: dict[str, Any]
    seed: int
    draws: int
    threads: int

    def worker(self) -> MapWorker:
        return MapWorker(self)


class MapWorker(Worker):
    """Keeps one method at hand beside the network."""

    def __init__(self, order: MapOrder) -> None:
        super().__init__(order.networks, order.data, order.threads)
        self.order = order
        self.meter: Meter | None = None
        self.explainer: tuple[Any, bp.Explainer] | None = None

    def measured(self, portion: Sequence[Job], attempt: int) -> list[Outcome]:
        return [self._measured(job, attempt) for job in portion]

    def _measured(self, job: Job, attempt: int) -> Outcome:
        loaded, meter = self._network(job.cell.model)
        sample = self.sample(job.cell.split, job.index, loaded)
        explainer = self._explainer(job, loaded)
        target = torch.tensor([sample.target])

        def explain(x: Tensor) -> Map:
            return explainer.attribute(x, target).detach().double().sum(1)[0].numpy()

        begin, cpu = time.perf_counter(), time.process_time()
        heat = explain(sample.x[None])
        times = {SECONDS: time.perf_counter() - begin, CPU: time.process_time() - cpu}
        values, notes = meter.measure(sample, heat, explain, job.metrics)
        busy = time.perf_counter() - begin
        return Outcome(job, sample.name, {**values, **times}, notes, None, self.name, attempt, busy)

    def forget(self) -> None:
        self.meter = self.explainer = None

    def _network(self, name: str) -> tuple[models.Loaded, Meter]:
        loaded = self.load(name)
        if self.meter is None:
            self.meter = Meter(loaded.model, self.order.draws, self.order.seed)
            bp.explain(loaded.model, torch.zeros(1, 3, *loaded.size), 0, method="rg")  # captured before time is taken
        return loaded, self.meter

    def _explainer(self, job: Job, loaded: models.Loaded) -> bp.Explainer:
        key = job.cell.model, job.cell.method, job.cell.params
        if self.explainer is None or self.explainer[0] != key:
            self.explainer = key, bp.Explainer(loaded.model, job.cell.method, **job.cell.given)
        return self.explainer[1]


def heat_of(worker: MapWorker, job: Job) -> tuple[Sample, Map]:
    """The map behind a row, computed again to be looked at."""
    loaded, _ = worker._network(job.cell.model)
    sample = worker.sample(job.cell.split, job.index, loaded)
    found = worker._explainer(job, loaded).attribute(sample.x[None], torch.tensor([sample.target]))
    return sample, np.asarray(found.detach().double().sum(1)[0])
