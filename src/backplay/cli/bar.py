"""A bar on the terminal for those who wait, drawn by rich."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from backplay.progress import Progress


class Told(ProgressColumn):
    """What goes on, and what goes on within it: a bar of the library inside a command speaks through the command's."""

    def render(self, task: Task) -> Text:
        return Text(": ".join(map(str, Progress._open)))


class Bar(Progress):
    """What goes on, how far it is, for how long and for how much longer; silent where standard error is no terminal.

    >>> with Bar("explaining", total=100) as bar:
    ...     bar.advance(1)
    """

    def __init__(self, what: str, total: int | None = None, wanted: bool = True) -> None:
        super().__init__(what, total, wanted)
        self._drawn: RichProgress | None = None

    def __enter__(self) -> Bar:
        if self.wanted and sys.stderr.isatty():
            Progress._open.append(self)
            if Progress._open[0] is self:
                counted = [BarColumn(bar_width=24), TimeRemainingColumn()] if self.total is not None else []
                console = Console(file=sys.stderr)
                self._drawn = RichProgress(
                    SpinnerColumn(), Told(), *counted, TimeElapsedColumn(), console=console, transient=True,
                    redirect_stdout=False, redirect_stderr=False,
                )  # fmt: skip
                self._task = self._drawn.add_task("", total=self.total)
                self._drawn.start()
        return self

    def advance(self, steps: int) -> None:
        super().advance(steps)
        if self._drawn is not None:
            self._drawn.update(self._task, completed=self.done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self in Progress._open:
            Progress._open.remove(self)
        if self._drawn is not None:
            self._drawn.stop()

    def _pause(self) -> Generator[None]:
        assert self._drawn is not None
        self._drawn.stop()
        try:
            yield
        finally:
            self._drawn.start()


@contextmanager
def aside() -> Generator[None]:
    """While a line is printed: the bar, if there is one, makes room."""
    first = Progress._open[0] if Progress._open else None
    if isinstance(first, Bar) and first._drawn is not None:
        yield from first._pause()
    else:
        yield
