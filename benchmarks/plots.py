"""A picture of each growth: seconds, and the ratio to the gradient."""

from pathlib import Path

from bars import Cases

COLOURS = {"gradient": "#7f7f7f", "Stopping map": "#1f77b4", "Routing anchor": "#d62728"}
WORDS = {"batch": "samples in a batch", "side": "side of the image", "layers": "layers", "tokens": "tokens"}


def draw(folder: Path, cases: Cases) -> None:
    """One file for each axis along which something grows."""
    import matplotlib

    matplotlib.use("Agg")
    grown = [c for c in cases.values() if c["section"] == "growth" and all(r["seconds"] for r in c["rows"])]
    for axis in dict.fromkeys(c["axis"] for c in grown):
        _picture(folder / f"growth-{axis}.png", axis, Cases((c["key"], c) for c in grown if c["axis"] == axis))


def _picture(file: Path, axis: str, cases: Cases) -> None:
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator, ScalarFormatter

    points = sorted(cases.values(), key=lambda c: c[axis])
    sizes = [c[axis] for c in points]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for what in [r["what"] for r in points[0]["rows"]]:
        rows = [next(r for r in c["rows"] if r["what"] == what) for c in points]
        style = {"color": COLOURS.get(what), "marker": "o", "markersize": 4, "label": what}
        left.plot(sizes, [r["seconds"] for r in rows], **style)
        right.plot(sizes, [r["ratio"] for r in rows], **style)
    left.set_yscale("log")
    left.set_ylabel("seconds")
    right.set_ylabel("times the gradient")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(WORDS.get(axis, axis))
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.suptitle(points[0]["network"])
    figure.savefig(file, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
