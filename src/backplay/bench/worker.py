"""A worker, whichever engine it belongs to and whatever it measures: jobs in, an outcome of each out."""

from __future__ import annotations

import ctypes
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from backplay import models
from backplay.bench.data import DataSet, open_data
from backplay.bench.metrics import Sample
from backplay.bench.rows import Outcome, Portion
from backplay.bench.sources import Contender
from backplay.errors import first_line


def _give_back() -> None:
    """Hand freed memory back to the system: glibc keeps it, in pieces that the next portion of another size cannot use.

    On images of 224 × 224 a worker would grow by gigabytes although it holds no more tensors than before.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


class Order(Protocol):
    """What a worker must know beside its jobs; it is small and can be sent anywhere."""

    def worker(self) -> Worker: ...


class Worker(ABC):
    """Keeps one network and the data at hand; jobs come sorted by their network."""

    def __init__(self, networks: Mapping[str, Contender], data: dict[str, Any], threads: int) -> None:
        self.networks, self.threads = networks, threads
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.data: DataSet = open_data(data)
        self._loaded: tuple[str, models.Loaded] | None = None

    def do(self, portion: Portion, attempt: int = 1) -> Sequence[Outcome]:
        """The outcome of each job; whatever goes wrong in one is an outcome too."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # the same number everywhere: the same digits everywhere
        try:
            return self.measured(portion, attempt)
        except Exception as error:  # a sample that fails is reported, and the run goes on
            if len(portion) > 1:  # each alone: only those fail that must
                return [outcome for job in portion for outcome in self.do((job,), attempt)]
            return [Outcome(job, error=first_line(error), worker=self.name, attempt=attempt) for job in portion]
        finally:
            torch.set_num_threads(threads)
            _give_back()

    @abstractmethod
    def measured(self, portion: Portion, attempt: int) -> Sequence[Outcome]:
        """What each job of a portion asks for."""

    def load(self, name: str) -> models.Loaded:
        """A network of the run; two need not be held at once."""
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None
            self.forget()
            self._loaded = name, models.load(self.networks[name].load, self.networks[name].weights)
        return self._loaded[1]

    @abstractmethod
    def forget(self) -> None:
        """Drop what belongs to the network before, as another one is loaded."""

    def sample(self, split: str, index: int, loaded: models.Loaded) -> Sample:
        return self.data.sample(split, index, loaded)
