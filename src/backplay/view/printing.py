"""Many sheets of panels as PNG files: what is the same on all of them is drawn once."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray

from backplay.entry import entries
from backplay.view.canvas import DOTS, STYLE
from backplay.view.images import Shown, looks_of
from backplay.view.panels import Content, Sheet, SheetPlan

_KEPT = 4  # layouts that are remembered


@entries
class Printer:
    """The pictures of `panels` as the bytes of PNG files, for photographs of one model.

    >>> printer = Printer(model)
    >>> content = printer.png(x, {"RG": game.attribute(x)}, title="cat")

    Titles, frames and bars are drawn once for each layout; images, maps and numbers for each photograph.
    """

    def __init__(self, model: Any = None, dpi: float = DOTS) -> None:
        self.looks, self.dpi = looks_of(model), dpi
        self._plates: dict[SheetPlan, _Plate] = {}

    def png(
        self, image: Any, maps: Mapping[str, Any], *, notes: Mapping[str, str] | None = None, title: str = ""
    ) -> bytes:
        """The first image of a batch and its maps, as `panels` draws them."""
        return encoded(self.colours(image, maps, notes=notes, title=title), self.dpi)

    def colours(
        self, image: Any, maps: Mapping[str, Any], *, notes: Mapping[str, str] | None = None, title: str = ""
    ) -> NDArray[np.uint8]:
        """(H, W, 3) the same before it is packed, which `encoded` may do in another thread."""
        content = Content.read(image, maps, notes, title, 0, self.looks, None)
        plate = self._plates.pop(content.plan, None) or _Plate(content.plan, self.dpi)
        self._plates[content.plan] = plate  # the last one used is the last to go
        while len(self._plates) > _KEPT:
            del self._plates[next(iter(self._plates))]
        return plate.print(content)


class _Plate:
    """A sheet with what never changes on it drawn already."""

    def __init__(self, plan: SheetPlan, dpi: float) -> None:
        with matplotlib.rc_context(STYLE):
            self.sheet = Sheet(plan)
        self.sheet.figure.set_dpi(dpi)
        self.canvas = FigureCanvasAgg(self.sheet.figure)
        for artist in self.sheet.changing:
            artist.set_visible(False)
        self.canvas.draw()
        self.blank: Any = self.canvas.copy_from_bbox(self.sheet.figure.bbox)
        for artist in self.sheet.changing:
            artist.set_visible(True)

    def print(self, content: Content) -> NDArray[np.uint8]:
        """(H, W, 3) the colours of a filled sheet."""
        self.sheet.fill(replace(content, shown=_bytes(content.shown)))
        self.sheet.sharpen(self.sheet.figure.dpi)
        self.canvas.restore_region(self.blank)
        renderer = self.canvas.get_renderer()
        for artist in self.sheet.changing:
            artist.draw(renderer)
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()  # the next sheet is drawn into the same memory


def _bytes(shown: Shown) -> Any:
    """Colours in the 8 bits that a picture has, which take half the time to draw; (H, W) grey stays as it is."""
    return np.round(shown * 255).astype(np.uint8) if shown.ndim == 3 else shown


def encoded(colours: NDArray[np.uint8], dpi: float) -> bytes:
    """(H, W, 3) as a PNG file.

    Rows are stored as differences from those above them, with runs of equal bytes shortened: that suits pictures with
    large even parts, and takes less time than Pillow, which tries every filter on every row.
    """
    height, width, _ = colours.shape
    plain = colours.reshape(height, -1)
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = 2  # the filter "up"
    rows[0, 1:] = plain[0]
    np.subtract(plain[1:], plain[:-1], out=rows[1:, 1:])
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)
    dots = round(dpi / 0.0254)  # a metre
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"pHYs", struct.pack(">IIB", dots, dots, 1)),
        (b"IDAT", packer.compress(rows.data) + packer.flush()),
        (b"IEND", b""),
    )
    chunks = [struct.pack(">I", len(data)) + kind + data + _sum(kind + data) for kind, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _sum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))
