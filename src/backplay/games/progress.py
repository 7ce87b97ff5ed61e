"""One line on the terminal for work that takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


class Progress:
    """`what` done/total, rewritten in place on stderr; silent in the first seconds and where nobody looks."""

    def __init__(
        self,
        total: int,
        what: str,
        wanted: bool = True,
        patience: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.what, self.patience, self.clock, self.start = total, what, patience, clock, clock()
        self.wanted = wanted and sys.stderr.isatty()

    def show(self, done: int) -> None:
        if not self.wanted or self.clock() - self.start < self.patience:
            return
        end = "\n" if done >= self.total else ""
        sys.stderr.write(f"\r{self.what} {done}/{self.total}{end}")
        sys.stderr.flush()
