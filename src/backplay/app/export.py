"""What the page shows, to take away: a figure as PNG, the numbers, and the lines of Python that make them."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

import backplay as bp
from backplay.app import html, script
from backplay.app.comparison import Compared
from backplay.app.explore import CHANNELS, At
from backplay.app.grounds import Words
from backplay.app.rivals import Rivals
from backplay.app.solved import Passing, Solved
from backplay.app.work import StoppedError
from backplay.errors import BackplayError
from backplay.text.maps import TokenMap
from backplay.view.canvas import Picture, letters, png, quiet
from backplay.view.colours import PURPLE

_DRAWING = threading.Lock()  # matplotlib's settings are those of the whole process


@dataclass(frozen=True)
class Exported:
    """Three files, and the lines once more to read."""

    name: str
    figure: bytes  # PNG
    numbers: bytes  # npz of pictures, JSON of sentences
    python: str

    @property
    def ending(self) -> str:
        return "npz" if self.numbers[:2] == b"PK" else "json"

    def look(self) -> str:
        """Links to save the files, and the lines to copy."""
        kinds = {"npz": "application/octet-stream", "json": "application/json"}
        links = [
            html.link("Picture (PNG)", f"{self.name}.png", self.figure, "image/png"),
            html.link(f"Numbers ({self.ending})", f"{self.name}.{self.ending}", self.numbers, kinds[self.ending]),
            html.link("Python", f"{self.name}.py", f"{self.python}\n".encode(), "text/x-python"),
        ]
        about = "The figure, its numbers, and the lines of Python that make them again."
        body = f'<p class="bp-links">{"".join(links)}</p>{html.code(self.python)}'
        return html.card("Export", about, body, "export")


def of_scene(solved: Solved, at: At = None, layer: str = "") -> Exported:
    """Of the first tab."""
    lines = [script.explore(solved.scene, solved.ground)]
    if isinstance(solved.ground, Words):
        figures = [lambda: bp.view.tokens(_token_map(solved)), lambda: bp.view.flow(solved.play)]
        if at is not None or layer:
            lines.append(script.inside_sentence(solved.scene, solved.ground, at, layer, CHANNELS))
    else:
        model = solved.ground.model.images
        figures: list[Callable[[], Figure]] = [
            lambda: bp.view.heatmap(solved.play, solved.play.x, model=model, width=6.0),
            lambda: bp.view.players(solved.play, model=model, width=6.0),
            lambda: bp.view.walks(solved.walks, model=model, width=6.0),
            lambda: bp.view.flow(solved.play, model=model, width=6.0),
        ]
        if at is not None:
            lines.append(script.at_pixel(at))
            figures.append(
                lambda: bp.view.walks(solved.ending_at(at).sample(40, arriving=True), model=model, width=6.0)
            )
        if layer:
            lines.append(script.in_layer(layer, CHANNELS))
            figures.append(lambda: bp.concepts(solved.play, layer, k=CHANNELS).plot(width=6.0))
    figures.append(lambda: _entropy(solved.rows))
    return Exported("map", _stacked(figures), _scene_numbers(solved, at, layer), "\n".join(lines))


def of_pair(pair: Compared) -> Exported:
    """Of the second tab."""
    h, numbers = pair.h, {"map_a": pair.a.heat, "map_b": pair.b.heat, "disagreement": pair.disagreement}
    plain = {
        "distance": float(h.distance[0]),
        "surviving": float(h.surviving[0]),
        "bc": float(h.bc[0]),
        "survival_a": float(h.survival_a[0]),
        "survival_b": float(h.survival_b[0]),
        "layers": [name for name, _ in h.by_layer],
        "bc_by_layer": [float(bc[0]) for _, bc in h.by_layer],
    }
    grounds = pair.a.ground, pair.b.ground
    lines = script.compare([pair.a.scene, pair.b.scene], grounds, pair.a.target)
    figure = _stacked([lambda: bp.view.distance(h, model=None if _is_text(pair.a) else pair.a.ground.model.images)])
    return Exported("distance", figure, _packed(numbers, plain, _is_text(pair.a)), lines)


def of_rivals(rivals: Rivals) -> Exported:
    """Of the third tab, as far as it has come."""
    there = dict(rivals.maps)  # while this is drawn another one may come
    numbers = {name: rivals.plane(name) for name in there}
    chosen = {name: params for name, params in rivals.chosen.items() if name in there}
    lines = script.methods(rivals.scene, rivals.ground, chosen, rivals.target)
    if isinstance(rivals.ground, Words):
        figures: list[Callable[[], Figure]] = [_drawing(found) for found in there.values()]
    else:
        maps = {bp.methods()[name].title: found for name, found in there.items()}
        x, model = rivals.ground.x, rivals.ground.model.images
        figures = [lambda: bp.view.panels(x, maps, model=model)]
    text = isinstance(rivals.ground, Words)
    return Exported("methods", _stacked(figures), _packed(numbers, {"target": rivals.target}, text), lines)


def _drawing(found: TokenMap) -> Callable[[], Figure]:
    return lambda: bp.view.tokens(found)


def _is_text(solved: Solved) -> bool:
    return isinstance(solved.ground, Words)


def _scene_numbers(solved: Solved, at: At, layer: str) -> bytes:
    plus, minus, log_scale = solved.players
    arrays = {"map": solved.heat, "plus": plus, "minus": minus, "arriving": solved.arriving}
    rows = solved.rows
    plain: dict[str, Any] = {
        "log_scale": log_scale,
        "value": solved.value,
        "target": solved.target,
        "cemetery": float(solved.play.cemetery[0]),
        "layers": [row.name for row in rows],
        "flow_plus": [row.plus for row in rows],
        "flow_minus": [row.minus for row in rows],
        "policy_entropy": [row.bits for row in rows],
    }
    if at is not None:
        plain["chosen"] = list(at)
        plain["chosen_share"] = float(solved.arriving[at])
    if layer:
        found = bp.concepts(solved.play, layer, k=CHANNELS)
        plain |= {"layer": layer, "channels": found.index[0].tolist(), "relevance": found.relevance[0].tolist()}
    if isinstance(solved.ground, Words):
        plain["tokens"] = list(solved.ground.tokens.tokens)
    return _packed(arrays, plain, _is_text(solved))


def _packed(arrays: dict[str, Any], plain: dict[str, Any], text: bool) -> bytes:
    """As JSON where the arrays are short lists, else as an npz file."""
    if text:
        lists = {name: np.asarray(array).tolist() for name, array in arrays.items()}
        return json.dumps(plain | lists, ensure_ascii=False, indent=1).encode()
    file = io.BytesIO()
    named: dict[str, Any] = arrays | {name: np.asarray(value) for name, value in plain.items()}
    np.savez_compressed(file, **named)
    return file.getvalue()


def _token_map(solved: Solved) -> TokenMap:
    ground = solved.ground
    assert isinstance(ground, Words)
    scores, goal = torch.from_numpy(solved.heat), ground.goal(solved.scene.target)
    return TokenMap(ground.tokens, scores, goal, solved.scene.game, solved.scene.keywords())


def _entropy(rows: Sequence[Passing]) -> Figure:
    """The policy entropy of each layer as bars."""
    size = letters(6.0)
    figure = Picture(figsize=(6.0, 0.5 + 0.2 * len(rows)), layout="constrained")
    axes = quiet(figure.subplots(), size)
    axes.barh([row.name for row in rows], [row.bits for row in rows], color=PURPLE, height=0.7)
    axes.invert_yaxis()
    axes.set_xlabel("policy entropy, bits", fontsize=size)
    return figure


def _stacked(figures: Sequence[Callable[[], Figure]]) -> bytes:
    """One PNG of several figures, one below the other; one that cannot be drawn is left out."""
    drawn: list[Image.Image] = []
    with _DRAWING:
        for make in figures:
            try:
                drawn.append(Image.open(io.BytesIO(png(make()))).convert("RGB"))
            except StoppedError:
                raise
            except BackplayError:  # no walk arrives, for one: the page says so
                continue
    width, gap = max(image.width for image in drawn), 24
    sheet = Image.new("RGB", (width, sum(image.height + gap for image in drawn) - gap), "white")
    top = 0
    for image in drawn:
        sheet.paste(image, ((width - image.width) // 2, top))
        top += image.height + gap
    file = io.BytesIO()
    sheet.save(file, format="png")
    return file.getvalue()
