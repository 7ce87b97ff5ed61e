"""Token maps as pictures: a bar for each token, or the matrix of a generation (`bp.view.tokens`)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from backplay.errors import InputTypeError, MissingLibraryError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = "RdBu_r"  # blue against red: told apart by readers of every kind of colour vision
_ROW = 0.24  # inches that a token takes
_EDGE = 1.3  # where the axis ends, in units of the largest score that is not a special token's
_ASIDE = "#6b6b6b"  # of special tokens


class Map(Protocol):
    """What is drawn: `TokenMap` or `GenerationMap` of `backplay.text`."""

    @property
    def source(self) -> Any: ...
    @property
    def scores(self) -> Tensor: ...
    @property
    def scale(self) -> float: ...
    def caption(self) -> str: ...


def tokens(t: Map) -> Figure:
    """A bar for each token of a token map, from top to bottom; of a generation the matrix of read × written tokens.

    Colours and bars are centred at zero. Special tokens are hatched and grey; a bar of theirs that is far longer than
    all others ends at the edge and bears its number.
    """
    if not hasattr(t, "source") or not hasattr(t, "scores"):
        raise InputTypeError(f"tokens draws a map of backplay.text, got {type(t).__name__}; draw one of a list: t[0].")
    return _matrix(t) if t.scores.ndim == 2 else _bars(t)


def _figure(width: float, height: float) -> tuple[Figure, Any, Any]:
    """A figure that no window belongs to, its axes and the colours."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError("pictures need matplotlib: pip install 'backplay[view]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot(), colormaps[_COLOURS]


def _bars(t: Map) -> Figure:
    names, scores, scale = _names(t.source.pieces), t.scores.tolist(), t.scale
    figure, axes, colours = _figure(6.4, 1.1 + _ROW * len(names))
    for k, (score, special) in enumerate(zip(scores, t.source.special, strict=True)):
        style = {"color": "white", "edgecolor": _ASIDE, "hatch": "////"} if special else _filled(colours, score / scale)
        axes.barh(k, score, height=0.8, linewidth=0.6, **style)
        if abs(score) > _EDGE * scale:
            side = 1 if score > 0 else -1
            axes.text(side * 1.02 * _EDGE * scale, k, f"{score:+.3g}", va="center", ha="left" if side > 0 else "right")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlim(-_EDGE * scale if min(scores) < 0 else -0.04 * scale, _EDGE * scale)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names)
    if min(scores) < -_EDGE * scale:  # the number of a bar that is cut off stands between it and its name
        axes.tick_params(axis="y", pad=48)
    _greyed(axes.get_yticklabels(), t.source.special)
    position = getattr(t, "position", None)
    if position is not None:  # where the explained logit stands
        axes.get_yticklabels()[position].set_fontweight("bold")
    axes.set_xlabel("score")
    axes.set_title(_wrapped(t.caption()), fontsize=9, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _filled(colours: Any, share: float) -> dict[str, Any]:
    return {"color": colours((max(-1.0, min(1.0, share)) + 1) / 2), "edgecolor": "#444444"}


def _matrix(t: Any) -> Figure:
    rows, columns = _names(t.source.pieces), _names(t.written)
    figure, axes, _ = _figure(2.2 + 0.5 * len(columns), 1.3 + _ROW * len(rows))
    image = axes.imshow(t.scores.numpy(), cmap=_COLOURS, vmin=-t.scale, vmax=t.scale, aspect="auto")
    axes.set_facecolor("#e4e4e4")  # not there yet
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.axhline(t.prompt_length - 0.5, color="black", linewidth=1.2)
    _greyed(axes.get_yticklabels(), t.source.special)
    axes.tick_params(length=0)
    axes.set_xlabel(_wrapped(t.caption(), 20 + 7 * len(columns)), fontsize=9)
    figure.colorbar(image, ax=axes, label="score", shrink=min(1.0, 8 / len(rows) + 0.3))
    return figure


def _greyed(labels: Sequence[Any], special: Sequence[bool]) -> None:
    for label, aside in zip(labels, special, strict=True):
        if aside:
            label.set_color(_ASIDE)
            label.set_fontstyle("italic")


def _names(pieces: Sequence[str]) -> list[str]:
    """Pieces as plain text: matplotlib would read two dollar signs as a formula."""
    return [(piece or "·").replace("$", r"\$") for piece in pieces]


def _wrapped(caption: str, width: int = 80) -> str:
    return "\n".join(textwrap.wrap(caption.replace("$", r"\$"), width))
