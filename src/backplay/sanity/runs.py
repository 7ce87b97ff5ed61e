"""A run of experiments from its config to its last row; rows and engines are the benchmark's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

import backplay as bp
from backplay import models
from backplay.bench.data import open_data
from backplay.bench.engines import start
from backplay.bench.progress import RunProgress
from backplay.bench.runs import Summary, session_of, work_off
from backplay.bench.sources import Contender
from backplay.bench.store import Store, write_whole
from backplay.errors import InputError
from backplay.sanity.config import SanityConfig
from backplay.sanity.plan import SPLIT, Layers, jobs
from backplay.sanity.randomise import layers
from backplay.sanity.work import SanityOrder

LAYERS = "layers.json"  # what a cascade draws anew, step by step, so that figures need no network


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
    out = Path(out)
    summary = Summary(str(out), workers=workers or 1)
    data = open_data(config.data)  # a wrong path is told before a folder is made
    labels = [data.target(SPLIT, index) for index in range(data.size(SPLIT))]
    progress = RunProgress(tell)
    with Store(out, session_of(config.name, config.hash, config.seed), config.text, resume) as store:
        wanted = jobs(config, _layers(config, out), labels)
        if not wanted:
            raise InputError("the config asks for nothing: none of its steps is a step of one of its networks.")
        machine = start(_order(config), engine, workers, address)
        try:
            work_off(machine, wanted, store, config.retries, progress, "experiments", summary)
        finally:
            progress.close()
            machine.close()
    return summary


def _order(config: SanityConfig) -> SanityOrder:
    networks = {network.name: network for network in config.networks}
    return SanityOrder(networks, config.data, config.seed, config.threads, {t.name: t for t in config.trials})


def _layers(config: SanityConfig, out: Path) -> Layers:
    """The layers of each network, found once and kept in the folder."""
    kept = out / LAYERS
    if not kept.exists():
        found = {network.name: _named(network) for network in config.networks}
        write_whole(kept, json.dumps(found, indent=1).encode())
    return json.loads(kept.read_text())


def _named(network: Contender) -> dict[str, list[str]]:
    loaded = models.load(network.load, network.weights)
    captured = bp.capture(loaded.model, torch.zeros(2, 3, *loaded.size))
    return {
        "all": [layer.name for layer in layers(captured)],
        "weights": [layer.name for layer in layers(captured, which="weights")],
    }
