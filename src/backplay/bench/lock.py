"""Who holds a run's folder: one process at a time writes to it."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from backplay.errors import BackplayError, FileError


class HeldError(BackplayError, RuntimeError):
    """Another process writes to this folder."""


class Lock:
    """The file `lock` in a folder, locked by the operating system as long as its holder lives.

    It is let go when the process ends, however it ends; what stands in the file tells others whom to wait for.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        try:
            self.file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise FileError(
                f"{self.path} cannot be opened: {error.strerror}; name a folder you may write to."
            ) from error
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.file)
            raise HeldError(
                f"{folder} is held by {holder(folder)}; wait until it ends, or name another folder."
            ) from error
        self._sign()

    def _sign(self) -> None:
        signed = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "user": _user(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        try:
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps(signed).encode(), 0)
        except OSError as error:
            self.release()
            raise FileError(f"{self.path} cannot be written: {error.strerror}; free some space.") from error

    def release(self) -> None:
        """Let others write; what stood in the file is no longer true and goes first."""
        try:
            os.ftruncate(self.file, 0)
        finally:
            os.close(self.file)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder(folder: Path) -> str:
    """Who holds a folder, in words."""
    try:
        signed = json.loads((folder / "lock").read_text())
        return f"process {signed['pid']} of {signed['user']} on {signed['host']} since {signed['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in the password file: containers
        return f"user {os.getuid()}"
