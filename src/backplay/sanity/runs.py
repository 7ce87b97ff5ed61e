"""A run of experiments from its config to its last row, tables and figures; rows and engines are the benchmark's."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import backplay as bp
from backplay import models
from backplay.bench import store as stores
from backplay.bench.data import open_data
from backplay.bench.engines import start
from backplay.bench.plan import fitting
from backplay.bench.progress import RunProgress
from backplay.bench.runs import NETWORKS, Summary, refused_first, session_of, work_off
from backplay.bench.sources import Contender
from backplay.bench.store import Store, write_whole
from backplay.errors import InputError
from backplay.sanity import figures, tables
from backplay.sanity.config import SanityConfig
from backplay.sanity.plan import SPLIT, Known, portions
from backplay.sanity.randomise import layers
from backplay.sanity.work import SanityOrder

TOGETHER = 10  # samples in a portion; networks of large pictures have fewer


def run(
    config: SanityConfig,
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
    labels = [data.target(SPLIT, index) for index in range(data.size(SPLIT))]
    progress = RunProgress(tell)
    known = _known(config, out)
    wanted = portions(config, known, labels)
    if not wanted:
        raise InputError("the config asks for nothing: none of its steps is a step of one of its networks.")
    with Store(out, session_of(config.name, config.hash, config.seed), config.text, resume) as store:
        write_whole(out / NETWORKS, json.dumps(known, indent=1, ensure_ascii=False).encode())
        with closing(start(_order(config), engine, workers, address)) as machine, closing(progress):
            work_off(machine, wanted, store, config.retries, progress, "experiments", summary)
    return summary


def _order(config: SanityConfig) -> SanityOrder:
    networks = {network.name: network for network in config.networks}
    return SanityOrder(networks, config.data, config.seed, config.threads, {t.name: t for t in config.trials})


def _known(config: SanityConfig, out: Path) -> Known:
    """The layers of each network and the methods that fit it; a run that goes on has them in its folder."""
    kept = out / NETWORKS
    if stores.begun(out) and kept.exists():
        return json.loads(kept.read_text())
    return {network.name: _asked(network, config) for network in config.networks}


def _asked(network: Contender, config: SanityConfig) -> dict[str, Any]:
    loaded = models.load(network.load, network.weights)
    example = torch.zeros(2, 3, *loaded.size)
    captured = bp.capture(loaded.model, example)
    fits = fitting(network, captured)
    methods = {label: found for trial in config.trials for label, found in trial.methods.items()}
    return {
        "all": [layer.name for layer in layers(captured)],
        "weights": [layer.name for layer in layers(captured, which="weights")],
        "fits": [
            label for label, (name, params) in methods.items() if name in fits.fits and fits.points(name, [params])
        ],
        # two games on two networks are held at a time, each with the laws of both
        "together": max(1, min(TOGETHER, captured.at_once(example) // 8)),
        "refused": {label: fits.refused[name] for label, (name, _) in methods.items() if name in fits.refused},
    }


TABLES, FIGURES = FOLDERS = ("tables", "figures")
FORMS = ("md", "csv")


def write(folder: str | Path) -> list[Path]:
    """Write all tables (`tables/tables.md`, `.csv`) and figures (`figures/*.png`, `.svg`) of a run into its folder."""
    folder = Path(folder)
    built = tables.build(folder)
    (folder / TABLES).mkdir(exist_ok=True)
    written = [folder / TABLES / f"tables.{form}" for form in FORMS]
    for path, form in zip(written, FORMS, strict=True):
        write_whole(path, tables.write(built, form).encode())
    return written + _draw(folder)


def _draw(folder: Path) -> list[Path]:
    """The figures; none where the experiments have none."""
    try:
        return figures.save(figures.draw(folder), folder / FIGURES)
    except InputError:  # no experiment of the run has a figure
        return []
