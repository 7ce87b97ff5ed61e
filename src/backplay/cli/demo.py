"""`backplay demo`: the bundled networks on generated pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from backplay.cli.output import Progress, folder, print_json, whole
from backplay.cli.parser import Commands, add_command
from backplay.models.bundled import NETWORKS


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "demo", "explain generated pictures with bundled networks, offline", run)
    parser.add_argument(
        "--out", type=Path, default="out/demo", metavar="DIR", help="folder for the results (default: %(default)s)"
    )
    parser.add_argument("--network", choices=NETWORKS, default="resnet", help="which network (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="fixes the pictures (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    from backplay import demo

    out = folder(options.out)
    with Progress("explaining"):
        report, files = demo.run(options.network, options.seed)
    for name, data in files.items():
        with whole(out / name) as path:
            path.write_bytes(data)
    if options.json:
        print_json({**report, "files": [str(out / name) for name in files]})
    else:
        print("\n".join([*demo.lines(report), *(str(out / name) for name in files)]))
    return 0 if all(health["ok"] for health in report["health"].values()) else 1
