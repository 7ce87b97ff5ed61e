"""What a worker does, whichever engine it belongs to: one job in, one outcome out."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.bench.config import Contender
from backplay.bench.data import DataSet, open_data
from backplay.bench.metrics import Map, Meter, Sample
from backplay.bench.rows import SECONDS, Job, Outcome
from backplay.errors import first_line


@dataclass(frozen=True)
class Order:
    """What a worker must know beside its jobs; it is small and can be sent anywhere."""

    networks: dict[str, Contender]
    data: dict[str, Any]
    seed: int
    draws: int
    threads: int


class Worker:
    """Keeps one network, its captures and one method at hand; jobs come sorted by these."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.data: DataSet = open_data(order.data)
        self.loaded: tuple[str, models.Loaded, Meter] | None = None
        self.explainer: tuple[Any, bp.Explainer] | None = None
        self.seen: tuple[Any, Sample] | None = None

    def do(self, job: Job, attempt: int = 1) -> Outcome:
        """The outcome of a job; whatever goes wrong in it is an outcome too."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.order.threads)  # the same number everywhere: the same digits everywhere
        try:
            return self._measured(job, attempt)
        except Exception as error:  # a sample that fails is reported, and the run goes on
            return Outcome(job, error=first_line(error), worker=self.name, attempt=attempt)
        finally:
            torch.set_num_threads(threads)

    def _measured(self, job: Job, attempt: int) -> Outcome:
        loaded, meter = self._network(job.cell.model)
        sample = self._sample(job, loaded)
        explainer = self._explainer(job, loaded)
        target = torch.tensor([sample.target])

        def explain(x: Tensor) -> Map:
            return explainer.attribute(x, target).detach().double().sum(1)[0].numpy()

        begin = time.perf_counter()
        heat = explain(sample.x[None])
        seconds = time.perf_counter() - begin
        values, notes = meter.measure(sample, heat, explain, job.metrics)
        busy = time.perf_counter() - begin
        return Outcome(job, sample.name, {**values, SECONDS: seconds}, notes, None, self.name, attempt, busy)

    def _network(self, name: str) -> tuple[models.Loaded, Meter]:
        if self.loaded is None or self.loaded[0] != name:
            network = self.order.networks[name]
            self.loaded = self.explainer = None  # two networks need not be held at once
            loaded = models.load(network.load, network.weights)
            self.loaded = name, loaded, Meter(loaded.model, self.order.draws, self.order.seed)
            bp.explain(loaded.model, torch.zeros(1, 3, *loaded.size), 0, method="rg")  # captured before time is taken
        return self.loaded[1], self.loaded[2]

    def _explainer(self, job: Job, loaded: models.Loaded) -> bp.Explainer:
        key = job.cell.model, job.cell.method, job.cell.params
        if self.explainer is None or self.explainer[0] != key:
            self.explainer = key, bp.Explainer(loaded.model, job.cell.method, **job.cell.given)
        return self.explainer[1]

    def _sample(self, job: Job, loaded: models.Loaded) -> Sample:
        return self.data.sample(job.cell.split, job.index, loaded)


def heat_of(worker: Worker, job: Job) -> tuple[Sample, Map]:
    """The map behind a row, computed again to be looked at."""
    loaded, _ = worker._network(job.cell.model)
    sample = worker._sample(job, loaded)
    found = worker._explainer(job, loaded).attribute(sample.x[None], torch.tensor([sample.target]))
    return sample, np.asarray(found.detach().double().sum(1)[0])
