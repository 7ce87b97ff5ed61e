"""`backplay zoo train`: make the bundled networks anew."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from backplay.cli.output import folder, print_json, whole
from backplay.cli.parser import Commands, add_command
from backplay.errors import FileError
from backplay.models.bundled import NETWORKS
from backplay.progress import Progress

if TYPE_CHECKING:
    from torch import nn

HELD_OUT = 1000


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "zoo", "train a bundled network anew", run)
    parser.add_argument("action", choices=("train",), help="what to do")
    parser.add_argument("name", choices=(*NETWORKS, "text"), help="which network")
    parser.add_argument(
        "--spurious", action="store_true", help="on pictures or texts with a cue that gives the class away"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the weights")
    parser.add_argument(
        "--seed", type=int, default=0, help="fixes pictures or texts, and training (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    from backplay.zoo.weights import save

    out: Path = options.out or Path(f"{options.name}{'-spurious' if options.spurious else ''}.safetensors")
    folder(out.parent)
    if out.is_dir():  # before the training, not after it
        raise FileError(f"--out {out} is a folder; name the file for the weights, {out / options.name}.safetensors.")
    begin = time.perf_counter()
    with Progress(f"training {options.name}") as progress:
        model, accuracy = _trained(options, lambda what, done, of: progress.say(f"{what}, {done} of {of}"))
        seconds = time.perf_counter() - begin
        with whole(out) as path:
            save(model, path)
        right = accuracy()
    if options.json:
        print_json({"weights": str(out), "accuracy": right, _what(options): HELD_OUT, "seconds": seconds})
    else:
        print(f"{out}: {right:.1%} of {HELD_OUT} unseen {_what(options)} right, trained in {seconds:.0f} s")
    return 0


def _what(options: argparse.Namespace) -> str:
    return "texts" if options.name == "text" else "pictures"


def _trained(
    options: argparse.Namespace, say: Callable[[str, int, int], None]
) -> tuple[nn.Module, Callable[[], float]]:
    """A network, and the share of what it has not seen that it gets right."""
    from backplay import zoo

    if options.name == "text":
        from backplay.zoo.reading import text_accuracy, train_text

        reader = train_text(options.spurious, options.seed, say)
        return reader, lambda: text_accuracy(reader, zoo.texts(HELD_OUT, "test", spurious=options.spurious))
    from backplay.zoo.training import accuracy, train

    model = train(options.name, options.spurious, options.seed, say)
    return model, lambda: accuracy(model, zoo.images(HELD_OUT, "test", spurious=options.spurious))
