"""`backplay demo`: what the package does, on the networks, pictures and reviews that come with it; offline.

Each part below makes one section of the page: its pictures, two sentences, its numbers. Numbers are kept as they are
computed, for `--json` and for the tests; the page only shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

import backplay as bp
from backplay import zoo
from backplay.cli.bar import Bar
from backplay.cli.options import command as declared
from backplay.cli.options import json_asked
from backplay.cli.output import check_pictures, finite, folder, print_json, whole
from backplay.cli.page import Section, Shot, write_page
from backplay.cli.texts import strongest
from backplay.models.bundled import NETWORKS
from backplay.zoo.reading import text_accuracy
from backplay.zoo.training import accuracy

SHOWN, COUNTED, TESTED, READ = 3, 12, 200, 40  # pictures drawn; behind a share; behind an accuracy; reviews
METHODS = {
    "vgg": ("rg", "sg", "gradient_x_input", "integrated_gradients", "lrp_gamma", "gradcam"),
    "resnet": ("rg", "sg", "gradient_x_input", "integrated_gradients", "lrp_gamma", "gradcam"),
    "vit": ("rg", "sg", "gradient_x_input", "integrated_gradients", "attn_lrp", "rollout"),
}
TAUS, RISKS, VARIANCE = (0.5, 0.7, 1.0, 2.0), (0.0, -0.5, -1.0, -2.0), 1.0
WALKS = 300
_WIDTH = 3.7  # inches of a picture: its letters are legible on a phone


@dataclass(frozen=True)
class Part:
    """What a part of the demo found: its section of the page, and its numbers by name."""

    section: Section
    numbers: dict[str, Any]


@declared("demo", "show what the package does, on bundled networks and pictures, offline; one page")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default=Path("out/demo"), show_default=True, help="Folder."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Fixes pictures and reviews.")
def command(out: Path, seed: int) -> int:
    check_pictures()

    folder(out)
    with Bar("demo", len(PARTS)) as bar:
        parts: dict[str, Part] = {}
        for name, make in PARTS.items():
            bar.say(f"demo: {name}")
            parts[name] = make(seed)
            bar.advance(1)
    numbers = {name: part.numbers for name, part in parts.items()}
    with whole(out / "report.html") as path:
        path.write_text(write_page("backplay demo", LEAD, [part.section for part in parts.values()]), encoding="utf-8")
    if json_asked():
        print_json({**numbers, "files": [str(out / "report.html")]})
    else:
        print("\n".join([*_lines(numbers), str(out / "report.html")]))
    return 0 if all(own["sound"] for own in numbers["tile"].values()) else 1


LEAD = (
    "Small networks that come with the package, explained by playing them backward: a walk starts at the chosen output "
    "and moves towards the pixels. Red speaks for the class, blue against it, white is zero; the bar below a map says "
    "how much its darkest colour stands for."
)


# ---------------------------------------------------------------- six methods on three networks


def methods(seed: int) -> Part:
    """Six methods side by side, with the objects' masks."""
    batch = zoo.images(COUNTED, seed=seed)
    shots: list[Shot] = []
    shares: dict[str, dict[str, float]] = {}
    for name in NETWORKS:
        network = bp.capture(zoo.load(name), batch.x)
        maps = {m: bp.explain(network, batch.x, batch.target, method=m) for m in METHODS[name]}
        shares[name] = {m: share_on(heat, batch.mask) for m, heat in maps.items()}
        titles = [bp.methods()[m].title for m in METHODS[name]]
        shown = {title: heat[:SHOWN] for title, heat in zip(titles, maps.values(), strict=True)}
        for half in (titles[:3], titles[3:]):
            figure = bp.view.grid(
                batch.x[:SHOWN],
                {title: shown[title] for title in half},
                batch.target[:SHOWN],
                batch.mask[:SHOWN],
                model=network,
                width=_WIDTH,
            )
            shots.append(Shot(f"{name}: {', '.join(half)}", png(figure)))
    rows = [["share on the object", *NETWORKS]]
    for m in dict.fromkeys(m for own in METHODS.values() for m in own):
        cells = [f"{shares[name][m]:.1%}" if m in shares[name] else "–" for name in NETWORKS]
        rows.append([bp.methods()[m].title, *cells])
    covered = float(batch.mask.double().mean())
    words = (
        f"Three networks name the same objects, outlined in the pictures; what lies outside is shaded in the maps. "
        f"The numbers tell which share of a map's absolute mass lies on the object, over {COUNTED} pictures of which "
        f"objects cover {covered:.0%}."
    )
    return Part(Section("Six methods, three networks", shots, words, rows), {"share_on_object": shares})


# ---------------------------------------------------------------- sweeps


def sweeps(seed: int) -> Part:
    """The temperature and the aversion to risk."""
    batch = zoo.images(1, seed=seed)
    game = bp.RoutingGame(zoo.load("vgg"))
    averse = bp.RoutingGame(zoo.load("vgg"), input_variance=VARIANCE)
    grids = {"tau": (game, TAUS), "risk": (averse, RISKS)}
    shots: list[Shot] = []
    numbers: dict[str, Any] = {}
    rows = [["keyword", "value", "share on the object", "walks that arrive"]]
    for keyword, (played, values) in grids.items():
        swept = bp.sweep(played, batch.x, batch.target, **{keyword: list(values)})
        shots.append(Shot(f"vgg, {_NAMED[keyword]}", png(bp.view.sweep(swept, width=_WIDTH))))
        found: dict[str, dict[str, float]] = {}
        for value, heat in zip(values, swept.values(), strict=True):
            arrives = float(played.replace(**{keyword: value}).play(batch.x, batch.target).marginal().sum())
            found[f"{value:g}"] = {"share_on_object": share_on(heat, batch.mask), "arrives": arrives}
            rows.append(
                [_NAMED[keyword], f"{value:g}", f"{found[f'{value:g}']['share_on_object']:.1%}", f"{arrives:.2%}"]
            )
        numbers[keyword] = found
    words = (
        "The temperature τ says how the walk chooses: below 1 it keeps to the largest contributions and the map is "
        "sharper, above 1 it spreads, and τ = 1 is LRP. With a negative λ the players shun what is uncertain under "
        f"input noise of variance {VARIANCE:g}."
    )
    return Part(Section("Sweeps of temperature and risk", shots, words, rows), numbers)


_NAMED = {"tau": "temperature τ", "risk": "risk λ"}


# ---------------------------------------------------------------- walks


def walks(seed: int) -> Part:
    """Walks that arrive at the image."""
    batch = zoo.images(1, seed=seed)
    shots: list[Shot] = []
    shares: dict[str, float] = {}
    for name in NETWORKS:
        drawn = bp.RoutingGame(zoo.load(name)).play(batch.x, batch.target).sample(WALKS, seed, arriving=True)
        shares[name] = float(drawn.share[0])
        shots.append(Shot(f"{name}: walks that arrive", png(bp.view.walks(drawn, width=_WIDTH))))
    rows = [["network", "walks that arrive"], *([name, f"{value:.3%}"] for name, value in shares.items())]
    words = (
        "Each line is a walk from the class back to a pixel, red in the turn of the player for the class and blue in "
        "that of the one against it. Most walks end on their way, so only those that arrive are drawn; the numbers say "
        "how few that are."
    )
    return Part(Section("Walks that arrive", shots, words, rows), {"arrives": shares})


# ---------------------------------------------------------------- the tile


def tile(seed: int) -> Part:
    """The network that looks at the tile in the corner."""
    batch = zoo.images(COUNTED, seed=seed, spurious=True)
    maps: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for learned, spurious in (("objects", False), ("tiles", True)):
        model = zoo.load("resnet", spurious)
        play = bp.RoutingGame(model).play(batch.x, batch.target)
        maps[learned] = play.attribution()
        numbers[learned] = {
            "share_on_tile": share_on(maps[learned], batch.cue),
            "share_on_object": share_on(maps[learned], batch.mask),
            "accuracy": _tested(model, seed),
            "sound": play.health().ok,
        }
    figure = bp.view.grid(
        batch.x[:SHOWN],
        {f"learned from {learned}": heat[:SHOWN] for learned, heat in maps.items()},
        batch.target[:SHOWN],
        scale="map",
        model=zoo.load("resnet"),
        width=_WIDTH,
    )
    rows = [["learned from", "on the tile", "on the object", "right, right tile", "right, wrong tile"]]
    for learned, own in numbers.items():
        shares = [f"{own[key]:.1%}" for key in ("share_on_tile", "share_on_object")]
        rows.append([learned, *shares, *(f"{value:.1%}" for value in own["accuracy"].values())])
    found = numbers["tiles"]["share_on_tile"] > numbers["objects"]["share_on_tile"]
    words = (
        "Both networks name nearly every object while the tile in the corner matches it, so their answers do not tell "
        "them apart. Their maps do: one looks at the tile, and a wrong tile misleads it."
        if found
        else "Two networks name the same objects beside a tile in the corner that gives them away. "
        "These maps do not tell them apart."
    )
    section = Section("Right for a wrong reason", [Shot("resnet, two trainings", png(figure))], words, rows)
    return Part(section, numbers)


def _tested(model: torch.nn.Module, seed: int) -> dict[str, float]:
    """How many unseen pictures are named rightly, by the tile that they show."""
    shown: dict[str, Any] = {"right tile": True, "wrong tile": "wrong"}
    return {
        name: accuracy(model, zoo.images(TESTED, seed=seed, start=COUNTED, spurious=kind))
        for name, kind in shown.items()
    }


# ---------------------------------------------------------------- the day


def text(seed: int) -> Part:
    """The text network that reads the day instead of the opinion."""
    reviews = zoo.texts(READ, seed=seed, spurious=True)
    wrong = zoo.texts(TESTED, seed=seed, spurious="wrong")
    shots: list[Shot] = []
    numbers: dict[str, Any] = {}
    for learned, spurious in (("opinions", False), ("days", True)):
        model = zoo.load("text", spurious)
        maps = bp.text.explain(model, model.tokenizer, reviews.texts, reviews.target.tolist())
        tops = [strongest(found) for found in maps]
        numbers[learned] = {
            "strongest_is_day": _mean([top == day for top, day in zip(tops, reviews.cue, strict=True)]),
            "strongest_is_opinion": _mean([top in own for top, own in zip(tops, reviews.decisive, strict=True)]),
            "right_day": text_accuracy(model, reviews),
            "wrong_day": text_accuracy(model, wrong),
        }
        shots.append(Shot(f"learned from {learned}", html=maps[0].html()))
    rows = [["learned from", "strongest word is the day", "… the opinion", "right, right day", "right, wrong day"]]
    rows += [[learned, *(f"{value:.1%}" for value in own.values())] for learned, own in numbers.items()]
    words = (
        "Two readers judge the same review; in the reviews that one of them learned from, the day of the visit gives "
        f"the verdict away. Their maps show which word each went by, and the numbers count that over {READ} reviews."
    )
    return Part(Section("Which word decided", shots, words, rows), numbers)


def _mean(values: list[bool]) -> float:
    return sum(values) / len(values)


# ---------------------------------------------------------------- distances


def distance(seed: int) -> Part:
    """Two trainings apart, and a network apart from itself while it forgets."""
    batch = zoo.images(SHOWN, seed=seed, spurious=True)
    model = zoo.load("vgg")
    plays = [bp.RoutingGame(m).play(batch.x, batch.target) for m in (model, zoo.load("vgg", True))]
    h = bp.hellinger(*plays)
    # maps are left out: their correlations would ask for further libraries
    steps = list(bp.sanity.cascade(model, batch.x, batch.target, method={}, seed=seed))
    shots = [
        Shot("vgg: learned from objects against learned from tiles", png(bp.view.distance(h, width=_WIDTH))),
        Shot("vgg: layers drawn anew, from the output on", png(bp.view.cascade(steps, width=_WIDTH))),
    ]
    curve: list[dict[str, Any]] = [
        {"layer": None if s.layer is None else s.layer.name, **{g: float(d.mean()) for g, d in s.distance.items()}}
        for s in steps
    ]
    rows = [["forgotten up to", *(f"H, {game.upper()}" for game in steps[0].distance)]]
    rows += [[one["layer"] or "nothing", *(f"{one[game]:.3f}" for game in steps[0].distance)] for one in curve]
    near, far = float(h.distance.min()), float(h.distance.max())
    words = (
        "The Hellinger distance H compares the probabilities of all walks: it is 0 if two networks calculate alike and "
        f"1 if no walk is possible in both; the two trainings are {near:.2f} to {far:.2f} apart. When layer after "
        "layer forgets what it learned, the network moves away from itself."
    )
    numbers = {"distance": h.distance.tolist(), "surviving": h.surviving.tolist(), "cascade": curve}
    return Part(Section("How far apart two calculations are", shots, words, rows), finite(numbers))


PARTS: dict[str, Callable[[int], Part]] = {
    "methods": methods,
    "sweeps": sweeps,
    "walks": walks,
    "tile": tile,
    "text": text,
    "distance": distance,
}


def share_on(heat: Tensor, mask: Tensor) -> float:
    """How much of the maps' absolute mass, colours summed, lies on the masks (B, H, W); the mean over the samples."""
    mass = heat.sum(1).abs().double()
    return float(((mass * mask).sum((1, 2)) / mass.sum((1, 2))).mean())


def png(figure: Any) -> bytes:
    from backplay.view import canvas

    return canvas.png(figure, dpi=200)


def _lines(numbers: Mapping[str, Any]) -> list[str]:
    """The numbers that matter most, a line each."""
    tiles, days = numbers["tile"], numbers["text"]
    best = {name: max(own, key=own.__getitem__) for name, own in numbers["methods"]["share_on_object"].items()}
    apart, cascade = numbers["distance"]["distance"], numbers["distance"]["cascade"]
    return [
        "most relevance on the object: " + ", ".join(f"{name} {m}" for name, m in best.items()),
        "walks that arrive: " + ", ".join(f"{name} {s:.2%}" for name, s in numbers["walks"]["arrives"].items()),
        *(
            f"resnet that learned from {k}: {own['share_on_tile']:.1%} of the relevance on the tile; "
            f"{own['accuracy']['wrong tile']:.1%} right beside a wrong tile"
            for k, own in tiles.items()
        ),
        *(
            f"reader that learned from {k}: the day is the strongest word in {own['strongest_is_day']:.1%} of reviews; "
            f"{own['wrong_day']:.1%} right on a wrong day"
            for k, own in days.items()
        ),
        f"distance of the two vgg: {min(apart):.3f} to {max(apart):.3f}; all forgotten: RG {cascade[-1]['rg']:.3f}",
    ]
