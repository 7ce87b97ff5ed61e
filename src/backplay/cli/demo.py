"""`backplay demo`."""

from __future__ import annotations

import argparse

from backplay.cli.parser import Commands, add_command


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "demo", "explain generated pictures with a small network, offline", run)
    parser.add_argument(
        "--out", default="out/demo", metavar="DIR", help="folder for the results (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="fixes pictures and training (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    from backplay.demo import main

    return main(["--out", options.out, "--seed", str(options.seed), *(["--json"] if options.json else [])])
