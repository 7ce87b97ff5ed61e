"""What commands write: JSON, whole files or none, and how far they are."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from backplay.errors import FileError
from backplay.games.progress import Progress as Bar

PATIENCE = 2.0  # seconds before a person wants to know what takes so long


def print_json(value: Any) -> None:
    """One line of JSON on standard output; NaN and infinities, which JSON has not, become null."""
    print(json.dumps(_finite(value), ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def folder(path: Path) -> Path:
    """The folder, made if need be, that can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror}; name one that you may write to.") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileError(f"the folder {path} may not be written to; name one that you may write to.")
    return path


def check_folder(path: Path) -> Path:
    """The path, once it is clear that `folder` could make it: asked early, so that a failure leaves no empty folder."""
    there = next(above for above in (path, *path.absolute().parents) if above.exists())
    if not there.is_dir():
        raise FileError(f"cannot make the folder {path}: {there} is a file; name one that you may write to.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(f"the folder {there} may not be written to; name one that you may write to.")
    return path


@contextmanager
def whole(path: Path) -> Generator[Path]:
    """A path to write to, which becomes `path` once all is written; until then, `path` is as it was."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


class Progress:
    """Tells a person at a terminal what goes on and for how long, once it has taken two seconds.

    Bars of the library speak through it, for two writers on one line would overwrite each other.
    """

    def __init__(self, text: str) -> None:
        self.text, self.detail = text, ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def say(self, text: str) -> None:
        self.text = text

    def _hear(self, detail: str) -> None:
        self.detail = detail

    def _tell(self) -> None:
        begin = time.monotonic()
        if self._done.wait(PATIENCE):
            return
        while True:
            told = f"{self.text}: {self.detail}" if self.detail else self.text
            print(f"\r\x1b[K{told} … {time.monotonic() - begin:.0f} s", end="", file=sys.stderr, flush=True)
            if self._done.wait(0.5):
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
                return

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            Bar.teller = self._hear
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        Bar.teller = None
        if self._thread.ident is not None:
            self._thread.join()
