"""Pictures that visitors upload: checked, and kept in one folder under the hash of their name and content."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

from backplay import photographs
from backplay.errors import FileError, MissingFileError, PhotographError

MEGABYTES = 20  # of a file
MOST = 64  # pictures that are kept; the oldest one makes room

PREFIX = "upload:"
_KEY = re.compile(r"upload:[0-9a-f]{16}")
_BUILDING = "."  # how folders begin that are no home yet


class Uploads:
    """A folder with one folder for each picture, which holds it under its own name.

    Pictures are taken from `arriving` alone, where the server puts what visitors send.
    """

    def __init__(self, folder: Path, arriving: Path) -> None:
        self.folder, self.arriving, self._lock = folder, arriving, threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, path: str | Path) -> str:
        """The key of a picture that has just arrived, `upload:…`; refused unless it can be read and is small enough."""
        given = Path(path)
        name = _plain(given.name)
        if not given.resolve().is_relative_to(self.arriving.resolve()) or not given.is_file():
            raise MissingFileError(f"{name} did not arrive; upload it again.")
        try:
            _check(given, name)
        except (PhotographError, FileError, MissingFileError) as error:
            raise type(error)(str(error).replace(str(given), name)) from None
        content = given.read_bytes()
        key = PREFIX + hashlib.sha256(name.encode() + b"\0" + content).hexdigest()[:16]
        with self._lock:  # a home that is made never meets one that makes room
            if not _touch(self._home(key)):
                self._settle(self._home(key), name, content)
                self._make_room()
        return key

    def _settle(self, home: Path, name: str, content: bytes) -> None:
        """The home of a picture at once as a whole; somebody else may have made the same one meanwhile."""
        building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=self.folder))
        try:
            (building / name).write_bytes(content)
            os.replace(building, home)
        except OSError:
            if not home.is_dir():
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def find(self, key: str) -> Path:
        """The picture of a key. Only keys are understood: no path leads out of the folder."""
        if not _KEY.fullmatch(key):
            raise FileError(f"{key[:40]!r} names no upload; choose an example or upload a picture.")
        found = sorted(self._home(key).glob("*"))
        if not found:
            raise MissingFileError("this uploaded picture is no longer here; upload it again.")
        return found[0]

    def _home(self, key: str) -> Path:
        return self.folder / key.removeprefix(PREFIX)

    def _make_room(self) -> None:
        homes = [home for home in self.folder.iterdir() if not home.name.startswith(_BUILDING)]
        for home in sorted(homes, key=_age)[:-MOST]:
            shutil.rmtree(home, ignore_errors=True)


def _touch(home: Path) -> bool:
    """Whether a home is there; it is the newest one then."""
    try:
        os.utime(home)
    except FileNotFoundError:
        return False
    return True


def _age(home: Path) -> int:
    """When a home was last wanted; one that has just gone is the oldest."""
    try:
        return home.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _check(path: Path, name: str) -> None:
    if path.stat().st_size > MEGABYTES * 2**20:
        raise FileError(f"{name} is larger than {MEGABYTES} MB; scale it down first.")
    photographs.read(path)  # which refuses pictures of too many pixels before it decodes them


def _plain(name: str) -> str:
    """The last part of a name, in letters that are safe in a file's name and in a line of Python."""
    return re.sub(r"[^\w.\- ]", "_", name.replace("\\", "/").rpartition("/")[2])[-80:].lstrip(".") or "picture"
