"""`backplay explain` of photographs: explained in batches, then drawn and written one by one."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backplay import models
from backplay.cli.bar import Bar, aside
from backplay.cli.columns import GAMES, Column
from backplay.cli.explaining import Explained, Explaining, told_of
from backplay.cli.options import json_asked
from backplay.cli.output import check_pictures, whole
from backplay.cli.runs import Item, RunFolder, digest_of, open_run
from backplay.errors import BackplayError, FileError, InputError, first_line

if TYPE_CHECKING:
    from backplay.view.printing import Printer

ENDINGS = frozenset(
    ".jpg .jpeg .jfif .mpo .png .gif .webp .avif .tif .tiff .bmp .dib .ppm .pgm .pbm .pnm .jp2 .tga .ico .pcx".split()
)
FEW = 8  # photographs that are looked at one by one: up to here a figure has the share of walks that arrives


def explain(
    given: Sequence[Path],
    model: str,
    weights: str | None,
    columns: Sequence[Column],
    target: str | None,
    against: str | None,
    share: bool | None,
    out: Path,
) -> tuple[dict[str, Any], int]:
    """The report of a run, and its exit code: 3 where some photographs failed, 1 where all of them did.

    `share` asks for the share of walks that arrives; None: where there are few photographs. It costs nearly as much as
    the maps of the games, which for a folder of them is more than most people would wait for a number.
    """
    check_pictures()
    paths = find(given, out)
    silent = share is None and len(paths) > FEW and any(column.method in GAMES for column in columns)
    share = len(paths) <= FEW if share is None else share
    asked: dict[str, Any] = {"target": target, "against": against} | ({} if share else {"share": False})
    run, parameters = open_run(out, (".png", ".npz"), model, weights, columns, asked)
    items = {path: Item(str(path.resolve()), path.stem) for path in paths}
    with Bar(f"loading {model}", len(paths)) as bar:
        job = Job(run, items, parameters, bar)
        todo = [path for path in paths if not job.skip(path)]
        loaded = None
        if todo:
            if silent:
                job.say(f"{len(paths)} photographs: maps only; --share also finds which share of walks arrives")
            loaded = models.load(model, weights)
            job.work(loaded, todo, Explaining(loaded, columns, target, against, share))
    report = {
        "model": model if loaded is None else loaded.source,
        "columns": run.settings["columns"],
        "out": str(out),
        "record": None if run.record is None else str(run.record),
        "photographs": [job.reports[path] for path in paths if path in job.reports],
        "failed": [{"image": str(path), "error": why} for path, why in job.failed.items()],
        "skipped": job.skipped,
    }
    if job.failed:
        return report, 1 if len(job.failed) == len(paths) else 3
    return report, 0 if job.sound else 3


def find(given: Sequence[Path], out: Path) -> list[Path]:
    """The photographs that are named, and those in the folders that are, by their endings and below them too."""
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        if path.resolve() == out.resolve():
            raise FileError(f"-o {out} is the folder of the photographs itself; name another one for the results.")
        inside = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in ENDINGS and p.is_file()]
        kept = [p for p in inside if out.resolve() not in p.resolve().parents and not p.name.startswith(".")]
        if not kept:
            raise InputError(f"{path} holds no photographs, files that end in .jpg, .png and the like; name another.")
        found += kept
    return list({path.resolve(): path for path in found}.values())


@dataclass(frozen=True)
class Drawn:
    """A photograph that is drawn."""

    path: Path
    report: dict[str, Any]
    files: Future[None]  # done when they are written


@dataclass
class Job:
    """The photographs of a run: what is done, what has failed."""

    run: RunFolder
    items: dict[Path, Item]
    parameters: str  # the part of file names that carries the parameters
    bar: Bar
    reports: dict[Path, dict[str, Any]] = field(default_factory=dict[Path, dict[str, Any]])
    failed: dict[Path, str] = field(default_factory=dict[Path, str])
    digests: dict[Path, str] = field(default_factory=dict[Path, str])
    skipped: int = 0
    sound: bool = True

    def skip(self, path: Path) -> bool:
        """Whether an earlier run of the same settings has done this photograph as it is now."""
        self.digests[path] = digest_of(path) or ""
        item = self.items[path]
        if not self.run.is_done(item, self.digests[path]):
            return False
        self.reports[path] = self.run.report(item)
        self.sound = self.sound and self.reports[path]["sound"]
        self.skipped += 1
        self.bar.advance(1)
        self.say(f"{path}: done before, {self.run.files(item)[0]}")
        return True

    def work(self, loaded: models.Loaded, todo: Sequence[Path], explaining: Explaining) -> None:
        """Explain batch by batch; each photograph is drawn as soon as its batch is explained.

        In this thread: one that draws beside the games takes Python's lock from them, which costs more than it saves. A
        clerk in another thread packs and writes what is drawn. It is given no tensors: torch computes a tenth slower
        from the moment when a second thread has called it.
        """
        from backplay.view.printing import Printer

        printer, drawn = Printer(loaded), deque[Drawn]()
        try:
            with ThreadPoolExecutor(1) as clerk:
                for batch in self._batches(loaded, todo, explaining):
                    answers = list(self._answers(batch, explaining))
                    if answers:  # the first of them: all names at once
                        self.run.claim({self.items[path]: self.digests[path] for path in todo}, self.parameters)
                    for path, answer in answers:
                        drawn.append(self._drawn(path, answer, loaded, printer, clerk))
                        self._finish_written(drawn, wait=False)
                    self._finish_written(drawn)
        finally:
            try:
                self._finish_written(drawn)
            finally:
                if self.run.record is not None:
                    self.run.write()

    def _drawn(
        self, path: Path, answer: Explained, loaded: models.Loaded, printer: Printer, clerk: ThreadPoolExecutor
    ) -> Drawn:
        """Draw a photograph and hand it to the clerk."""
        figure, numbers = self.run.files(self.items[path])
        colours = printer.colours(answer.x[None], planes(answer), **letters(path, answer, loaded))
        arrays = {column.name: found.heat for column, found in answer.maps.items()}
        report = describe(path, answer, loaded) | {"figure": str(figure), "numbers": str(numbers)}
        return Drawn(path, report, clerk.submit(write, figure, colours, printer.dpi, numbers, arrays))

    def _finish_written(self, drawn: deque[Drawn], wait: bool = True) -> None:
        """Remember and tell, in their order, of the photographs whose files are there."""
        while drawn and (wait or drawn[0].files.done()):
            first = drawn.popleft()
            first.files.result()
            self._finish(first.path, first.report)

    def _batches(
        self, loaded: models.Loaded, todo: Sequence[Path], explaining: Explaining
    ) -> Iterator[list[tuple[Path, Tensor]]]:
        """Photographs of one shape that are explained together; a file that cannot be read is told and left out."""
        batch: list[tuple[Path, Tensor]] = []
        for k, path in enumerate(todo):
            self.bar.say(f"explaining {path.name}, {k + 1} of {len(todo)}")
            try:
                x = loaded.photograph(path)[None]
            except BackplayError as error:
                self.fail(path, error)
                continue
            if batch and (batch[0][1].shape != x.shape or len(batch) >= explaining.together(x)):
                yield batch
                batch = []
            batch.append((path, x))
        if batch:
            yield batch

    def _answers(self, batch: list[tuple[Path, Tensor]], explaining: Explaining) -> Iterator[tuple[Path, Explained]]:
        """The answers to a batch; where it fails, each photograph is tried alone."""
        explaining.prepare(batch[0][1])  # what fails for all of them is an error of the call
        try:
            answers = explaining(torch.cat([x for _, x in batch]))
        except BackplayError as error:
            if len(batch) == 1:
                return self.fail(batch[0][0], error)
            for one in batch:
                yield from self._answers([one], explaining)
        else:
            yield from ((path, answer) for (path, _), answer in zip(batch, answers, strict=True))

    def fail(self, path: Path, error: BackplayError) -> None:
        """Report a photograph that cannot be explained; the rest goes on."""
        reason = " ".join(str(error).split()) or first_line(error)
        self.failed[path] = reason
        self.bar.advance(1)
        with aside():
            named = reason if str(path) in reason else f"{path}: {reason}"
            print(f"backplay explain: {named}", file=sys.stderr, flush=True)

    def _finish(self, path: Path, report: dict[str, Any]) -> None:
        self.reports[path] = report
        self.run.done(self.items[path], self.digests[path], report)
        self.sound = self.sound and report["sound"]
        self.bar.advance(1)
        against = f" rather than {report['against_class']}" if report["against"] is not None else ""
        unsound = "" if report["sound"] else "; NOT SOUND: mass of a walk is lost"
        self.say(
            f"{path}: {report['class']} ({report['target']}){against}, value {report['value']:.4g}; "
            f"{told_of(report)}{unsound}; {report['figure']}"
        )

    def say(self, line: str) -> None:
        if not json_asked():
            with aside():
                print(line, flush=True)


def write(figure: Path, colours: NDArray[np.uint8], dpi: float, numbers: Path, arrays: Mapping[str, Any]) -> None:
    """The files of one photograph: the figure, drawn already, and the numbers of its maps."""
    from backplay.view.printing import encoded

    with whole(figure) as unfinished:
        unfinished.write_bytes(encoded(colours, dpi))
    with whole(numbers) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **arrays)


def planes(answer: Explained) -> dict[str, NDArray[Any]]:
    """The maps by their titles, (1, h, w) each."""
    return {column.title: found.shown[None] for column, found in answer.maps.items()}


def letters(path: Path, answer: Explained, loaded: models.Loaded) -> dict[str, Any]:
    """What stands in the figure: the class, the value, and the share of walks that arrives."""
    from backplay.view.colours import number, share

    against = f" rather than {loaded.class_name(answer.against)}" if answer.against is not None else ""
    wrong = f" (answer: {loaded.class_name(answer.predicted)})" if answer.predicted != answer.target else ""
    title = f"{path.name}: {loaded.class_name(answer.target)}{against}{wrong}, value {number(answer.value)}"
    notes = {
        column.title: f"{share(found.arrives)} of walks arrive"
        for column, found in answer.maps.items()
        if found.arrives is not None
    }
    notes |= {
        column.title: f"{share(found.aside)} on other tokens" for column, found in answer.maps.items() if found.aside
    }
    return {"notes": notes, "title": title}


def describe(path: Path, answer: Explained, loaded: models.Loaded) -> dict[str, Any]:
    """What is known of a photograph, as JSON."""
    against = None if answer.against is None else loaded.class_name(answer.against)
    return {
        "image": str(path),
        "class": loaded.class_name(answer.target),
        "target": answer.target,
        "against": answer.against,
        "against_class": against,
        "predicted": answer.predicted,
        "predicted_class": loaded.class_name(answer.predicted),
        "value": answer.value,
        "sound": all(found.sound for found in answer.maps.values()),
        "maps": {
            column.name: {
                "sum": float(found.heat.sum(dtype=np.float64)),
                "arrives": found.arrives,
                "sound": found.sound,
            }
            for column, found in answer.maps.items()
        },
    }
