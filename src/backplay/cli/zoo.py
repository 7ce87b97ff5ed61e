"""`backplay zoo train`: make the bundled networks anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from backplay.cli.output import print_json
from backplay.cli.parser import Commands, add_command
from backplay.models.bundled import NETWORKS


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "zoo", "train a bundled network anew", run)
    parser.add_argument("action", choices=("train",), help="what to do")
    parser.add_argument("name", choices=NETWORKS, help="which network")
    parser.add_argument("--spurious", action="store_true", help="on pictures with a cue that gives the class away")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the weights")
    parser.add_argument("--seed", type=int, default=0, help="fixes pictures and training (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    from backplay.zoo import training

    report = training.train(options.name, spurious=options.spurious, out=options.out, seed=options.seed)
    if options.json:
        print_json(report)
    else:
        print(report)
    return 0
