"""What commands write: lines, JSON, whole files or none."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from backplay.errors import FileError


def print_json(value: Any) -> None:
    """One line of JSON on standard output; NaN and infinities, which JSON has not, become null."""
    print(json.dumps(finite(value), ensure_ascii=False), flush=True)


def finite(value: Any) -> Any:
    """The same value with None in place of NaN and infinities, and lists in place of tuples."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def wants_json(given: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, even one that cannot be parsed."""
    own = given[: list(given).index("--")] if "--" in given else given
    return "--json" in own


def end(given: Sequence[str], name: str, error: BaseException | str, code: int) -> int:
    """Say what went wrong: a line on standard error, and with `--json` an object on standard output too."""
    text = " ".join(line.strip() for line in str(error).splitlines())
    print(f"{name}: {text}", file=sys.stderr)
    if wants_json(given):
        kind = type(error).__name__ if isinstance(error, BaseException) else "UsageError"
        print_json({"error": {"type": kind, "message": text, "command": name, "code": code}})
    return code


def check_pictures() -> None:
    """Refuse a run whose pictures could not be drawn: now, and not after its work."""
    importlib.import_module("backplay.view")


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
    unfinished = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
