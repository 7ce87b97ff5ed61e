"""`backplay methods`: every method by name."""

from __future__ import annotations

import argparse
from typing import Any

import backplay as bp
from backplay.cli.output import print_json
from backplay.cli.parser import Commands, add_command


def add(commands: Commands, given: list[str]) -> None:
    add_command(commands, "methods", "list the methods, their parameters and where they come from", run)


def run(options: argparse.Namespace) -> int:
    found = [describe(info) for info in bp.methods().values()]
    if options.json:
        print_json(found)
        return 0
    width = max(len(entry["name"]) for entry in found)
    for entry in found:
        print(f"{entry['name']:{width}}  {entry['family']}, for {' and '.join(entry['architectures'])}")
        for name, param in entry["params"].items():
            print(f"{'':{width}}    --{name.replace('_', '-')} {param['default']}: {param['range']}")
        print(f"{'':{width}}    {entry['reference']}")
    return 0


def describe(info: Any) -> dict[str, Any]:
    """A method as JSON."""
    return {
        "name": info.name,
        "family": info.family,
        "architectures": list(info.architectures),
        "params": {name: {"default": p.default, "range": p.range} for name, p in info.params.items()},
        "reference": info.reference,
    }
