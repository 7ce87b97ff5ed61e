"""The rows of a run: written to a journal as they are computed, sealed into Parquet when it has grown.

A folder holds `config.yaml`, `lock`, `rows-000001.parquet`, … and the journal that is being written. A part of the
store is either a journal or, once it is sealed, the Parquet file of the same number; a file becomes visible under its
name when it is whole. So there is no moment at which the death of the writer loses more than the sample in flight.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from backplay.bench import journal
from backplay.bench.journal import Journal, StoreError
from backplay.bench.lock import Lock
from backplay.bench.reading import yaml
from backplay.bench.rows import COLUMNS, ERROR, Outcome, Session, TableCell, record, spread
from backplay.errors import FileError, MissingFileError, MissingLibraryError

SEAL = 1_000_000  # bytes of a journal before it is sealed
CONFIG = "config.yaml"
_TRIES = 5  # of reading while a writer seals


def arrow() -> ModuleType:
    """pyarrow, or how to install it."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingLibraryError("the benchmark needs pyarrow: pip install 'backplay[bench]'") from error


class Store:
    """The writer of a run's folder; the only one, as long as it is open.

    with Store(folder, session, text, resume=True) as store:
        store.append(outcome)
    """

    def __init__(self, folder: Path, session: Session, config: str, resume: bool = False) -> None:
        arrow()  # before anything is made
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make the folder {folder}: {error.strerror}; name another one.") from error
        self.lock = Lock(folder)
        try:
            check(folder, config, resume)
            if _is_free(folder):
                write_whole(folder / CONFIG, config.encode())
            self.lost = _repair(folder)
            self.done: set[tuple[TableCell, int]] = set()
            _seal_all(folder)
            last = max([0, *_sessions(folder, self.done)])
            self.session = replace(session, number=last + 1)
            self.number = max([0, *_numbers(folder)]) + 1
            self._begin()
        except BaseException:
            self.lock.release()
            raise

    def _begin(self) -> None:
        self.journal = Journal(self.folder / f"journal-{self.number:06d}.log")
        self.journal.append(asdict(self.session) | {"kind": "session"})

    def append(self, outcome: Outcome) -> None:
        """Keep an outcome: from here on it survives."""
        self.journal.append(record(outcome, self.session.number))
        if outcome.error is None:
            self.done.add((outcome.job.cell, outcome.job.index))
        if self.journal.size > SEAL:
            self.seal()
            self._begin()

    def seal(self) -> None:
        """The journal becomes a Parquet file."""
        self.journal.close()
        rows = list(_rows(self.journal.path))
        if rows:
            _write_parquet(self.folder / f"rows-{self.number:06d}.parquet", rows)
        self.journal.path.unlink()
        self.number += 1

    def close(self) -> None:
        """Seal what is there and let others write."""
        try:
            self.seal()
        finally:
            self.lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError):  # the disk is full: what is written stays in the journal
            self.lock.release()
        else:
            self.close()


def check(folder: Path, config: str, resume: bool) -> None:
    """A folder that has rows is gone on with only when asked to, and only by the run that began it."""
    kept = folder / CONFIG
    if _is_free(folder):
        return
    if not resume:
        raise StoreError(f"{folder} holds a run already; add --resume to go on with it, or name another folder.")
    if kept.read_text() != config:
        raise StoreError(
            f"{folder} holds the run of another config ({kept} is what it began with); "
            "give that one, or name another folder."
        )


def _is_free(folder: Path) -> bool:
    """Whether a run may begin here: in a folder without a config, or where a run ended before its first row.

    A config that somebody wrote by hand is never written over.
    """
    kept = folder / CONFIG
    return not kept.exists() or (not begun(folder) and _is_written_here(kept.read_text()))


def begun(folder: Path) -> bool:
    """Whether a folder holds rows of a run, or a journal that may hold some."""
    return any(True for pattern in ("rows-*", "journal-*") for _ in folder.glob(pattern))


def _is_written_here(text: str) -> bool:
    """Whether a config has the spelling that runs keep theirs in (`sources.common`)."""
    y = yaml()
    try:
        return text == y.safe_dump(y.safe_load(text), sort_keys=True, allow_unicode=True)
    except y.YAMLError:
        return False


def read(folder: str | Path) -> Any:
    """The rows of a run as a `pyarrow.Table`, one a sample and metric; a run that is going on may be read too.

    Of a sample that failed and was tried again the last outcome counts.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise MissingFileError(f"{folder} holds no run: there is no {CONFIG} in it; give the folder of a run.")
    for _ in range(_TRIES):
        try:
            return _settled(arrow().concat_tables([_part(path) for path in _parts(folder)] or [_table([])]))
        except FileNotFoundError:  # a journal was sealed meanwhile
            continue
    raise StoreError(f"{folder} changes while it is read; try again.")


def _settled(table: Any) -> Any:
    """Without the errors of samples that succeeded later; one error for each of the others."""
    if ERROR not in table.column("metric").unique().to_pylist():
        return table
    names = ("model", "data", "split", "method", "params", "index")
    keys = list(zip(*(table.column(n).to_pylist() for n in names), strict=True))
    failed = [m == ERROR for m in table.column("metric").to_pylist()]
    sound = {key for key, bad in zip(keys, failed, strict=True) if not bad}
    last = {key: row for row, key in enumerate(keys)}
    keep = [
        not bad or (key not in sound and last[key] == row)
        for row, (key, bad) in enumerate(zip(keys, failed, strict=True))
    ]
    return table.filter(arrow().array(keep))


def _parts(folder: Path) -> list[Path]:
    """The file of each number: Parquet, or the journal where it is not sealed."""
    sealed = {_number(path): path for path in folder.glob("rows-*.parquet")}
    open_ = {_number(path): path for path in folder.glob("journal-*.log")}
    return [path for _, path in sorted((open_ | sealed).items())]


def _numbers(folder: Path) -> list[int]:
    return [_number(path) for path in _parts(folder)]


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _part(path: Path) -> Any:
    if path.suffix == ".log":
        return _table(list(_rows(path)))
    try:
        return arrow().parquet.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged; start the run again with --resume: its samples are computed anew."
        ) from error


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    sessions: dict[int, dict[str, Any]] = {}
    for kept in journal.read(path):
        if kept["kind"] == "session":
            sessions[kept["number"]] = kept
        else:
            yield from spread(kept, sessions)


def _table(rows: list[dict[str, Any]]) -> Any:
    pa = arrow()
    schema = pa.schema([pa.field(name, getattr(pa, kind)()) for name, kind in COLUMNS])
    return pa.Table.from_pylist(rows, schema)


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        arrow().parquet.write_table(_table(rows), part, compression="zstd", write_page_checksum=True)
        _sync(part)
        os.replace(part, path)
        _sync(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}; free some space and start again with --resume. "
            "Everything written so far is kept."
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        _sync(part)
        os.replace(part, path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; free some space and start again.") from error


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _repair(folder: Path) -> int:
    """Make every part readable; returns how many damaged records and files were set aside."""
    lost = 0
    for stray in folder.glob("*.part"):
        stray.unlink()
    for path in folder.glob("journal-*.log"):
        if (folder / f"rows-{_number(path):06d}.parquet").exists():  # died between sealing and removing it
            path.unlink()
        else:
            lost += journal.repair(path)
    for path in folder.glob("rows-*.parquet"):
        try:
            _part(path)
        except StoreError:
            os.replace(path, path.with_name(f"{path.name}.damaged"))
            lost += 1
    if lost:
        warnings.warn(f"{folder} was damaged in {lost} places; what was lost is computed anew", stacklevel=3)
    return lost


def _seal_all(folder: Path) -> None:
    """Journals that earlier sessions left behind become Parquet too."""
    for path in folder.glob("journal-*.log"):
        rows = list(_rows(path))
        if rows:
            _write_parquet(folder / f"rows-{_number(path):06d}.parquet", rows)
        path.unlink()


def _sessions(folder: Path, done: set[tuple[TableCell, int]]) -> Iterator[int]:
    """Fill `done` with the samples that succeeded; yields the numbers of sessions that wrote rows."""
    columns = ["model", "data", "split", "method", "params", "index", "metric", "session"]
    for path in _parts(folder):
        for row in arrow().parquet.read_table(path, columns=columns).to_pylist():
            if row["metric"] != ERROR:
                done.add((_cell(row), row["index"]))
            yield row["session"]


def _cell(kept: Mapping[str, Any]) -> TableCell:
    return TableCell(kept["model"], kept["data"], kept["split"], kept["method"], kept["params"])
