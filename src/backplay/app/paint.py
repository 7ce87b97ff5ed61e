"""Pictures in few milliseconds: numbers to colours to PNG, one pixel of the map a pixel of the picture.

The browser enlarges them. Figures of matplotlib take ten times as long; they are made when one is exported.
"""

from __future__ import annotations

import base64
import functools
import io

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from backplay.view.colours import MINUS, PLUS, Plane, Scale
from backplay.view.images import Shown
from backplay.view.walks import Trail

Pixels = NDArray[np.uint8]  # (H, W, 3)

_SIDE = 480  # pixels: the smaller side of a picture that has lines in it


@functools.cache
def table(name: str) -> Pixels:
    """(256, 3) the colours of a palette."""
    return colormaps[name](np.linspace(0, 1, 256), bytes=True)[:, :3]


def paint(plane: Plane, scale: Scale) -> Pixels:
    """A plane in the colours of its scale; grey where it is no number."""
    low = -scale.reach if scale.signed else 0.0
    place = (np.nan_to_num(plane) - low) / (scale.reach - low)
    found = table(scale.palette.name)[np.clip(np.rint(255 * place), 0, 255).astype(np.intp)]
    found[~np.isfinite(plane)] = 191
    return found


def shades(shown: Shown) -> Pixels:
    """An image from 0 to 1 as pixels."""
    colours = shown if shown.ndim == 3 else np.repeat(shown[..., None], 3, 2)
    return np.rint(255 * np.clip(colours, 0, 1)).astype(np.uint8)


def draw_walks(trail: Trail, shown: Shown) -> Pixels:
    """Walks over the faded image: every step that moves, in the colour of who made it, and a dot where each ends."""
    height, width = shown.shape[:2]
    size = max(2, round(_SIDE / min(height, width)))
    faded = Image.fromarray((255 - (255 - shades(shown)) * 0.55).astype(np.uint8))
    canvas = faded.resize((width * size, height * size), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(canvas, "RGBA")
    for walk in range(trail.places.shape[1]):
        _, places, turns = trail.line(walk)
        points = [(float((column + 0.5) * size), float((row + 0.5) * size)) for row, column in places]
        for k in range(len(points) - 1):
            if points[k] != points[k + 1]:
                pen.line([points[k], points[k + 1]], fill=_ink(int(turns[k + 1]), 110), width=2)
        if points:
            x, y = points[-1]
            pen.ellipse((x - 5, y - 5, x + 5, y + 5), fill=_ink(int(turns[-1]), 255), outline="white")
    return np.asarray(canvas)


def _ink(turn: int, alpha: int) -> tuple[int, int, int, int]:
    colour = PLUS if turn > 0 else MINUS
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return red, green, blue, alpha


def png(pixels: Pixels) -> bytes:
    """As the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png", compress_level=1)
    return file.getvalue()


def address(content: bytes, kind: str = "image/png") -> str:
    """A `data:` address, which holds the content itself: nothing is stored, nothing is fetched."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
