"""Circuits as HTML: one drawing with inline styles, no script, nothing fetched, every text escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from backplay.circuits.geometry import Band, Box, Column, arrange, hue

if TYPE_CHECKING:
    from backplay.circuits.circuit import Circuit

_WIDE, _HIGH, _TOP, _LEFT, _BOX = 190, 460, 44, 8, 12  # pixels: a column, all boxes, above them, at the left, a box
_FRAME = "max-width:100%;overflow-x:auto;background:#fff;color:#111;font-family:system-ui,sans-serif"


def drawn(circuit: Circuit) -> str:
    """Layers as columns, thickness as the share of walks, red in the turn of + and blue in that of −."""
    geometry = arrange(circuit)
    steps = max(1, len(geometry.columns) - 1)
    width, height = _LEFT + _WIDE * (steps + 1), _TOP + _HIGH + 8
    parts = [_band(band, steps) for band in geometry.bands]
    parts += [_box(box, steps) for box in geometry.boxes]
    parts += [_column(column, steps) for column in geometry.columns]
    summary = escape(repr(circuit))
    return (
        f'<div style="{_FRAME}"><svg role="img" aria-label="{summary}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg><div style="font-size:12px;color:#555">{summary}<br>'
        f"{escape(circuit.title)}<br>Red: + is ahead; blue: − is. Thickness: share of the walks that come to a layer."
        "</div></div>"
    )


def _x(share: float, steps: int) -> float:
    return _LEFT + _WIDE * steps * share


def _y(share: float) -> float:
    return _TOP + _HIGH * share


def _band(band: Band, steps: int) -> str:
    """A ribbon whose edges are two like curves."""
    (left, right), (high, low) = band.x, band.y
    x0, x1 = _x(left, steps) + _BOX, _x(right, steps)
    y0, y1, thick, middle = _y(high), _y(low), max(0.6, _HIGH * band.thickness), (x0 + x1) / 2
    path = (
        f"M{x0:.1f} {y0:.1f}C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}v{thick:.1f}"
        f"C{middle:.1f} {y1 + thick:.1f} {middle:.1f} {y0 + thick:.1f} {x0:.1f} {y0 + thick:.1f}z"
    )
    colour, strength = hue(band.tone)
    return f'<path d="{path}" fill="{colour}" fill-opacity="{strength:.2f}">{_title(band.tooltip)}</path>'


def _box(box: Box, steps: int) -> str:
    colour, _ = hue(box.tone)
    x, y, height = _x(box.x, steps), _y(box.y), _HIGH * box.height
    text = (
        f'<text x="{x + _BOX + 4:.1f}" y="{y + height / 2 + 4:.1f}" font-size="11" paint-order="stroke" stroke="#fff" '
        f'stroke-width="3">{escape(box.label)}</text>'
    )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX}" height="{height:.1f}" fill="{colour}">'
        f"{_title(box.tooltip)}</rect>{text}"
    )


def _column(column: Column, steps: int) -> str:
    x = _x(column.x, steps)
    return (
        f'<text x="{x:.1f}" y="16" font-size="13" font-weight="600">{escape(column.name)}</text>'
        f'<text x="{x:.1f}" y="32" font-size="11" fill="#555">{escape(column.note)}</text>'
    )


def _title(tooltip: str) -> str:
    """What a browser shows under the pointer."""
    return f"<title>{escape(tooltip)}</title>"
