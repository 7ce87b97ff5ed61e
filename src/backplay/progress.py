"""One line on the terminal for work that takes a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import ClassVar

PATIENCE = 2.0  # seconds before a person wants to know what takes so long
_TICK = 0.5  # seconds between two looks at how far the work is


class Progress:
    """What goes on, how far it is and for how long: a line on standard error, rewritten in place, cleared at the end.

    It is silent during the first seconds, where no terminal is, and where it is not `wanted`. Work inside other work
    shares its line: the outermost progress writes, the names of those within it follow its own.

    >>> with Progress("averaging", total=50) as progress:
    ...     progress.advance(8)
    """

    _open: ClassVar[list[Progress]] = []  # the outermost first

    def __init__(self, what: str, total: int | None = None, wanted: bool = True) -> None:
        self.what, self.total, self.wanted, self.done = what, total, wanted, 0
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def say(self, what: str) -> None:
        """The work has come to something else."""
        self.what = what

    def advance(self, steps: int) -> None:
        """So many more of `total` are done."""
        self.done += steps
        watch = _WATCH.get()
        if watch is not None:
            watch(self)

    def __str__(self) -> str:
        return self.what if self.total is None else f"{self.what} {self.done}/{self.total}"

    def __enter__(self) -> Progress:
        if self.wanted and sys.stderr.isatty():
            Progress._open.append(self)
            if Progress._open[0] is self:
                self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self in Progress._open:
            Progress._open.remove(self)
        if self._writer.ident is not None:
            self._writer.join()

    def _write(self) -> None:
        begin = time.monotonic()
        if self._over.wait(PATIENCE):
            return None
        while True:
            tasks = ": ".join(map(str, Progress._open))
            _rewrite(f"{tasks} … {time.monotonic() - begin:.0f} s")
            if self._over.wait(_TICK):
                return _rewrite("")


# who else wants to know how far the work of this thread is; by raising an error they end it
_WATCH: ContextVar[Callable[[Progress], None] | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Callable[[Progress], None]) -> Generator[None]:
    """Call `watch` at every step of the work within, on this thread."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def _rewrite(line: str) -> None:
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()
