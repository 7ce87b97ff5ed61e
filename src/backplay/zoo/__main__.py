"""`python -m backplay.zoo train NAME`: train a network of the zoo and write its weights."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NoReturn

from backplay.zoo.networks import BUILDERS
from backplay.zoo.scenes import images
from backplay.zoo.training import accuracy, train
from backplay.zoo.weights import save

HELD_OUT = 2000


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="backplay.zoo", description="Networks and pictures that come with backplay.")
    command = parser.add_subparsers(dest="command", required=True).add_parser("train", help="train a network")
    command.add_argument("name", choices=list(BUILDERS))
    command.add_argument(
        "--spurious", action="store_true", help="with a cue in the background that gives the label away"
    )
    command.add_argument("--out", type=Path, help="file for the weights (default: NAME.safetensors)")
    command.add_argument("--seed", type=int, default=0, help="fixes pictures and training (default: %(default)s)")
    command.add_argument("--steps", type=int, help="instead of the recipe's number of steps")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    if options.seed < 0:
        parser.error(f"--seed {options.seed}: give a whole number from 0 up")
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps {options.steps}: give a whole number from 1 up")
    out = options.out or Path(f"{options.name}{'-spurious' if options.spurious else ''}.safetensors")
    if not out.parent.is_dir():
        parser.error(f"--out {out}: there is no folder {out.parent}; make it first")

    begin = time.perf_counter()
    model = train(options.name, options.spurious, options.seed, _show, options.steps)
    seconds = time.perf_counter() - begin
    print(file=sys.stderr)
    save(model, out)
    right = accuracy(model, images(HELD_OUT, "test", spurious=options.spurious))
    report = {"weights": str(out), "accuracy": right, "pictures": HELD_OUT, "seconds": seconds}
    print(json.dumps(report) if options.json else f"{out}: {right:.1%} of {HELD_OUT} unseen pictures, {seconds:.0f} s")
    return 0


def _show(what: str, done: int, of: int) -> None:
    """People see how far it is: one line on a terminal that is written over, one in fifty in a log."""
    if sys.stderr.isatty():
        print(f"\r{what} {done}/{of}   ", end="", file=sys.stderr, flush=True)
    elif done % max(1, of // 20) == 0:
        print(f"{what} {done}/{of}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
