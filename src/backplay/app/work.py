"""Work that may take a while: it tells how far it is and can be stopped, and each visitor has only their own."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from backplay.errors import BackplayError, first_line
from backplay.progress import watched

T = TypeVar("T")

_TICK = 0.2  # seconds between two looks at how far the work is


class StoppedError(BackplayError):
    """Somebody asked the work to stop. As an error of the package it passes the doors of its public calls."""


class SupersededError(StoppedError):
    """The same visitor has asked for something newer: nobody waits for this any more, and nobody is told."""


class Job(Generic[T]):
    """One piece of work in a thread of its own."""

    def __init__(self, work: Callable[[Job[T]], T]) -> None:
        self.words = ""  # what goes on
        self.stopped = self.superseded = False
        self._over = threading.Event()  # it is done, or nobody waits for it any more
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def say(self, words: str) -> None:
        """Tell what goes on; the place where work that was stopped ends."""
        self.go_on()
        self.words = words

    def go_on(self) -> None:
        """Raises where the work was stopped."""
        if self.stopped:
            raise SupersededError if self.superseded else StoppedError

    def stop(self, superseded: bool = False) -> None:
        """Ask the work to end; whoever waits for it goes on at once."""
        self.superseded = superseded
        self.stopped = True
        self._over.set()

    def wait(self, patience: float) -> Iterator[str]:
        """What goes on, again and again until it is done; silent during the first `patience` seconds."""
        if self._over.wait(patience):
            return
        yield self.words
        while not self._over.wait(_TICK):
            yield self.words

    def result(self) -> T:
        """What the work gave, or the error that ended it; of work that was stopped neither, though it may be done.

        It is handed over once: who started the work may be remembered for long, and what it gave is large.
        """
        self.go_on()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result.pop()

    def _run(self, work: Callable[[Job[T]], T]) -> None:
        try:
            with watched(lambda progress: self.say(str(progress))):
                self._result.append(work(self))
        except BaseException as error:  # it is told to whoever waits
            self._error = error
        finally:
            self._over.set()


class Jobs:
    """The running work of every visitor, at most one piece of a kind: a new one stops the one before."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Job[Any]] = {}
        self._lock = threading.Lock()

    def start(self, visitor: str, kind: str, work: Callable[[Job[T]], T]) -> Job[T]:
        """Begin a piece of work."""
        with self._lock:
            before = self._running.get((visitor, kind))
            if before is not None:
                before.stop(superseded=True)
            return self._begin(visitor, kind, work)

    def follow(self, before: Job[Any], visitor: str, kind: str, work: Callable[[Job[T]], T]) -> Job[T]:
        """Go on after work that is done; refused if that was stopped, so that it never stops what is newer."""
        with self._lock:
            before.go_on()
            return self._begin(visitor, kind, work)

    def _begin(self, visitor: str, kind: str, work: Callable[[Job[T]], T]) -> Job[T]:
        job = Job(work)
        self._running[visitor, kind] = job
        return job

    def stop(self, visitor: str, kind: str | None = None) -> None:
        """Stop what a visitor has running, of one kind or all of it."""
        with self._lock:
            for who, what in list(self._running):
                if who == visitor and kind in (None, what):
                    self._running.pop((who, what)).stop()


def one_line(error: BaseException) -> str:
    """What a visitor is told of an error; one that no check foresaw goes to the terminal in full too."""
    if isinstance(error, StoppedError):
        return "Stopped."
    if isinstance(error, BackplayError):
        return " ".join(str(error).split())
    traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, MemoryError):
        return "The memory is too small for this; choose a smaller network or picture."
    return f"This failed: {first_line(error)}"
