"""One thread's silence: what a library prints, logs and warns of while it works here; other threads are heard."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast


class _Here:
    """Whether it is asked in the thread that made it, until it is over."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def __call__(self) -> bool:
        return self.thread == threading.get_ident()

    def match(self, text: str) -> bool:
        """As the pattern of a filter of warnings: it fits whatever is warned of in this thread."""
        return self()

    def lets_pass(self, record: logging.LogRecord) -> bool:
        """As a filter of log records."""
        return not self()

    def over(self) -> None:
        """From now on everything is heard, also through a stream that somebody has kept."""
        self.thread = None


class _Muffled:
    """A stream that leaves out what one thread writes."""

    def __init__(self, stream: TextIO, here: _Here) -> None:
        self._stream, self._here = stream, here

    def write(self, text: str) -> int:
        return len(text) if self._here() else self._stream.write(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self._here():  # a notebook's stream waits for another thread here
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def silence(library: str) -> Generator[None]:
    """Nothing that this thread prints, logs to the loggers of `library`, or warns of is shown meanwhile.

    Two threads must not be silent at once: output, loggers and filters of warnings are those of the whole process.
    """
    here = _Here()
    known = logging.Logger.manager.loggerDict.items()
    loggers = [each for name, each in known if isinstance(each, logging.Logger) and name.partition(".")[0] == library]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    for handler in handlers:
        handler.addFilter(here.lets_pass)
    out, err = (cast(TextIO, _Muffled(stream, here)) for stream in (sys.stdout, sys.stderr))
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            # what stands first is asked first; any object that has `match` may be asked whether a text fits
            cast(list[Any], warnings.filters).insert(0, ("ignore", here, Warning, None, 0))
            yield
    finally:
        here.over()
        for handler in handlers:
            handler.removeFilter(here.lets_pass)
