"""Token maps as HTML: inline styles alone, no script, nothing fetched, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from backplay.text.colours import colour, css, ink

if TYPE_CHECKING:
    from backplay.text.generation import GenerationMap
    from backplay.text.maps import TokenMap

_BOX = (
    "box-sizing:border-box;max-width:56em;margin:.5em 0;padding:.7em .9em;border:1px solid #d0d0d0;border-radius:6px;"
    "background:#fff;color:#111;font-family:system-ui,sans-serif;font-size:15px;line-height:1.5"
)
_SMALL = "font-size:12px;color:#555"
_SPECIAL = "border:1px dashed #767676;background:#fff;color:#555;font-size:11px;white-space:nowrap"
_STOPS = 20


def text_map(found: TokenMap) -> str:
    """A text on the colours of its scores, with what was explained above and the scale below."""
    source, scores = found.source, found.scores.tolist()
    spans: list[str] = []
    for k, (piece, score) in enumerate(zip(source.pieces, scores, strict=True)):
        gap = " " if k and source.spaced[k] else ""
        if k and (source.special[k] or source.special[k - 1]):
            gap = " "
        spans.append(gap + _token(piece, score, found.scale, source.special[k], k == found.position))
    return (
        f'<div style="{_BOX}"><div style="{_SMALL}">{escape(found.caption())}</div>'
        f'<div dir="auto" style="margin:.45em 0;line-height:2.1;overflow-wrap:anywhere">{"".join(spans)}</div>'
        f"{_legend(found.scale)}</div>"
    )


def _token(piece: str, score: float, scale: float, special: bool, here: bool) -> str:
    """One token; special ones are told apart by a dashed frame and bear their score as a number."""
    tooltip = f"{piece}: {_number(score)}" + " (explained here)" * here
    ring = ";outline:2px solid #111;outline-offset:1px" * here
    if special:
        return (
            f'<span title="{escape(tooltip)}" style="{_SPECIAL};padding:.15em .3em;border-radius:4px{ring}">'
            f'{escape(piece)} <span style="color:#555">{_number(score, 2)}</span></span>'
        )
    return (
        f'<span title="{escape(tooltip)}" style="{_shade(score, scale)};padding:.2em .12em;border-radius:3px;'
        f'border-left:1px solid #fff{ring}">{escape(piece) or "·"}</span>'
    )


def matrix(found: GenerationMap) -> str:
    """A table: a row for each token that was read, a column for each that was written."""
    source, scores, first = found.source, found.scores.tolist(), found.prompt_length
    head = "".join(
        f'<th style="padding:.2em .4em;font-weight:600;text-align:center;vertical-align:bottom" '
        f'title="{_told(goal.name, value)}">{escape(piece) or "·"}</th>'
        for goal, value, piece in zip(found.goals, found.values.tolist(), found.written, strict=True)
    )
    rows: list[str] = []
    for k, (piece, row) in enumerate(zip(source.pieces, scores, strict=True)):
        edge = "border-top:2px solid #111;" * (k == first)
        name = (
            f'<span style="{_SPECIAL};padding:.05em .25em;border-radius:4px">{escape(piece)}</span>'
            if source.special[k]
            else escape(piece) or "·"
        )
        cells = "".join(_cell(score, found.scale, edge) for score in row)
        rows.append(
            f'<tr><th scope="row" style="{edge}padding:.15em .6em .15em 0;font-weight:400;text-align:right;'
            f'white-space:nowrap">{name}</th>{cells}</tr>'
        )
    return (
        f'<div style="{_BOX};overflow-x:auto;max-width:100%"><div style="{_SMALL}">{escape(found.caption())}</div>'
        f'<table style="border-collapse:separate;border-spacing:1px;margin:.5em 0;font-size:13px;color:#111;'
        f'background:#fff"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        f"{_legend(found.scale)}</div>"
    )


def _cell(score: float, scale: float, edge: str) -> str:
    if score != score:  # not yet written when this token was
        return f'<td style="{edge}"></td>'
    return (
        f'<td style="{edge}{_shade(score, scale)};padding:.15em .4em;text-align:right;'
        f'font-variant-numeric:tabular-nums">{_number(score, 2)}</td>'
    )


def _told(name: str, value: float) -> str:
    return escape(f"{name}: logit {value:.4g}")


def _shade(score: float, scale: float) -> str:
    background = colour(score / scale)
    return f"background:{css(background)};color:{css(ink(background))}"


def _legend(scale: float) -> str:
    """The scale of colours, with its ends in numbers."""
    stops = ",".join(css(colour(2 * k / _STOPS - 1)) for k in range(_STOPS + 1))
    return (
        f'<div style="{_SMALL};display:flex;align-items:center;gap:.5em"><span>against {_number(-scale)}</span>'
        f'<span style="display:inline-block;width:9em;height:.75em;border:1px solid #d0d0d0;'
        f'background:linear-gradient(to right,{stops})"></span><span>{_number(scale)} for</span></div>'
    )


def _number(score: float, digits: int = 3) -> str:
    """With a sign; a true minus."""
    return f"{score:+.{digits}g}".replace("-", "−")


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page of such pieces."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title></head>'
        f'<body style="margin:1em;background:#fff">{"".join(parts)}</body></html>'
    )
