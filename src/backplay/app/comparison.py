"""The second tab: two scenes side by side, and how far apart their walks are."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from html import escape

import numpy as np

import backplay as bp
from backplay.app import html
from backplay.app.grounds import Words
from backplay.app.paint import shades
from backplay.app.scene import Scene
from backplay.app.solved import Numbers, Solved, Table
from backplay.view.colours import number, scale_of


@dataclass(frozen=True, eq=False)
class Compared:
    """Two solved scenes, and the distance of their walks."""

    a: Solved
    b: Solved
    h: bp.Hellinger

    def held(self) -> AbstractContextManager[None]:
        """Nobody else plays on either model meanwhile."""
        return _held(self.a, self.b)

    @property
    def disagreement(self) -> Numbers:
        """The share of the squared distance that is decided at each pixel or token."""
        found = self.h.disagreement
        return self.a.ground.gather(next(iter(found.values())) if isinstance(found, dict) else found)


def compare(table: Table, a: Scene, b: Scene) -> Compared:
    """Both scenes played for one class: that of A."""
    first = table.solve(a)
    second = table.solve(replace(b, game=a.game, target=first.target))
    with _held(first, second):
        return Compared(first, second, bp.hellinger(first.play, second.play))


@contextmanager
def _held(*scenes: Solved) -> Generator[None]:
    with ExitStack() as held:
        models = {solved.scene.model: solved.ground.model for solved in scenes}
        for _, model in sorted(models.items()):  # in one order, so that no two wait for each other
            held.enter_context(model.lock)
        yield


def look(pair: Compared) -> str:
    """Both maps, the map of where they differ, and the distance as it grows."""
    planes = [pair.a.heat, pair.b.heat]
    scale = scale_of([np.atleast_2d(p) for p in planes], signed=True)
    sides = "".join(_side(name, solved, scale.reach) for name, solved in (("A", pair.a), ("B", pair.b)))
    name = escape(pair.a.ground.class_name(pair.a.target))
    about = f"Both are asked about {name}; the colours of both maps mean the same numbers."
    cards = [html.card("Side by side", about, f'<div class="bp-sides">{sides}</div>', "sides"), _where(pair)]
    return html.grid(cards) + _grown(pair)


def _side(name: str, solved: Solved, reach: float) -> str:
    scene = solved.scene
    modes = ", ".join(f"{mode}={value}" for mode, value in scene.modes) or "default modes"
    told = f"{name}: {scene.model}, {modes}" + (f", {scene.layers}" if scene.layers else "")
    caption = f"<p>{escape(told)}; value {number(solved.value)}</p>"
    if isinstance(solved.ground, Words):
        return f"<div>{caption}{html.tokens(solved.ground.tokens, solved.heat.tolist(), reach, pick=False)}</div>"
    scale = scale_of([np.array([[-reach, reach]])], signed=True)
    left = html.picture(shades(solved.ground.shown), f"the picture of {name}")
    right = html.heat(solved.heat, scale, f"the map of {name}")
    return f'<div>{caption}<div class="bp-pair">{left}{right}</div></div>'


def _where(pair: Compared) -> str:
    h, plane = pair.h, pair.disagreement
    surviving = float(h.surviving[0])
    rows = {
        "distance H": f"{float(h.distance[0]):.4f}",
        "of walks that arrive": "none arrives" if surviving != surviving else f"{surviving:.4f}",
        "overlap BC": f"{float(h.bc[0]):.4f}",
        "arrive in A": f"{100 * float(h.survival_a[0]):.3g} %",
        "arrive in B": f"{100 * float(h.survival_b[0]):.3g} %",
    }
    about = "The distance between the laws of both walks, from 0 (the same) to 1, and where they part."
    if isinstance(pair.a.ground, Words):
        reach = float(plane.max()) or 1.0
        body = html.tokens(pair.a.ground.tokens, plane.tolist(), reach, pick=False)
    else:
        body = f'<div class="bp-one">{html.heat(plane, scale_of([plane], signed=False), "where both differ")}</div>'
    return html.card("Where they differ", about, html.facts(rows) + body, "distance")


def _grown(pair: Compared) -> str:
    """The distance of the walks up to each layer."""
    rows = ""
    for name, bc in pair.h.by_layer:
        distance = float((1 - bc[0]).clamp(min=0).sqrt())
        rows += (
            f'<tr><th>{escape(name)}</th><td class="bp-flow"><i class="bp-bits" style="width:{100 * distance:.2f}%">'
            f"</i></td><td>{distance:.3f}</td></tr>"
        )
    table = f'<div class="bp-scroll"><table class="bp-rows">{rows}</table></div>'
    return html.card("Layer by layer", "How far apart the walks are once they have come this far.", table, "grown")
