"""`backplay demo`: maps of generated pictures, a sweep, and a network that is right for a wrong reason.

Two networks of the zoo look at the same pictures, each of which shows an object and, in a corner, a tile whose colours
give its class away. Both name every class. One has learned from the objects; the other from the tiles, and its maps say
so before a picture with a wrong tile proves it.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

import backplay as bp
from backplay import zoo
from backplay.cli.output import folder, print_json, whole
from backplay.cli.parser import Commands, add_command
from backplay.errors import MissingLibraryError
from backplay.models.bundled import NETWORKS
from backplay.progress import Progress
from backplay.zoo.training import accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN, COUNTED, TESTED = 3, 24, 200  # pictures drawn, pictures behind each share, pictures behind each accuracy
TAUS = (0.5, 0.7, 1.0, 2.0)

CAPTIONS = {
    "maps.png": (
        "The network that learned from objects, explained in several ways. Red speaks for the class that is named over "
        "the picture, blue against it; white is neither. The temperature τ says how the walk chooses: below 1 it keeps "
        "to the largest contributions and the map is sharper, above 1 it spreads more evenly, and τ = 1 is LRP."
    ),
    "tile.png": (
        "Both networks on the same pictures, at τ = 1. If the relevance lies on the tile in the corner, the network "
        "looks at the tile: it is right for a wrong reason, and a wrong tile misleads it. The last column shows where "
        "the two walks end differently. The Hellinger distance compares the probabilities of all walks through the two "
        "networks: it is 0 if they agree, and 1 if no walk is possible in both."
    ),
}


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(commands, "demo", "explain generated pictures with bundled networks, offline", run)
    parser.add_argument(
        "--out", type=Path, default="out/demo", metavar="DIR", help="folder for the results (default: %(default)s)"
    )
    parser.add_argument("--network", choices=NETWORKS, default="resnet", help="which network (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="fixes the pictures (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    out = folder(options.out)
    with Progress("explaining"):
        report, files = explained(options.network, options.seed)
    for name, data in files.items():
        with whole(out / name) as path:
            path.write_bytes(data)
    if options.json:
        print_json({**report, "files": [str(out / name) for name in files]})
    else:
        print("\n".join([*_lines(report), *(str(out / name) for name in files)]))
    return 0 if all(health["ok"] for health in report["health"].values()) else 1


def explained(name: str, seed: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The report, and what it shows: each file's name and contents."""
    batch = zoo.images(COUNTED, seed=seed, spurious=True)
    clean, cued = (bp.RoutingGame(zoo.load(name, spurious)) for spurious in (False, True))
    gradient = bp.StoppingGame(clean.network(batch.x))
    plays = {"object": clean.play(batch.x, batch.target), "tile": cued.play(batch.x, batch.target)}
    maps = {learned_from: play.attribution().sum(1) for learned_from, play in plays.items()}
    shown = batch.x[:SHOWN], batch.target[:SHOWN]
    swept = bp.sweep(clean, *shown, tau=list(TAUS))
    apart = bp.hellinger(clean.play(*shown), cued.play(*shown))
    report = {
        "network": name,
        "pictures": [zoo.CLASSES[k] for k in shown[1].tolist()],
        "accuracy": {learned_from: _accuracy(name, learned_from == "tile", seed) for learned_from in plays},
        "share_on_object": {k: _share(heat, batch.mask) for k, heat in maps.items()},
        "share_on_tile": {k: _share(heat, batch.cue) for k, heat in maps.items()},
        "distance": apart.distance.tolist(),
        "health": {
            k: {"ok": h.ok, "summary": h.summary, **asdict(h)} for k, h in ((k, p.health()) for k, p in plays.items())
        },
    }
    pictures = {
        "maps.png": {
            "learned from objects:\ngradient (Stopping Game)": gradient.attribute(*shown).sum(1),
            **{f"Routing Game, τ = {point[0][1]:g}": heat.sum(1) for point, heat in swept.items()},
        },
        "tile.png": {
            "learned from objects": maps["object"],
            "learned from tiles": maps["tile"],
            "where the two calculations differ": apart.map().sum(1),
        },
    }
    files = {file: _png(_figure(batch, columns)) for file, columns in pictures.items()}
    return report, {**files, "report.html": _page(report, files).encode()}


def _accuracy(name: str, spurious: bool, seed: int) -> dict[str, float]:
    """How many unseen pictures are named rightly, by the tile that they show."""
    model = zoo.load(name, spurious)
    shown = {
        "right tile": zoo.images(TESTED, seed=seed, start=COUNTED, spurious=True),
        "wrong tile": zoo.images(TESTED, seed=seed, start=COUNTED, spurious="wrong"),
    }
    return {tile: accuracy(model, batch) for tile, batch in shown.items()}


def _share(heat: Tensor, mask: Tensor) -> float:
    """How much of the maps' absolute mass lies on the mask, on average."""
    mass = heat.abs()
    return ((mass * mask).sum((1, 2)) / mass.sum((1, 2))).mean().item()


def _figure(batch: zoo.Batch, columns: dict[str, Tensor]) -> Figure:
    """One row a picture: the picture, then its map in each column; red speaks for the class, blue against it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError("the demo draws with matplotlib: pip install 'backplay[view]'") from error

    width = 1 + len(columns)
    figure = Figure(figsize=(2.6 * width, 2.7 * SHOWN), layout="constrained")
    axes = figure.subplots(SHOWN, width, squeeze=False)
    for row, target in enumerate(batch.target[:SHOWN].tolist()):
        axes[row, 0].imshow(zoo.picture(batch.x[row]).permute(1, 2, 0).numpy())
        axes[row, 0].set_title(zoo.CLASSES[target])
        for axis, (title, maps) in zip(axes[row, 1:], columns.items(), strict=True):
            reach = float(maps[row].abs().quantile(0.995)) or 1.0
            axis.imshow(maps[row].numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach)
            axis.set_title(title, fontsize="medium")
    for axis in axes.flat:
        axis.set_axis_off()
    return figure


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=100)
    return file.getvalue()


def _lines(report: dict[str, Any]) -> list[str]:
    """The report as sentences."""
    found = [f"two networks of the zoo ({report['network']}), trained on objects, and on tiles that give them away"]
    for learned_from, right in report["accuracy"].items():
        share, body = report["share_on_tile"][learned_from], report["share_on_object"][learned_from]
        found.append(
            f"learned from {learned_from}s: {share:.1%} of the relevance on the tile, {body:.1%} on the object; "
            f"{right['right tile']:.1%} of unseen pictures right, {right['wrong tile']:.1%} if the tile is a wrong one"
        )
    near, far = min(report["distance"]), max(report["distance"])
    found.append(f"Hellinger distance of the two calculations: {near:.3f} to {far:.3f}")
    found += [f"learned from {k}s: {health['summary']}" for k, health in report["health"].items()]
    return found


def _conclusion(report: dict[str, Any]) -> str:
    """What the numbers say, as far as they do: other seeds and weights may say less."""
    share = report["share_on_tile"]
    if not share["tile"] > share["object"]:
        return "These maps do not tell the two networks apart."
    return (
        f"To conclude: the network that learned from tiles looks at the tile, where {share['tile']:.1%} of its "
        f"relevance lies, against {share['object']:.1%} of the other's. As long as every tile is right, its answers do "
        "not tell; its maps do."
    )


def _page(report: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """One file that needs no other."""
    text = "\n".join(f"<p>{html.escape(line)}</p>" for line in _lines(report))
    shown = "\n".join(
        f'<figure><img alt="{file}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"<figcaption>{html.escape(CAPTIONS[file])}</figcaption></figure>"
        for file, data in pictures.items()
    )
    style = "body{font:16px sans-serif;max-width:70em;margin:2em auto}img{max-width:100%}figure{margin:2em 0}"
    head = f'<meta charset="utf-8"><title>backplay demo</title><style>{style}</style>'
    body = f"<h1>backplay demo</h1>\n{text}\n<p>{html.escape(_conclusion(report))}</p>\n{shown}"
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>{body}</body></html>\n"
