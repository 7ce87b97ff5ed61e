"""Pictures of the pages, drawn from the networks of the zoo.

    python docs/make_pictures.py [NAME …] [--out DIR]

writes them into docs/_generated, as `make docs` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Line3DCollection
from PIL import Image

import backplay as bp
from backplay import zoo
from backplay.view.canvas import Picture
from backplay.view.colours import MINUS, PLUS, scale_of
from backplay.view.heatmap import draw_image, draw_map
from backplay.view.images import looks_of, planes, shown_image
from backplay.view.walks import Trail

FOLDER = Path(__file__).parent / "_generated"
LEARNT = {False: "learned from objects", True: "learned from tiles"}
FIRST = 1  # which picture
WALKS = 80  # drawn in a stack
INK, PAPER = "#222222", "#ffffff"


def first() -> Figure:
    """Two networks, one picture, one right answer: their walks from the output to the pixels, and their maps."""
    batch = zoo.images(1, spurious=True, start=FIRST)
    figure = Picture(figsize=(11.5, 4.2), facecolor=PAPER)
    name = zoo.CLASSES[int(batch.target)]
    figure.text(0.0775, 0.80, f"“{name}”, say both", ha="center", va="bottom", fontsize=12, color=INK)
    for k, spurious in enumerate((False, True)):
        model = zoo.load("vit", spurious=spurious)
        assert model(batch.x).argmax(1) == batch.target, "the picture says that both are right"
        play = bp.RoutingGame(model, epsilon=0.1, tau=0.7).play(batch.x, batch.target)
        shown = shown_image(batch.x, looks_of(model), 0)
        left = 0.15 + 0.43 * k
        if k == 0:
            draw_image(_square(figure, 0.005, 0.145), shown)
        _stack(figure, left, play, shown)
        axes = _square(figure, left + 0.25, 0.165)
        plane = planes(play.attribution())[0]
        draw_map(axes, plane, scale_of([plane]), shown, over=True)
        axes.set_axis_off()
        figure.text(left + 0.2, 0.93, LEARNT[spurious], ha="center", fontsize=13, color=INK, weight="bold")
        for x, text in ((0.12, "its walks, from the answer to the pixels"), (0.3325, "its map")):
            figure.text(left + x, 0.02, text, ha="center", fontsize=10, color="#666666")
    return figure


def _square(figure: Figure, left: float, width: float) -> Any:
    """Axes for a picture, in the middle of the figure's height."""
    across, down = figure.get_size_inches()
    height = width * across / down
    axes = figure.add_axes((left, 0.45 - height / 2, width, height))
    axes.set_axis_off()
    return axes


def _stack(figure: Figure, left: float, play: Any, shown: Any) -> None:
    """Layers above each other, the picture at the bottom, and walks that fall from the output down to it."""
    axes: Any = figure.add_axes((left - 0.045, -0.16, 0.33, 1.3), projection="3d", computed_zorder=False)
    axes.patch.set_alpha(0)
    way = Trail(play.sample(WALKS, seed=1, arriving=True), 0, torch.arange(WALKS), shown)
    layers = len(way.names)
    height, width = shown.shape[:2]
    rows, columns = np.mgrid[0 : height + 1, 0 : width + 1]
    ground = np.zeros_like(rows, float)
    axes.plot_surface(
        columns, rows, ground, facecolors=shown, rstride=1, cstride=1, shade=False, antialiased=False, zorder=1
    )
    for level in (0.25, 0.5, 0.75):
        corners = np.array([[0, 0], [0, height], [width, height], [width, 0], [0, 0]], float)
        axes.plot(*corners.T, np.full(5, level), color="#bbbbbb", lw=0.6, zorder=2)
    answer = np.array([[width / 2, height / 2, 1.15]])
    for walk in range(WALKS):
        known, places, turns = way.line(walk)
        points = np.column_stack([places[:, 1], places[:, 0], 1 - known / (layers - 1)])
        points = np.vstack([answer, points])
        steps = np.stack([points[:-1], points[1:]], 1)
        colours = [PLUS if turn > 0 else MINUS for turn in turns]
        axes.add_collection3d(Line3DCollection(list(steps), colors=colours, lw=0.8, alpha=0.45, zorder=3))
        axes.scatter(
            *points[-1], s=12, color=colours[-1], edgecolors="white", linewidths=0.4, depthshade=False, zorder=4
        )
    axes.scatter(*answer[0], s=45, color=INK, depthshade=False, zorder=5)
    axes.set(xlim=(0, width), ylim=(height, 0), zlim=(0, 1.15))
    axes.set_box_aspect((1, 1, 1.25))
    axes.view_init(elev=24, azim=-62)
    axes.set_axis_off()


def modes() -> Figure:
    """The temperature, on a network with attention."""
    batch = zoo.images(1, start=3)
    game = bp.RoutingGame(zoo.load("vit"), epsilon=0.1)
    return bp.sweep(game, batch.x, batch.target, tau=[0.5, 0.7, 1.0, 2.0]).plot(width=8)


def compare() -> Figure:
    """A network that learned from objects against one that learned from tiles."""
    batch = zoo.images(1, spurious=True, start=5)
    plays = [bp.RoutingGame(zoo.load("vgg", s), epsilon=0.0).play(batch.x, batch.target) for s in (False, True)]
    return bp.hellinger(*plays).plot(width=5.5)


def cue() -> Figure:
    """Four pictures with a tile, as two networks calculate them."""
    batch = zoo.images(4, spurious=True, start=4)
    maps = {
        LEARNT[s]: bp.RoutingGame(zoo.load("vit", s), epsilon=0.1).attribute(batch.x, batch.target)
        for s in (False, True)
    }
    return bp.view.grid(batch.x, maps, batch.target, batch.cue, model=zoo.load("vit"), width=5.5)


def neuron() -> Figure:
    """What the channels of a late layer stand for."""
    batch = zoo.images(1)
    play = bp.RoutingGame(zoo.load("resnet")).play(batch.x, batch.target)
    return bp.concepts(play, "features.9", k=3, references=zoo.images(24, seed=1)).plot(width=8)


PICTURES: dict[str, Callable[[], Figure]] = {f.__name__: f for f in (first, modes, compare, cue, neuron)}


def main(arguments: list[str] | None = None) -> None:
    """Write every picture, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(PICTURES)}; all by default")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        save(PICTURES[name](), options.out / f"{name}.png")


def save(figure: Figure, file: Path) -> None:
    """A PNG of 256 colours: a third of the bytes, and no eye sees it."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
