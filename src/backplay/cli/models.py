"""`backplay models`: what `--model` may name."""

from __future__ import annotations

import argparse
from typing import Any

from backplay.cli.output import print_json
from backplay.cli.parser import Commands, add_command
from backplay.models.sources import FACTORY, SOURCES, Source
from backplay.progress import Progress


def add(commands: Commands, given: list[str]) -> None:
    add_command(commands, "models", "list what --model may name; with --json, every name", run)


def run(options: argparse.Namespace) -> int:
    with Progress("asking the libraries"):
        found = [describe(source) for source in (*SOURCES.values(), FACTORY)]
    if options.json:
        print_json(found)
        return 0
    width = max(len(entry["form"]) for entry in found)
    for entry in found:
        print(f"{entry['form']:{width}}  {entry['about']}")
        print(f"{'':{width}}  {_state(entry)}")
    print("weights: --weights FILE (safetensors, or a state dict of torch.save), or --weights random")
    return 0


def describe(source: Source) -> dict[str, Any]:
    """A source as JSON; `names` is null where they cannot be listed."""
    return {
        "form": source.form,
        "about": source.about,
        "library": source.library,
        "version": source.version,
        "installed": source.installed,
        "names": source.names() if source.names and source.installed else None,
    }


def _state(entry: dict[str, Any]) -> str:
    if not entry["installed"]:
        return f"{entry['library']} is not installed: pip install 'backplay[models]'"
    names = entry["names"] or []
    listed = ", ".join(names) if len(names) < 10 else f"{len(names)} names, {names[0]} to {names[-1]}"
    library = f"{entry['library']} {entry['version']}" if entry["library"] else ""
    return "; ".join(part for part in (library, listed) if part) or "Python"
