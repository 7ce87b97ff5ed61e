"""Token maps on a terminal: coloured where it can, numbers everywhere; in a notebook HTML instead."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from backplay.text.colours import colour, ink

if TYPE_CHECKING:
    from backplay.text.generation import GenerationMap
    from backplay.text.maps import TokenMap

_WIDE = 8  # characters of a number
_LONGEST = 16  # of a token's name


def show(html: str, text: str) -> None:
    """HTML where a notebook runs this, else the text on standard output."""
    display = _notebook()
    if display is None:
        sys.stdout.write(text + "\n")
    else:
        display.display(display.HTML(html))


def _notebook() -> Any:
    """IPython's module for display, if a kernel of Jupyter runs this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or "ZMQ" not in type(shell).__name__:
        return None
    import importlib

    return importlib.import_module("IPython.display")


def colourful() -> bool:
    """Whether standard output is a terminal that shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def text_map(found: TokenMap, coloured: bool) -> str:
    """The text with its scores: on colours, or one token a line."""
    if coloured:
        parts: list[str] = []
        for k, (piece, score) in enumerate(zip(found.source.pieces, found.scores.tolist(), strict=True)):
            parts.append(" " * (k > 0 and found.source.spaced[k]))
            parts.append(
                f"\x1b[2m{piece}\x1b[0m" if found.source.special[k] else _on(piece or "·", score / found.scale)
            )
        return f"{found.caption()}\n{''.join(parts)}"
    wide = max(len(piece) for piece in found.source.pieces)
    lines = [
        f"{piece or '·':>{wide}} {score:+.3g}" + "  (special)" * special
        for piece, score, special in zip(found.source.pieces, found.scores.tolist(), found.source.special, strict=True)
    ]
    return "\n".join([found.caption(), *lines])


def matrix(found: GenerationMap, coloured: bool) -> str:
    """A row for each token that was read, a column for each that was written."""
    names = [_short(piece) for piece in found.source.pieces]
    heads = [_short(piece) for piece in found.written]
    left = max(map(len, names))
    widths = [max(_WIDE, len(head)) for head in heads]
    lines = [
        found.caption(),
        " ".join([" " * left, *(f"{head:>{wide}}" for head, wide in zip(heads, widths, strict=True))]),
    ]
    for k, (name, row) in enumerate(zip(names, found.scores.tolist(), strict=True)):
        if k == found.prompt_length:
            lines.append("─" * (left + sum(widths) + len(widths)))
        cells = [_figure(score, wide, found.scale, coloured) for score, wide in zip(row, widths, strict=True)]
        lines.append(" ".join([f"{name:>{left}}", *cells]).rstrip())
    return "\n".join(lines)


def _figure(score: float, wide: int, scale: float, coloured: bool) -> str:
    if score != score:
        return " " * wide
    text = f"{score:+.2g}".rjust(wide)
    return _on(text, score / scale) if coloured else text


def _on(text: str, share: float) -> str:
    """Text on the colour of a score."""
    back = colour(share)
    front = ink(back)
    return f"\x1b[48;2;{back[0]};{back[1]};{back[2]};38;2;{front[0]};{front[1]};{front[2]}m{text}\x1b[0m"


def _short(text: str) -> str:
    text = text or "·"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
