"""`backplay zoo train`: make the bundled networks anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backplay.cli.bar import Bar
from backplay.cli.options import json_asked, json_option
from backplay.cli.output import folder, print_json, whole
from backplay.errors import FileError
from backplay.models.bundled import NETWORKS

if TYPE_CHECKING:
    from torch import nn

HELD_OUT = 1000


@click.group("zoo", help="Train a bundled network anew.", short_help="train a bundled network anew")
@json_option
def command() -> None:
    pass


@command.command("train", help="Train a bundled network from nothing and write its weights.")
@click.argument("name", type=click.Choice([*NETWORKS, "text"]))
@click.option("--spurious", is_flag=True, help="On pictures or texts with a cue that gives the class away.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the weights.")
@click.option("--seed", type=int, default=0, show_default=True, help="Fixes pictures or texts, and training.")
@json_option
def train_command(name: str, spurious: bool, out: Path | None, seed: int) -> int:
    from backplay.zoo.weights import save

    out = out or Path(f"{name}{'-spurious' if spurious else ''}.safetensors")
    folder(out.parent)
    if out.is_dir():  # before the training, not after it
        raise FileError(f"--out {out} is a folder; name the file for the weights, {out / name}.safetensors.")
    begin = time.perf_counter()
    with Bar(f"training {name}") as bar:
        model, accuracy = _trained(name, spurious, seed, lambda what, done, of: bar.say(f"{what}, {done} of {of}"))
        seconds = time.perf_counter() - begin
        with whole(out) as path:
            save(model, path)
        right = accuracy()
    unseen = "texts" if name == "text" else "pictures"
    if json_asked():
        print_json({"weights": str(out), "accuracy": right, unseen: HELD_OUT, "seconds": seconds})
    else:
        print(f"{out}: {right:.1%} of {HELD_OUT} unseen {unseen} right, trained in {seconds:.0f} s")
    return 0


def _trained(
    name: str, spurious: bool, seed: int, say: Callable[[str, int, int], None]
) -> tuple[nn.Module, Callable[[], float]]:
    """A network, and the share of what it has not seen that it gets right."""
    from backplay import zoo

    if name == "text":
        from backplay.zoo.reading import text_accuracy, train_text

        reader = train_text(spurious, seed, say)
        return reader, lambda: text_accuracy(reader, zoo.texts(HELD_OUT, "test", spurious=spurious))
    from backplay.zoo.training import accuracy, train

    model = train(name, spurious, seed, say)
    return model, lambda: accuracy(model, zoo.images(HELD_OUT, "test", spurious=spurious))
