"""Every kind of picture, drawn from what comes with the package: `python -m backplay.view.gallery --out DIR`.

Among them are the pictures of the paper that need no ImageNet: the trajectory figure, the two worked examples, maps of
six methods, a sweep of the temperature, and how the distance grows under input noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import backplay as bp
from backplay import zoo
from backplay.view.canvas import COLUMN, Picture, letters, picture, quiet
from backplay.view.colours import MINUS, PLUS

METHODS = ("rg", "sg", "gradient_x_input", "integrated_gradients", "lrp_gamma", "gradcam")
NOISE = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network of the paper's worked examples and its input.

    Unit 1 of its second layer has the weights 7, 2 and −1; before it, two units are worth 1 each and the third is
    closed: it would get 40 and pay 100. (fig:Stopping-Game-illustration, fig:Routing-Game-illustration)
    """
    layers = [[[1, 0], [3, -1], [40, -50]], [[2, 1, 3], [7, 2, -1]], [[1, 1]]]
    linear = [nn.Linear(len(rows[0]), len(rows), bias=False, dtype=torch.float64) for rows in layers]
    with torch.no_grad():
        for layer, rows in zip(linear, layers, strict=True):
            layer.weight.copy_(torch.tensor(rows))
    model = nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2])
    return model.eval(), torch.tensor([[1.0, 2.0]], dtype=torch.float64)


def trajectory() -> Figure:
    """fig:game-trajectory-distribution: the walk on the game graph, and the map that it integrates to."""
    model, x = example()
    return bp.view.game(bp.RoutingGame(model, epsilon=0.0).play(x, 0))


def stopping_game() -> Figure:
    """fig:Stopping-Game-illustration."""
    model, x = example()
    return bp.view.game(bp.StoppingGame(model).play(x, 0), around=("2", 1))


def routing_game() -> Figure:
    """fig:Routing-Game-illustration."""
    model, x = example()
    return bp.view.game(bp.RoutingGame(model, epsilon=0.0).play(x, 0), around=("2", 1))


def grid() -> Figure:
    """fig:qualitative, on the zoo: six methods on five pictures."""
    model, batch = zoo.load("vgg"), zoo.images(5)
    maps = {name: bp.explain(model, batch.x, batch.target, method=name) for name in METHODS}
    logits = model(batch.x).gather(1, batch.target[:, None])
    return bp.view.grid(batch.x, maps, batch.target, batch.mask, values=logits, model=model)


def heatmap() -> Figure:
    """A map beside its image."""
    model, batch = zoo.load("resnet"), zoo.images(1, start=2)
    return bp.RoutingGame(model).play(batch.x, batch.target).plot()


def overlay() -> Figure:
    """A map over its image."""
    model, batch = zoo.load("vgg"), zoo.images(1, start=4)
    return bp.view.heatmap(bp.explain(model, batch.x, batch.target, method="gradcam"), batch.x, over=True, model=model)


def sweep() -> Figure:
    """fig:qualitative-sweeps, on the zoo: the temperature."""
    batch = zoo.images(1)
    return bp.sweep(bp.RoutingGame(zoo.load("vgg")), batch.x, batch.target, tau=[0.5, 0.7, 1.0, 2.0]).plot()


def players() -> Figure:
    """Both players' visits and their difference."""
    batch = zoo.images(1)
    return bp.view.players(bp.RoutingGame(zoo.load("vgg")).play(batch.x, batch.target))


def walks() -> Figure:
    """Walks over the image."""
    batch = zoo.images(1)
    return bp.RoutingGame(zoo.load("vgg")).play(batch.x, batch.target).sample(400).plot()


def flow() -> Figure:
    """The flow of walks through a ViT."""
    batch = zoo.images(1)
    return bp.view.flow(bp.RoutingGame(zoo.load("vit")).play(batch.x, batch.target))


def concepts() -> Figure:
    """What the channels of a late layer stand for."""
    batch = zoo.images(1)
    play = bp.RoutingGame(zoo.load("resnet")).play(batch.x, batch.target)
    return bp.concepts(play, "features.9", k=3, references=zoo.images(24, seed=1)).plot()


def circuit() -> Figure:
    """Which heads of a ViT the walk passes."""
    batch = zoo.images(1)
    play = bp.RoutingGame(zoo.load("vit")).play(batch.x, batch.target)
    return bp.circuit(play, [f"features.{k}.attention" for k in (1, 2, 3, 4)], by="head").plot()


def distance() -> Figure:
    """A network that learned from objects against one that learned from tiles."""
    batch = zoo.images(1, spurious=True)
    clean, cued = (bp.RoutingGame(zoo.load("vgg", s)).play(batch.x, batch.target) for s in (False, True))
    return bp.hellinger(clean, cued).plot()


def panels() -> Figure:
    """What `backplay explain` writes for a photograph."""
    model, batch = zoo.load("vgg"), zoo.images(1, start=3)
    maps = {bp.methods()[m].title: bp.explain(model, batch.x, batch.target, method=m) for m in METHODS}
    return bp.view.panels(batch.x, maps, notes={"RG": "18 % of walks arrive"}, title="box, value 4.7", model=model)


def cascade() -> Figure:
    """fig:hellinger-sanity, on the zoo: layers drawn anew, from the output on."""
    batch = zoo.images(2)
    return bp.view.cascade(bp.sanity.cascade(zoo.load("vgg"), batch.x, batch.target, method={}))


def cascade_deviation() -> Figure:
    """fig:hellinger-variance, on the zoo: how much that depends on the image."""
    batch = zoo.images(6)
    return bp.view.cascade(bp.sanity.cascade(zoo.load("vgg"), batch.x, batch.target, method={}), deviation=True)


def clusters() -> Figure:
    """Pictures with the tile of their class and with another one, as the network that learned from tiles plays them."""
    shown = [zoo.images(6, spurious=cue) for cue in (True, "wrong")]
    x, net = torch.cat([batch.x for batch in shown]), zoo.load("vit", spurious=True)
    game = bp.RoutingGame(net, epsilon=0.0)
    return bp.view.clusters(bp.hellinger_matrix([game.play(one[None], 0) for one in x]), x, groups=4, model=net)


def moments() -> Figure:
    """Noise on its way through a network."""
    batch = zoo.images(1)
    return bp.moments(zoo.load("resnet"), batch.x, 0.1).plot()


def certificate() -> Figure:
    """Nobody gains by deviating."""
    batch = zoo.images(1)
    return bp.certify(bp.RoutingGame(zoo.load("vgg")).play(batch.x, batch.target)).plot()


def robustness() -> Figure:
    """Input noise on networks of softer and softer gates."""
    batch = zoo.images(1)
    return bp.robustness(zoo.load("resnet"), batch.x, batch.target, noise=0.05).plot()


@picture
def noise() -> Figure:
    """fig:hellinger-input-noise, on the zoo: distances between a picture's play and that of the same with noise."""
    batch, networks = zoo.images(4), ("vgg", "resnet", "vit")
    blur = torch.randn(batch.x.shape, generator=torch.Generator().manual_seed(0))
    size = letters(2 * COLUMN)
    figure = Picture(figsize=(2 * COLUMN, 2.3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3, sharey=True), networks, strict=True):
        model = zoo.load(name)
        for game, colour in ((bp.StoppingGame(model), MINUS), (bp.RoutingGame(model), PLUS)):
            clean = game.play(batch.x, batch.target)
            found = [bp.hellinger(clean, game.play(batch.x + s * blur, batch.target)) for s in NOISE]
            label = "SG" if isinstance(game, bp.StoppingGame) else "RG"
            axes.plot(NOISE, [float(h.distance.mean()) for h in found], color=colour, label=f"{label}, H")
            axes.plot(
                NOISE,
                [float(h.surviving.mean()) for h in found],
                color=colour,
                ls=":",
                label=f"{label}, given survival",
            )
        axes.set(xscale="log", ylim=(0, 1.03))
        axes.set_title(name, fontsize=size)
        axes.set_xlabel("input noise σ", fontsize=size)
        quiet(axes, size * 0.9)
        axes.grid(color="0.92", lw=0.5)
    figure.axes[0].set_ylabel("distance", fontsize=size)
    figure.axes[-1].legend(fontsize=size * 0.8, frameon=False, loc="upper left")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        trajectory,
        stopping_game,
        routing_game,
        grid,
        heatmap,
        overlay,
        sweep,
        players,
        walks,
        flow,
        concepts,
        circuit,
        distance,
        panels,
        cascade,
        cascade_deviation,
        clusters,
        noise,
        moments,
        certificate,
        robustness,
    )
}


def main(arguments: list[str] | None = None) -> None:
    """Write every picture, or those that are named, as PNG and SVG."""
    parser = argparse.ArgumentParser(prog="python -m backplay.view.gallery", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(PICTURES)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out/pictures"), help="folder (default: %(default)s)")
    parser.add_argument("--dpi", type=float, default=200)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in PICTURES]
    if unknown:
        parser.error(f"there is no picture {unknown[0]!r}; there are {', '.join(PICTURES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        figure = PICTURES[name]()
        for kind in ("png", "svg"):
            figure.savefig(options.out / f"{name}.{kind}", dpi=options.dpi)
        print(options.out / f"{name}.png")  # noqa: T201


if __name__ == "__main__":
    main()
