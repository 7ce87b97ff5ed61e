"""A file of records that grows at its end: what was written whole stays, whatever happens to the writer."""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from backplay.errors import BackplayError, FileError

SYNC = 2.0  # seconds between two requests to put everything on the disk: what a power cut may cost


class StoreError(BackplayError, RuntimeError):
    """A store that is damaged, or that was made by something else."""


class Journal:
    """Records, one a line: a checksum, a blank and JSON.

    A record is one `write`, so that a process that dies leaves a whole record or a piece at the end, which the
    checksum tells from a record. Where the disk is full the piece is cut off again and an error says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise FileError(f"{path} cannot be opened: {error.strerror}; name a folder you may write to.") from error
        self.size = os.fstat(self.file).st_size
        self.synced = time.monotonic()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; after this it survives the end of the process."""
        line = encode(record)
        try:
            written = os.write(self.file, line)
            if written < len(line):  # the disk took a part of it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.size += len(line)
            if time.monotonic() - self.synced > SYNC:
                os.fsync(self.file)
                self.synced = time.monotonic()
        except OSError as error:
            self._cut()
            raise StoreError(
                f"{self.path} cannot grow: {error.strerror}; free some space and start again with --resume. "
                "Everything written so far is kept."
            ) from error

    def _cut(self) -> None:
        """Back to the last whole record."""
        with suppress(OSError):  # the checksum gives the piece away when it is read
            os.ftruncate(self.file, self.size)

    def close(self) -> None:
        os.close(self.file)


def encode(record: Mapping[str, Any]) -> bytes:
    """A record as a line of the journal."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every record; a piece at the end, which a dying process or a writer at work leaves, is passed over.

    A line that is damaged anywhere else is a `StoreError` that names it.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            found = decode(line)
            if found is not None:
                yield found
            elif line.endswith(b"\n"):
                raise StoreError(
                    f"{path} is damaged in line {number}; start the run again with --resume: "
                    "sound lines are kept, the others are computed anew."
                )


def decode(line: bytes) -> dict[str, Any] | None:
    """The record in a line, None if the line is damaged."""
    checksum, blank, text = line.rstrip(b"\n").partition(b" ")
    if not blank or not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    return json.loads(text)


def repair(path: Path) -> int:
    """Keep the sound lines and put what was there beside them as `.damaged`; returns how many lines were lost.

    A piece at the end is cut off without a trace: nothing that was ever reported as written is in it.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    sound = [line for line in lines if decode(line) is not None]
    if len(sound) == len(lines):
        return 0
    whole_lines = [line for line in lines if line.endswith(b"\n")]
    lost = len(whole_lines) - len(sound)
    if lost:
        path.with_name(f"{path.name}.damaged").write_bytes(b"".join(lines))
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(b"".join(sound))
    os.replace(part, path)
    return lost
