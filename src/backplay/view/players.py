"""Both players at the input: what each has collected, and their difference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from backplay.view.canvas import Tiles, check_width, letters, picture
from backplay.view.colours import Plane, bar_room, scale_of
from backplay.view.heatmap import draw_image, draw_map
from backplay.view.images import check_sample, looks_of, planes, shown_image
from backplay.view.play import check_pixels, check_play


@picture
def players(
    play: Any,
    image: Any = None,
    *,
    sample: int = 0,
    model: Any = None,
    mean: Any = None,
    std: Any = None,
    width: float | None = None,
) -> Figure:
    """The discounted visits `Γ₊` and `Γ₋` of both players on one scale, and `Γ₊ − Γ₋` on its own (def:occupation).

    The difference can be many powers of ten smaller than what it is the difference of: mind the numbers at the bars.
    """
    check_play(play, "players")
    check_pixels(play, "players")
    check_sample(sample, len(play.value), "the play")
    found = play.occupation(play.network.input)
    shown = shown_image(play.x if image is None else image, looks_of(model or play.network, mean, std), sample)
    plus, minus = (planes(t, len(play.value))[sample] for t in (found.plus, found.minus))
    (plus, minus), power = _scaled([plus, minus], float(found.log_scale[sample]))
    (apart,), apart_power = _scaled(
        [planes(found.difference, len(play.value))[sample]], float(found.difference_log_scale[sample])
    )
    width = check_width(width, 4.4)
    size = letters(width)
    names = ["image", "player +\nΓ₊", "player −\nΓ₋", "difference\nΓ₊ − Γ₋"]
    top = 0.06 + 2 * size * 1.2 / 72
    tiles = Tiles(
        [plus.shape[0] / plus.shape[1]],
        4,
        width,
        left=0.05,
        right=0.05,
        top=top,
        bottom=0.05 + bar_room(size),
        gap=0.08,
    )
    draw_image(tiles.tile(0, 0), shown)
    panels = [
        (plus, scale_of([plus, minus], "Reds", False, power)),
        (minus, scale_of([plus, minus], "Blues", False, power)),
        (apart, scale_of([apart], signed=True, power=apart_power)),
    ]
    for column, (plane, scale) in enumerate(panels, 1):
        drawn = draw_map(tiles.tile(0, column), plane, scale)
        scale.bar(tiles, drawn, tiles.x(column), tiles.foot + 0.05, tiles.panel)
    tiles.titles(0, dict(enumerate(names)), 1)
    return tiles.figure


def _scaled(given: list[Plane], log_scale: float) -> tuple[list[Plane], int]:
    """The planes times `exp(log_scale)` as numbers around 1 and one power of ten: the product may exceed any float."""
    largest = max(float(np.abs(p).max()) for p in given)
    if largest == 0:
        return given, 0
    log = log_scale / math.log(10)
    power = math.floor(log + math.log10(largest))
    return [p * 10 ** (log - power) for p in given], power
