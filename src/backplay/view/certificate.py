"""A certificate: what was put to the test, and whether anybody gains."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from backplay.errors import InputTypeError
from backplay.trajectory.certify import Certificate
from backplay.view.canvas import COLUMN, Picture, check_width, fitted, letters, picture, quiet
from backplay.view.colours import GREY, PURPLE


@picture
def certificate(found: Any, *, width: float | None = None) -> Figure:
    """Bars: the states that were put to the test, by kind. The title says the verdict and the largest gain."""
    if not isinstance(found, Certificate):
        raise InputTypeError(f"certificate takes what bp.certify(play) returns; got {type(found).__name__}.")
    rows = [*sorted(found.kinds.items()), *([("skipped", found.skipped)] if found.skipped or not found.kinds else [])]
    width = check_width(width, COLUMN)
    size = letters(width)
    gain = f"largest gain {float(found):.1e}, tolerance {found.tolerance:.0e}".replace("-", "−")
    lines = [fitted(text, width - 0.1, size, 1) for text in (found.verdict, gain)]
    height = (len(rows) * 1.6 + 7) * size / 72
    figure = Picture(figsize=(width, height), layout="constrained")
    axes = quiet(figure.subplots(), size)
    where = range(len(rows))
    counts = [count for _, count in rows]
    axes.barh(where, counts, color=[GREY if name == "skipped" else PURPLE for name, _ in rows], height=0.7)
    for k, count in enumerate(counts):
        axes.text(count, k, f" {count}", va="center", ha="left", fontsize=size)
    axes.set_yticks(where, [name for name, _ in rows])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(*counts, 1) * 1.15)
    axes.set_xlabel("states tried", fontsize=size)
    axes.set_title(
        "\n".join(text for text, _ in lines),
        fontsize=min(s for _, s in lines),
        color="black" if found.ok else "#b2182b",
    )
    return figure
