"""A folder that a run writes into: which files are the run's own, what is done already, and how to make it again.

The record of a run is `run.json`; another run in the same folder, with other settings, has `run-2.json`, and so on. A
run owns the file names that its record lists, which it does before it writes them, so that no run ever writes over
files of another. The same call again finds its record and goes on with what is not done yet.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import backplay as bp
from backplay.cli.columns import Column, file_name
from backplay.cli.options import command_line
from backplay.cli.output import finite, folder, whole
from backplay.errors import FileError

_SELDOM = 2.0  # seconds between two writings of the record


@dataclass(frozen=True)
class Item:
    """One thing to be explained: a photograph, a text, a pair."""

    key: str  # the photograph's path, or the text
    name: str  # how its files begin, without what carries the parameters


@dataclass
class RunFolder:
    """The results of a run, by item."""

    out: Path
    settings: dict[str, Any]  # everything that results depend on, as JSON
    suffixes: tuple[str, ...]  # of the files of an item: `.png`, `.npz`
    given: Sequence[str] = ()  # the command line
    record: Path | None = None  # None until the run owns one
    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])  # by key: stem, sha256, report
    _written: float = 0.0

    @staticmethod
    def open(out: Path, settings: Mapping[str, Any], suffixes: tuple[str, ...], given: Sequence[str] = ()) -> RunFolder:
        """The run of these settings in a folder; nothing is written yet."""
        own = json.loads(json.dumps(finite(settings), sort_keys=True))
        run = RunFolder(out, own, suffixes, given)
        for path in _records(out):
            known = _read(path)
            if known.get("settings") == own:
                run.record, run.items = path, known.get("items", {})
                break
        return run

    def is_done(self, item: Item, digest: str) -> bool:
        """Whether the files of an item are there, made from what it holds now."""
        self._turn(item.key, digest)
        known = self.items.get(item.key, {})
        there = "report" in known and known.get("sha256") == digest
        return there and all(path.exists() for path in self.files(item))

    def _turn(self, key: str, digest: str) -> None:
        """Where an item holds what it once held, what was known of it then is what is known of it."""
        versions = _versions(self.items.get(key, {}))
        fitting = [known for known in versions if known.get("sha256") == digest]
        if fitting:
            others = [known for known in versions if known is not fitting[0]]
            self.items[key] = fitting[0] | ({"earlier": others} if others else {})

    def report(self, item: Item) -> dict[str, Any]:
        """What is known of an item that is done."""
        return self.items[item.key]["report"]

    def files(self, item: Item) -> list[Path]:
        """Where the results of an item are; the run must own them."""
        stem = self.items[item.key]["stem"]
        return [self.out / f"{stem}{suffix}" for suffix in self.suffixes]

    def claim(self, digests: Mapping[Item, str], parameters: str) -> None:
        """Make the files of some items the run's own: names that no other file has, written down before they are used.

        An item that holds something else than before, by its digest, gets new names, and its earlier results stay.
        `parameters` is the part of a name that carries the parameters.
        """
        items = [item for item, digest in digests.items() if self.items.get(item.key, {}).get("sha256") != digest]
        if not items and self.record is not None:
            return
        folder(self.out)
        if self.record is None:
            self.record = _new_record(self.out)
        taken = {version["stem"] for entry in self.items.values() for version in _versions(entry)}
        for item in items:
            stem = self._free(f"{item.name}-{parameters}", taken)
            taken.add(stem)
            earlier = _versions(self.items.get(item.key, {}))
            self.items[item.key] = {"stem": stem, "sha256": digests[item]} | ({"earlier": earlier} if earlier else {})
        self.write()

    def _free(self, stem: str, taken: set[str]) -> str:
        numbered = itertools.chain([stem], (f"{stem}-{k}" for k in itertools.count(2)))
        return next(
            name
            for name in numbered
            if name not in taken and not any((self.out / f"{name}{s}").exists() for s in self.suffixes)
        )

    def done(self, item: Item, digest: str, report: dict[str, Any]) -> None:
        """Remember the results of an item, whose files are written."""
        self.items[item.key] |= {"sha256": digest, "report": finite(report)}
        if time.monotonic() - self._written > _SELDOM:
            self.write()

    def write(self) -> None:
        """The record, whole."""
        assert self.record is not None
        begin = time.monotonic()
        content = {
            "settings": self.settings,
            "command": shlex.join(["backplay", *self.given]),
            "folder": os.getcwd(),
            "machine": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
            },
            "items": self.items,
        }
        with whole(self.record) as path:
            path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        # a long record takes a while: never more than a twentieth of the time
        self._written = time.monotonic() + 20 * (time.monotonic() - begin)


def _versions(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """What is known of an item as it is, and behind it what was known of it when it held something else."""
    own = {name: value for name, value in entry.items() if name != "earlier"}
    return [own, *entry.get("earlier", [])] if own else []


def _records(out: Path) -> list[Path]:
    return sorted(out.glob("run*.json")) if out.is_dir() else []


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # somebody else's, or broken: it is left alone
    return found if isinstance(found, dict) else {}


def _new_record(out: Path) -> Path:
    """`run.json`, or the first of run-2.json, … that is not there; made at once, so that nobody else takes it."""
    for k in itertools.count(1):
        path = out / ("run.json" if k == 1 else f"run-{k}.json")
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}; name a folder that you may write to.") from error
    raise AssertionError


def open_run(
    out: Path,
    suffixes: tuple[str, ...],
    model: str,
    weights: str | None,
    columns: Sequence[Column],
    asked: Mapping[str, Any],
) -> tuple[RunFolder, str]:
    """The run of `explain` in a folder, and the part of its files' names that carries columns and what was asked."""
    described = [column.describe() for column in columns]
    settings = settings_of("explain", model, [weights] if weights else [], columns=described, **asked)
    return RunFolder.open(out, settings, suffixes, command_line()), file_name(columns, asked)


def settings_of(command: str, model: str, weights: Sequence[str], **more: Any) -> dict[str, Any]:
    """What results depend on, beside the items: the version, the network and its weights by their contents."""
    file = model.rpartition(":")[0] if ".py:" in model else model.removeprefix("hf:") if "hf:" in model else None
    return {
        "backplay": bp.__version__,
        "command": command,
        "model": model,
        "model_sha256": digest_of(Path(file)) if file else None,
        "weights": [{"name": w, "sha256": digest_of(Path(w))} for w in weights],
        **more,
    }


def digest_of(path: Path) -> str | None:
    """The sha256 of a file, or of all files in a folder; None where there is none."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.is_dir():
        return None
    parts = [f"{part.relative_to(path)} {digest_of(part)}" for part in sorted(path.rglob("*")) if part.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
