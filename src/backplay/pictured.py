"""What draws itself: `.plot()`, and what notebooks show of it. Without matplotlib notebooks show the text."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING, Any

from backplay.errors import BackplayError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Pictured:
    """An object with a picture; `backplay.view` draws it and is imported when it is asked for."""

    __slots__ = ()

    def plot(self, **options: Any) -> Figure:
        """The object's picture as a matplotlib figure; options are those of its function in `bp.view`."""
        from backplay.view import plot

        return plot(self, **options)

    def _repr_png_(self) -> bytes | None:
        try:
            figure = self.plot()
            from backplay.view.canvas import png

            return png(figure)
        except BackplayError:  # no matplotlib, or nothing that can be drawn: the text is shown
            return None

    def _repr_html_(self) -> str | None:
        drawn = self._repr_png_()
        if drawn is None:
            return None
        image = f'<img alt="" style="max-width:100%" src="data:image/png;base64,{base64.b64encode(drawn).decode()}">'
        return f"<div>{image}<pre>{html.escape(repr(self))}</pre></div>"
