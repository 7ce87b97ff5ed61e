"""What every picture must be: all letters inside the figure, none on another, none too small to read."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def letters(figure):
    """Visible text with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = {text for axes in figure.axes for text in _hidden(axes)}
    found = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]
    boxes = [(t, t.get_window_extent(renderer)) for t in found]
    return [(t, box) for t, box in boxes if box.width > 0]


def _hidden(axes):
    """Labels that nobody sees: of ticks beyond the limits, and of axes that are switched off."""
    for axis in (axes.xaxis, axes.yaxis):
        shown = axis._update_ticks() if axes.axison else []
        for tick in axis.majorTicks + axis.minorTicks:
            if tick not in shown:
                yield from (tick.label1, tick.label2)
        if not axes.axison:
            yield axis.label


def assert_legible(figure, least=4.4, overlap=0.12):
    figure.set_dpi(100)
    found = letters(figure)
    width, height = figure.canvas.get_width_height()
    for text, box in found:
        said = f"{text.get_text()!r} at {box}"
        assert text.get_fontsize() >= least, f"{said} is too small: {text.get_fontsize()}"
        assert box.x0 >= -1 and box.x1 <= width + 1, f"{said} leaves the figure of {width} × {height}"
        assert box.y0 >= -1 and box.y1 <= height + 1, f"{said} leaves the figure of {width} × {height}"
    for k, (one, a) in enumerate(found):
        for other, b in found[:k]:
            common = max(0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0, min(a.y1, b.y1) - max(a.y0, b.y0))
            smaller = min(a.width * a.height, b.width * b.height)
            assert common <= overlap * smaller, f"{one.get_text()!r} lies on {other.get_text()!r}"


def images(figure):
    """The numbers of every image of a figure, panel by panel."""
    return [image.get_array() for axes in figure.axes for image in axes.images]


def texts(figure):
    """Everything that is written anywhere."""
    return [t.get_text() for t in figure.findobj(Text) if t.get_text()]
