"""`backplay zoo`: write bundled pictures as files, and make the bundled networks anew."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backplay.cli.bar import Bar
from backplay.cli.options import json_asked, json_option, out_option
from backplay.cli.output import check_folder, folder, print_json, whole
from backplay.errors import FileError
from backplay.models.bundled import NETWORKS

if TYPE_CHECKING:
    from torch import Tensor, nn

HELD_OUT = 1000
_AT_ONCE = 50  # pictures in memory


@click.group(
    "zoo",
    help="Write bundled pictures as PNG files, or train a bundled network anew.",
    short_help="write bundled pictures as files; train a bundled network anew",
)
@json_option
def command() -> None:
    pass


@command.command(
    "images",
    help="Write bundled pictures as PNG files, with their class in the name: something to explain with zoo:vgg and the "
    "other bundled networks. A file that is there already is kept; a name that is taken gets a number.",
    short_help="Write bundled pictures as PNG files.",
)
@click.option(
    "-n", "n", type=int, default=3, show_default=True, metavar="N", help="How many; the classes come in turn."
)
@click.option("--spurious", is_flag=True, help="With the tile in the corner that gives the class away.")
@click.option("--seed", type=int, default=0, show_default=True, help="Other pictures of the same kind.")
@click.option("--split", default="test", show_default=True, metavar="NAME", help="train, val or test.")
@out_option()
@json_option
def images_command(n: int, spurious: bool, seed: int, split: Any, out: Path) -> int:
    from backplay import zoo
    from backplay.photographs import pillow

    zoo.images(min(n, 1), split, seed)  # refuses what it does not know, before a folder is made
    check_folder(out)
    pillow()
    written: list[dict[str, Any]] = []
    with Bar("drawing pictures", n) as bar:
        for start in range(0, n, _AT_ONCE):
            batch = zoo.images(min(_AT_ONCE, n - start), split, seed, spurious=spurious, start=start)
            for k, (x, target) in enumerate(zip(zoo.picture(batch.x), batch.target.tolist(), strict=True)):
                name = zoo.CLASSES[target]
                path = _written(x, folder(out), f"{name}-{start + k}{'-tile' if spurious else ''}")
                written.append({"image": str(path), "class": name, "target": target})
                bar.advance(1)
    if json_asked():
        print_json({"out": str(out), "split": split, "seed": seed, "spurious": spurious, "pictures": written})
    else:
        for one in written:
            print(one["image"])
    return 0


def _written(colours: Tensor, out: Path, stem: str) -> Path:
    """The file of a picture, (3, H, W) in [0, 1]: under its name, or behind a number where something else has that."""
    from backplay.photographs import pillow

    pixels = (colours * 255).round().byte().permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    pillow().fromarray(pixels).save(buffer, format="PNG")
    for k in itertools.count(1):
        path = out / (f"{stem}.png" if k == 1 else f"{stem}-{k}.png")
        if path.is_file() and path.read_bytes() == buffer.getvalue():
            return path
        if not path.exists():
            with whole(path) as unfinished:
                unfinished.write_bytes(buffer.getvalue())
            return path
    raise AssertionError


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
