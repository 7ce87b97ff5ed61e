"""A run from its config to its last row."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import backplay as bp
from backplay import models
from backplay.bench import store as stores
from backplay.bench.config import Config
from backplay.bench.data import open_data
from backplay.bench.engines import Engine, check, start
from backplay.bench.plan import ON_VALIDATION, Fitting, Plan, fitting, means_of
from backplay.bench.progress import RunProgress
from backplay.bench.rows import Portion, Session, TableCell
from backplay.bench.sources import Contender
from backplay.bench.store import Store
from backplay.bench.work import MapOrder

WINNERS = "winners.json"  # what the run that winners are taken from measured on validation
NETWORKS = "networks.json"  # which methods fit which network, so that tables need no network


@dataclass
class Summary:
    """What a call of `run` did."""

    folder: str
    done: int = 0  # samples computed by this call
    before: int = 0  # samples that were there already
    failed: int = 0
    wall: float = 0.0  # seconds between the first and the last job
    busy: float = 0.0  # seconds inside methods and metrics, all workers together
    workers: int = 1

    @property
    def words(self) -> str:
        """How many samples are there now, and how they came."""
        return f"{self.done} samples computed, {self.before} were there, {self.failed} failed"


def refused_first(
    out: str | Path, text: str, resume: bool, engine: str, workers: int | None, address: str | None
) -> Path:
    """The folder of a run; whatever is refused is refused before it is made."""
    stores.arrow()
    stores.check(Path(out), text, resume)
    check(engine, workers, address)
    return Path(out)


def run(
    config: Config,
    out: str | Path,
    engine: str = "inline",
    workers: int | None = None,
    address: str | None = None,
    resume: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Summary:
    """Work off everything that the config asks for; rows go to the folder `out` as they are computed."""
    out = refused_first(out, config.text, resume, engine, workers, address)
    summary = Summary(str(out), workers=workers or 1)
    data = open_data(config.data)
    sizes = {split: data.size(split) for split in ("validation", "test")}
    progress = RunProgress(tell)
    known = stores.begun(out) and (out / NETWORKS).exists()
    found = {} if known else {network.name: _asked(network) for network in config.networks}
    with Store(out, session_of(config.name, config.hash, config.seed), config.text, resume) as store:
        if not known:
            (out / WINNERS).unlink(missing_ok=True)  # of a run that ended before its first row
            stores.write_whole(out / NETWORKS, json.dumps(found, indent=1).encode())
        _adopt(config, out)
        plans = [Plan(config, fits) for fits in fittings(config, out)]
        with closing(start(_order(config), engine, workers, address)) as machine, closing(progress):
            for stage in ("validation", "test"):
                means = _means(config, out) if stage == "test" else {}
                cells = [(plan, plan.first() if stage == "validation" else plan.second(means)) for plan in plans]
                jobs = {job.key: job for plan, part in cells for job in plan.jobs(part, sizes)}
                alone = [(job,) for job in jobs.values()]
                work_off(machine, alone, store, config.retries, progress, stage, summary)
    return summary


def work_off(
    machine: Engine,
    portions: Sequence[Portion],
    store: Store,
    retries: int,
    progress: RunProgress,
    stage: str,
    summary: Summary,
) -> None:
    """One stage: what is not yet there."""
    missing = [tuple(job for job in portion if job.key not in store.done) for portion in portions]
    missing = [portion for portion in missing if portion]
    wanted, left = (sum(map(len, counted)) for counted in (portions, missing))
    progress.stage(wanted, wanted - left, stage)
    summary.before += wanted - left
    begin = time.monotonic()
    for outcome in machine.run(missing, retries):
        store.append(outcome)
        progress.advance(outcome.error is not None)
        summary.done += outcome.error is None
        summary.failed += outcome.error is not None
        summary.busy += outcome.busy
    summary.wall += time.monotonic() - begin


def _order(config: Config) -> MapOrder:
    networks = {network.name: network for network in config.networks}
    return MapOrder(networks, config.data, config.seed, config.draws, config.threads)


def rows_of(folder: Path) -> Iterable[tuple[TableCell, str, float | None]]:
    """TableCell, metric and value of every row."""
    table = stores.read(folder)
    columns = [table.column(n).to_pylist() for n in ("model", "data", "split", "method", "params", "metric", "value")]
    for model, data, split, method, params, metric, value in zip(*columns, strict=True):
        yield TableCell(model, data, split, method, params), metric, value


def _means(config: Config, folder: Path) -> dict[TableCell, dict[str, float]]:
    return means_of(rows_of(folder)) | adopted(config, folder)


def _adopt(config: Config, out: Path) -> None:
    """Keep what another run measured on its validation split, on whatever data: its winners are taken from there."""
    if config.winners is None or (out / WINNERS).exists():
        return
    found = means_of(rows_of(Path(config.winners)))
    kept = [[asdict(cell), means] for cell, means in found.items() if cell.split == ON_VALIDATION]
    stores.write_whole(out / WINNERS, json.dumps(kept).encode())


def adopted(config: Config, folder: Path) -> dict[TableCell, dict[str, float]]:
    """The validation means of the run whose winners are taken, as if they were of this run's data."""
    if not (folder / WINNERS).exists():
        return {}
    kept: list[Any] = json.loads((folder / WINNERS).read_text())
    return {TableCell(**cell | {"data": config.data["name"]}): means for cell, means in kept}


def fittings(config: Config, out: Path) -> list[Fitting]:
    """Which methods fit which network, out of the folder of a run."""
    found: Mapping[str, Any] = json.loads((out / NETWORKS).read_text())
    known = bp.methods()
    return [
        Fitting(
            network,
            {name: known[name] for name in found[network.name]["fits"] if name in known},
            found[network.name]["refused"],
            found[network.name]["attention"],
        )
        for network in config.networks
    ]


def _asked(network: Contender) -> dict[str, Any]:
    """Which methods fit a network: found once, before the run, and kept in its folder."""
    loaded = models.load(network.load, network.weights)
    asked = fitting(network, bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size)))
    return {"fits": list(asked.fits), "refused": dict(asked.refused), "attention": asked.attention}


def session_of(run: str, config: str, seed: int) -> Session:
    """This start of a run: its name, the hash of its config, its seed, and what they are worked off with."""
    return Session(
        number=0,
        run=run,
        version=bp.__version__,
        commit=_commit(),
        config=config,
        seed=seed,
        hardware=_hardware(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


def _commit() -> str:
    """The commit of the package where it is run from its repository; `+` if files of it were changed."""
    here = Path(bp.__file__).parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _hardware() -> str:
    """Processor, system, and the libraries whose digits may differ."""
    cpu = platform.processor() or platform.machine()
    try:
        names = [
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    except OSError:
        pass
    return f"{cpu}; {platform.system()} {platform.release()}; Python {platform.python_version()}; {_libraries()}"


def _libraries() -> str:
    found: list[str] = []
    for name in ("torch", "numpy", "quantus"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
