"""Pieces of the page: cards, pictures, bars, tokens. Every word from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import urlencode

import numpy as np

from backplay.app.paint import Pixels, address, paint, png, table
from backplay.text.colours import colour, css, ink
from backplay.text.tokens import Tokens
from backplay.view.colours import Plane, Scale, number


def card(title: str, about: str, body: str, name: str = "") -> str:
    """A panel with its title and one line that says what it shows."""
    mark = f' data-panel="{escape(name)}"' if name else ""
    hint = f'<p class="bp-hint">{about}</p>' if about else ""
    return f'<section class="bp-card"{mark}><h3>{escape(title)}</h3>{hint}{body}</section>'


def grid(parts: Iterable[str], kind: str = "") -> str:
    return f'<div class="bp-grid {kind}">{"".join(parts)}</div>'


def picture(pixels: Pixels, told: str, caption: str = "") -> str:
    """An image with what it shows in words, for those who cannot see it."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure><img alt="{escape(told)}" src="{address(png(pixels))}">{below}</figure>'


def heat(plane: Plane, scale: Scale, told: str, caption: str = "") -> str:
    """A map with its scale below."""
    return picture(paint(plane, scale), told, f"{caption}{bar(scale)}")


def pickable(plane: Plane, scale: Scale, told: str, at: tuple[int, ...] | None) -> str:
    """A map whose pixels can be chosen, by mouse or keys; a cross stands at the chosen one."""
    height, width = plane.shape
    row, column = at if at is not None and len(at) == 2 else (-1, -1)
    place = f"left:{100 * (column + 0.5) / width:.3f}%;top:{100 * (row + 0.5) / height:.3f}%"
    cross = f'<i class="bp-cross" style="{place}"{"" if row >= 0 else " hidden"}></i>'
    return (
        f'<figure><div class="bp-pick" role="application" tabindex="0" data-key="map" data-height="{height}" '
        f'data-width="{width}" data-row="{row}" data-column="{column}" aria-label="{escape(told)}. Arrow keys move, '
        f'Enter chooses a pixel.">'
        f'<img alt="{escape(told)}" src="{address(png(paint(plane, scale)))}">{cross}</div>'
        f"<figcaption>{bar(scale)}</figcaption></figure>"
    )


def bar(scale: Scale) -> str:
    """The colours of a scale with the numbers at its ends."""
    colours = table(scale.palette.name)[np.linspace(0, 255, 9).astype(int)]
    stops = ",".join(f"rgb({r},{g},{b})" for r, g, b in colours.tolist())
    reach = number(scale.reach, scale.power)
    low = f"−{reach}" if scale.signed else "0"
    ramp = f'<i style="background:linear-gradient(to right,{stops})"></i>'
    return f'<span class="bp-bar"><b>{low}</b>{ramp}<b>{reach}</b></span>'


def tokens(found: Tokens, scores: Sequence[float], reach: float, chosen: int | None = None, pick: bool = True) -> str:
    """A sentence on the colours of its scores; a token is a button that can be chosen."""
    spans: list[str] = []
    for k, (piece, score) in enumerate(zip(found.pieces, scores, strict=True)):
        ground = colour(score / reach if reach else 0.0)
        kind = " bp-special" if found.special[k] else ""
        style = f"background:{css(ground)};color:{css(ink(ground))}"
        told = f"{piece}: {number(score)}"
        pressed = f' aria-pressed="{"true" if k == chosen else "false"}"'
        if pick:
            spans.append(
                f'<button class="bp-token{kind}" data-token="{k}" data-key="token{k}" title="{escape(told)}" '
                f'style="{style}"{pressed}>{escape(piece) or "·"}</button>'
            )
        else:
            spans.append(f'<span class="bp-token{kind}" title="{escape(told)}" style="{style}">{escape(piece)}</span>')
    return f'<div class="bp-text" dir="auto">{"".join(spans)}</div>'


def thumbnails(pictures: Mapping[str, tuple[str, Pixels]], chosen: str) -> str:
    """Small pictures to choose from: by key, what each is called and its pixels."""
    buttons = "".join(
        f'<button class="bp-thumb" data-choose="{escape(key)}" data-key="{escape(key)}" title="{escape(name)}" '
        f'aria-pressed="{"true" if key == chosen else "false"}"><img alt="{escape(name)}" src="{address(png(pixels))}">'
        "</button>"
        for key, (name, pixels) in pictures.items()
    )
    return f'<div class="bp-thumbs" role="group" aria-label="Picture">{buttons}</div>'


def facts(rows: Mapping[str, str]) -> str:
    """Names and what they are, side by side."""
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(told)}</dd></div>" for name, told in rows.items())
    return f'<dl class="bp-facts">{cells}</dl>'


def error(words: str) -> str:
    """What went wrong, in one line."""
    return f'<p class="bp-error" role="alert">{escape(words)}</p>'


def note(words: str) -> str:
    return f'<p class="bp-note">{escape(words)}</p>'


def working(words: str) -> str:
    """What goes on, with a button that stops it."""
    return (
        f'<p class="bp-working" role="status"><span class="bp-dots"></span>{escape(words)} … '
        '<button class="bp-stop" data-stop="1" data-key="stop">Stop</button></p>'
    )


def behind(what: str, words: str) -> str:
    """A line that says what is older than the controls; the page's style makes `what` pale meanwhile."""
    return f'<p class="bp-behind" data-what="{what}">{escape(words)}</p>'


def state(scope: str, query: Mapping[str, str]) -> str:
    """What the address of the page is to say of a part of it; the page's script puts it there."""
    return f'<i class="bp-state" hidden data-scope="{escape(scope)}" data-query="{escape(urlencode(query))}"></i>'


def link(name: str, file: str, content: bytes, kind: str) -> str:
    """A file that the page itself holds, to save."""
    return f'<a class="bp-link" download="{escape(file)}" href="{address(content, kind)}">{escape(name)}</a>'


def code(lines: str) -> str:
    return (
        '<div class="bp-code"><button class="bp-copy" data-copy="1" data-key="copy">Copy</button>'
        f'<pre tabindex="0"><code>{escape(lines)}</code></pre></div>'
    )
