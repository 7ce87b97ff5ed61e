"""How far a run is: done of all, how fast, how long still."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SELDOM = 60.0  # seconds between two lines where nobody looks
OFTEN = 0.5


class RunProgress:
    """One line that is rewritten on a terminal; elsewhere, such as in a log, a line a minute."""

    def __init__(self, tell: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.terminal = sys.stderr.isatty()
        self.tell, self.clock = tell or self._write, clock
        self.every = OFTEN if self.terminal or tell is not None else SELDOM
        self.stage(0, 0, "")

    def stage(self, total: int, before: int, what: str) -> None:
        """Begin a stage of `total` samples, `before` of which an earlier session has done."""
        self.total, self.before, self.what = total, before, what
        self.done = self.failed = 0
        self.begin = self.reported = self.clock()

    def advance(self, failed: bool) -> None:
        self.done += 1
        self.failed += failed
        now = self.clock()
        if now - self.reported >= self.every or self.done + self.before == self.total:
            self.reported = now
            self.tell(self.line(now))

    def line(self, now: float) -> str:
        """`test: 120/600 samples, 3.2 a second, 2 min left, 1 failed`."""
        rate = self.done / max(now - self.begin, 1e-9)
        left = (self.total - self.before - self.done) / max(rate, 1e-9)
        parts = [f"{self.what}: {self.before + self.done}/{self.total} samples", f"{rate:.3g} a second"]
        parts.append(f"{duration(left)} left")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}" if self.terminal else f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self.terminal and self.done:
            sys.stderr.write("\n")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as a person would say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
