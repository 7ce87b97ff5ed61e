"""Engines: one job list, worked off in this process, in local processes or on a Ray cluster.

A worker is given a portion at a time: one job, or several that are cheaper together. An engine hands out outcomes in
the order in which they are ready. A worker that dies (out of memory, a crash in a library) fails the jobs that it had,
and another one takes its place.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from backplay.bench.rows import Outcome, Portion
from backplay.bench.worker import Order
from backplay.errors import KeywordError, MissingLibraryError, instead

ENGINES = ("inline", "processes", "ray")
_PATIENCE = 10.0  # seconds that workers without a job have to end by themselves


class Engine(Protocol):
    """Works off jobs; a failed one is tried again, alone, `retries` times."""

    def run(self, portions: Iterable[Portion], retries: int) -> Iterator[Outcome]: ...
    def close(self) -> None: ...


class _Line:
    """The portions that wait for a worker, each with the number of its attempt."""

    def __init__(self, portions: Iterable[Portion], retries: int) -> None:
        self.waiting: deque[tuple[Portion, int]] = deque((portion, 1) for portion in portions)
        self.retries = retries

    def settled(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
        """The outcomes that are final; a job that failed stands in line again."""
        for outcome in outcomes:
            if outcome.error is not None and outcome.attempt <= self.retries:
                self.waiting.append(((outcome.job,), outcome.attempt + 1))
            else:
                yield outcome


class Inline:
    """In this process, one portion after the other."""

    def __init__(self, order: Order) -> None:
        self.worker = order.worker()

    def run(self, portions: Iterable[Portion], retries: int) -> Iterator[Outcome]:
        line = _Line(portions, retries)
        while line.waiting:
            yield from line.settled(self.worker.do(*line.waiting.popleft()))

    def close(self) -> None:
        pass


class Processes:
    """Local processes, each with a pipe of its own; when this process is gone they end too."""

    def __init__(self, order: Order, workers: int) -> None:
        self.order = order
        self.context = multiprocessing.get_context("spawn")
        self.workers = [self._start() for _ in range(workers)]
        self.busy: dict[int, tuple[Portion, int]] = {}  # by worker: what it has, and the number of its attempt

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, self.order, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def run(self, portions: Iterable[Portion], retries: int) -> Iterator[Outcome]:
        line = _Line(portions, retries)
        while line.waiting or self.busy:
            for k, (_, pipe) in enumerate(self.workers):
                if line.waiting and k not in self.busy:
                    self.busy[k] = line.waiting.popleft()
                    with suppress(OSError):  # it has died; its end is seen below
                        pipe.send(self.busy[k])
            ready = wait([self.workers[k][1] for k in self.busy])
            for k in [k for k in self.busy if self.workers[k][1] in ready]:
                yield from line.settled(self._received(k, *self.busy.pop(k)))

    def _received(self, k: int, portion: Portion, attempt: int) -> Sequence[Outcome]:
        process, pipe = self.workers[k]
        try:
            return pipe.recv()
        except (EOFError, OSError):
            process.join()
            pipe.close()
            self.workers[k] = self._start()
            return _died(portion, attempt, f"exit code {process.exitcode}")

    def close(self) -> None:
        """A worker that waits ends by itself, and tidies up; one in the middle of a job is stopped."""
        for _, pipe in self.workers:
            pipe.close()
        deadline = time.monotonic() + _PATIENCE
        for k, (process, _) in enumerate(self.workers):
            process.join(0.0 if k in self.busy else max(0.0, deadline - time.monotonic()))
            process.terminate()
            process.join()


def _died(portion: Portion, attempt: int, how: str) -> list[Outcome]:
    return [Outcome(job, error=f"the worker died ({how})", attempt=attempt) for job in portion]


def _serve(pipe: Connection, order: Order, parent: int) -> None:
    """The life of a worker process: it ends with its pipe."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the jobs
    worker = order.worker()
    while True:
        try:
            portion, attempt = pipe.recv()
            pipe.send(worker.do(portion, attempt))
        except (EOFError, OSError):
            return


def _die_with(parent: int) -> None:
    """On Linux: be killed when the parent is, in the middle of a job too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before that
            os._exit(1)


class Actor:
    """A worker as Ray holds it: made where it works."""

    def __init__(self, order: Order) -> None:
        self.worker = order.worker()

    def do(self, portion: Portion, attempt: int) -> Sequence[Outcome]:
        return self.worker.do(portion, attempt)


class Cluster:
    """Ray: an actor for every worker, on this machine or on the cluster at `address`."""

    def __init__(self, order: Order, workers: int | None, address: str | None) -> None:
        self.ray = _ray()
        self.order = order
        self.mine = not self.ray.is_initialized()
        if self.mine:
            self.ray.init(
                address=address, log_to_driver=False, include_dashboard=False, logging_level="ERROR",
                **({} if address else {"num_cpus": workers or os.cpu_count(), "_node_ip_address": "127.0.0.1"}),
            )  # fmt: skip
        count = workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.kind = self.ray.remote(num_cpus=1, max_restarts=0)(Actor)
        self.actors: list[Any] = [self.kind.remote(order) for _ in range(count)]

    def run(self, portions: Iterable[Portion], retries: int) -> Iterator[Outcome]:
        line = _Line(portions, retries)
        busy: dict[Any, tuple[int, Portion, int]] = {}
        free = list(range(len(self.actors)))
        while line.waiting or busy:
            while line.waiting and free:
                k, (portion, attempt) = free.pop(), line.waiting.popleft()
                busy[self.actors[k].do.remote(portion, attempt)] = k, portion, attempt
            for ready in self.ray.wait(list(busy), num_returns=1)[0]:
                k, portion, attempt = busy.pop(ready)
                outcomes = self._received(ready, k, portion, attempt)
                free.append(k)
                yield from line.settled(outcomes)

    def _received(self, ready: Any, k: int, portion: Portion, attempt: int) -> Sequence[Outcome]:
        try:
            return self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self.actors[k] = self.kind.remote(self.order)
            return _died(portion, attempt, type(error).__name__)

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self.mine:
            self.ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError("--engine ray needs Ray: pip install 'backplay[ray]'") from error
    return ray


def check(engine: str, workers: int | None = None, address: str | None = None) -> None:
    """Refuse an engine that could not be started: asked before a run makes its folder."""
    if engine not in ENGINES:
        raise KeywordError(f"no engine named {engine!r}{instead(engine, ENGINES)}.")
    if workers is not None and workers < 1:
        raise KeywordError(f"workers must be 1 or more, got {workers}.")
    if workers is not None and workers > 1 and engine == "inline":
        raise KeywordError(f"workers={workers} is idle with the engine inline, which is one process; take processes.")
    if address is not None and engine != "ray":
        raise KeywordError(f"an address is for the engine ray, not for {engine}.")
    if engine == "ray":
        _ray()


def start(order: Order, engine: str, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by name."""
    check(engine, workers, address)
    if engine == "ray":
        return Cluster(order, workers, address)
    return Processes(order, workers or os.cpu_count() or 1) if engine == "processes" else Inline(order)
