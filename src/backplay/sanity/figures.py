"""Figures of a run: fig:hellinger-sanity, fig:hellinger-variance, fig:hellinger-input-noise, maps, and distances.

Theory is drawn over what it speaks of (S35): the cemetery floor, an estimate of `H`, beside `H`; the bounds of
thm:rand-adf and thm:rand-routing beside the overlap `BC_ord` that arrives, in panels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backplay.bench.rows import TableCell
from backplay.errors import InputError
from backplay.sanity.config import Trial
from backplay.sanity.results import Results, label_of
from backplay.sanity.tables import TITLES, matrix_of
from backplay.view.canvas import Picture, fitted, picture, quiet
from backplay.view.colours import MINUS, PLUS
from backplay.view.networks import SIZE, draw_matrix, matrix_panels

if TYPE_CHECKING:  # who lacks matplotlib is told by backplay.view
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"sg": MINUS, "rg": PLUS}
STYLES = {"distance": "-", "surviving": ":", "permuted": "-.", "floor": "--", "ordinary": "-", "bound": "--"}
PANEL, HEIGHT = 2.6, 2.1  # inches a panel
ENTRY, LINE = 1.4, 0.16  # inches an entry of the legend
_LABELS = 16  # steps that are named
_CLOSE = 0.035  # of the axis: names of lines nearer than this would lie on each other
_PALETTE = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666")


def draw(folder: str | Path) -> dict[str, Figure]:
    """Every figure of a run, by the name of its file, from the rows that are there."""
    results = Results(folder)
    found: dict[str, Figure] = {}
    for trial in results.trials("cascade"):
        if all(len(results.cells(trial, network)) < 2 for network in results.networks(trial)):
            continue  # one step is no curve
        found[trial.name] = cascade_figure(results, trial)
        found[f"{trial.name}-spread"] = spread_figure(results, trial)
        if trial.methods:
            found[f"{trial.name}-maps"] = maps_figure(results, trial)
    for trial in results.trials("input-noise"):
        found[trial.name] = noise_figure(results, trial)
    for trial in results.trials("distances"):
        found[trial.name] = distances_figure(results, trial)
    if not found:
        raise InputError(f"{folder} holds no experiment that has a figure; backplay sanity table shows its numbers.")
    return found


# -------------------------------------------------------------------- curves


Draw = Callable[[str, "Axes"], None]  # of one network into one panel


@picture
def cascade_figure(results: Results, trial: Trial) -> Figure:
    """Distances step by step; thin lines are two networks that know nothing (fig:hellinger-sanity)."""
    shown = [name for name in ("distance", "surviving", "permuted", "floor") if results.measured(trial, name)]

    def distances(network: str, panel: Axes) -> None:
        _curves(results, trial, network, panel, shown)
        _references(results, network, panel)
        panel.set_ylim(0, 1.03)

    def overlaps(network: str, panel: Axes) -> None:
        _curves(results, trial, network, panel, ("ordinary", "bound"))
        panel.set_yscale("log")

    rows = {"distance of walks": distances}
    rows |= {"BC_ord, overlap that arrives": overlaps} if results.measured(trial, "ordinary") else {}
    return _framed(results, trial, rows, partial(_steps, results, trial))


@picture
def spread_figure(results: Results, trial: Trial) -> Figure:
    """The deviation over images, step by step, each network on a scale of its own (fig:hellinger-variance)."""

    def deviations(network: str, panel: Axes) -> None:
        _curves(results, trial, network, panel, ["distance", "surviving"], deviation=True)
        panel.set_ylim(bottom=0)

    return _framed(results, trial, {"deviation over images": deviations}, partial(_steps, results, trial))


@picture
def maps_figure(results: Results, trial: Trial) -> Figure:
    """Similarity of maps step by step: ranks solid, oriented gradients dotted (app:sanity-heatmap)."""

    def similarities(network: str, panel: Axes) -> None:
        cells = results.cells(trial, network)
        for k, label in enumerate(trial.methods):
            for readout, style in (("spearman", "-"), ("hog", ":")):
                means = [_mean(results.spread(cell, f"{label}.{readout}")) for cell in cells]
                colour, title = _PALETTE[k % len(_PALETTE)], f"{label}, {TITLES[readout]}"
                _line(panel, _places(cells), means, style, colour, title)
        panel.set_ylim(min(0.0, panel.get_ylim()[0]), 1.03)

    return _framed(results, trial, {"similarity of maps": similarities}, partial(_steps, results, trial))


@picture
def noise_figure(results: Results, trial: Trial) -> Figure:
    """Distances over σ; thin lines are the pairs of inputs of the same run (fig:hellinger-input-noise)."""
    shown = [name for name in ("distance", "surviving", "permuted") if results.measured(trial, name)]

    def distances(network: str, panel: Axes) -> None:
        _curves(results, trial, network, panel, shown)
        _pairs(results, network, panel)
        panel.set_xscale("log")
        panel.set_ylim(0, 1.03)

    def noise(network: str, panel: Axes) -> None:
        panel.set_xlabel("noise σ", fontsize=SIZE)

    return _framed(results, trial, {"distance of walks": distances}, noise)


def _framed(results: Results, trial: Trial, rows: Mapping[str, Draw], foot: Draw) -> Figure:
    """A column for each network, a row for each quantity under the name of its axis, one legend below all of them.

    `foot` says what is told off along the lowest panels.
    """
    networks = results.networks(trial)
    figure = Picture(figsize=(PANEL * len(networks) + 0.3, HEIGHT * len(rows) + 1.2), layout="constrained")
    axes: Any = figure.subplots(len(rows), len(networks), squeeze=False)
    for column, network in enumerate(networks):
        axes[0][column].set_title(fitted(network, PANEL, SIZE, 2)[0], fontsize=SIZE)
        for panel, draw_panel in zip(axes[:, column], rows.values(), strict=True):
            quiet(panel, SIZE * 0.9).grid(axis="y", color="0.9", lw=0.5)
            draw_panel(network, panel)
        for panel in axes[:-1, column]:
            panel.set_xticks([])
        foot(network, axes[-1][column])
    for panel, label in zip(axes[:, 0], rows, strict=True):
        panel.set_ylabel(label, fontsize=SIZE)
    _legend(figure, list(axes.flat))
    return figure


def _curves(
    results: Results,
    trial: Trial,
    network: str,
    axes: Axes,
    readouts: Sequence[str],
    deviation: bool = False,
) -> None:
    cells = results.cells(trial, network)
    places = _places(cells)
    for game in trial.games:
        for name in readouts:
            found = [results.spread(cell, f"{game}.{name}") for cell in cells]
            values = [math.nan if s is None else s.std if deviation else s.mean for s in found]
            if name == "floor" and not any(value > 0 for value in values):
                continue  # no gate closes: it says nothing
            _line(axes, places, values, STYLES[name], COLOURS[game], _title(game, name))


def _places(cells: Sequence[TableCell]) -> list[float]:
    """Where cells stand on the axis: at their σ, or one behind the other: chosen steps may lie far apart."""
    return [cell.given.get("sigma", float(k)) for k, cell in enumerate(cells)]


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], style: str, colour: str, label: str) -> None:
    if not all(math.isnan(value) for value in y):
        axes.plot(x, y, style, color=colour, marker="o", ms=1.8, lw=1.1, label=label)


def _title(game: str, readout: str) -> str:
    return f"{game.upper()} {TITLES[readout]}"


def _mean(found: Any) -> float:
    return math.nan if found is None else found.mean


def _references(results: Results, network: str, axes: Axes) -> None:
    """Two random networks, as thin lines in the colour of the game: solid for `H`, dotted for `H_surv`."""
    for trial in results.trials("double-random"):
        for game in trial.games:
            for name in ("distance", "surviving"):
                found = results.spread(results.cells(trial, network), f"{game}.{name}")
                if found is not None:
                    label = f"{_title(game, name)}, both random" if name == "distance" else None
                    axes.axhline(found.mean, color=COLOURS[game], lw=0.6, ls=STYLES[name], alpha=0.8, label=label)


def _pairs(results: Results, network: str, axes: Axes) -> None:
    """`H` of pairs of inputs, as thin dashed lines; names of lines that lie close together share a place."""
    for trial in results.trials("separability"):
        for game in trial.games:
            found = [(results.spread(c, f"{game}.distance"), c.given["pair"]) for c in results.cells(trial, network)]
            lines = sorted((spread.mean, name) for spread, name in found if spread is not None)
            groups: list[list[tuple[float, str]]] = []
            for line in lines:
                axes.axhline(line[0], color=COLOURS[game], lw=0.6, ls="--", alpha=0.7)
                if groups and line[0] - groups[-1][-1][0] < _CLOSE:
                    groups[-1].append(line)
                else:
                    groups.append([line])
            for group in groups:
                top = group[-1][0]
                axes.text(
                    0.02 if game == "sg" else 0.98,
                    top if top < 1 - _CLOSE else group[0][0] - 0.005,
                    ", ".join(name for _, name in group),
                    fontsize=SIZE * 0.7,
                    color=COLOURS[game],
                    ha="left" if game == "sg" else "right",
                    va="bottom" if top < 1 - _CLOSE else "top",
                    transform=axes.get_yaxis_transform(),
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4},  # over the curves
                )


def _steps(results: Results, trial: Trial, network: str, axes: Axes) -> None:
    """Steps by their number and the layer that they draw anew."""
    cells = results.cells(trial, network)
    every = -(-len(cells) // _LABELS)
    shown = [(place, cell) for place, cell in zip(_places(cells), cells, strict=True)][::-every]
    names = [fitted(label_of(cell), 1.2, SIZE * 0.85, 1)[0] for _, cell in shown]
    axes.set_xticks([place for place, _ in shown], names, rotation=90)
    axes.tick_params(axis="x", labelsize=SIZE * 0.8)
    axes.set_xlabel("drawn anew, from the output to", fontsize=SIZE)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend under all panels: what is drawn in any of them."""
    found: dict[str, Any] = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    width, height = figure.get_size_inches()
    columns = min(4, max(1, len(found)), int(width // ENTRY))
    lines = -(-len(found) // columns)
    figure.set_size_inches(width, height + LINE * max(0, lines - 2))  # the first two have their place
    figure.legend(
        found.values(), found.keys(), loc="outside lower center", ncols=columns, fontsize=SIZE * 0.9, frameon=False
    )


# -------------------------------------------------------------------- networks beside each other


@picture
def distances_figure(results: Results, trial: Trial) -> Figure:
    """Matrices of distances: a panel for each game, and below it the same up to the order of channels."""
    names = [network.name for network in results.config.networks]
    readouts = [name for name in ("distance", "permuted") if results.measured(trial, name)]
    figure, axes = matrix_panels(len(names), len(readouts), len(trial.games))
    for row, readout in enumerate(readouts):
        for column, game in enumerate(trial.games):
            entries = matrix_of(results, trial, f"{game}.{readout}")
            values = [[0.0 if a == b else _entry(entries, a, b) for b in names] for a in names]
            draw_matrix(axes[row][column], np.array(values), names, _title(game, readout))
    return figure


def _entry(entries: Any, a: str, b: str) -> float:
    return entries[a, b].value if (a, b) in entries else math.nan


def save(
    figures: dict[str, Figure], folder: Path, forms: Sequence[str] = ("png", "svg"), dpi: float = 200
) -> list[Path]:
    """Write figures into a folder, each in every format; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, figure in figures.items():
        for form in forms:
            path = folder / f"{name}.{form}"
            figure.savefig(path, dpi=dpi)
            written.append(path)
    return written
