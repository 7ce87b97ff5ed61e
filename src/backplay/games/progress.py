"""One line on the terminal for work that takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import ClassVar


class Progress:
    """`what` done/total, rewritten in place on stderr; silent in the first seconds and where nobody looks.

    `teller` is told instead where somebody else, such as the command line, already writes on that line.
    """

    teller: ClassVar[Callable[[str], None] | None] = None

    def __init__(
        self,
        total: int,
        what: str,
        wanted: bool = True,
        patience: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.what, self.patience, self.clock, self.start = total, what, patience, clock, clock()
        self.wanted, self.done, self.shown = wanted and sys.stderr.isatty(), 0, False
        self.tell = Progress.teller if wanted else None

    def advance(self, steps: int) -> None:
        self.done += steps
        if self.tell is not None:
            self.tell(f"{self.what} {self.done}/{self.total}")
        elif self.wanted and self.clock() - self.start >= self.patience:
            self._write(f"\r{self.what} {self.done}/{self.total}")
            self.shown = True

    def close(self) -> None:
        """The work is over: end the line, if there is one."""
        if self.tell is not None:
            self.tell("")
        elif self.shown:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
