"""Figures of a run: fig:hellinger-sanity, fig:hellinger-variance, fig:hellinger-input-noise, maps, and distances.

Theory is drawn over what it speaks of (S35): the cemetery floor, an estimate of `H`, beside `H`; the bounds of
thm:rand-adf and thm:rand-routing beside the overlap `BC_ord` that arrives, in panels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from backplay.errors import InputError
from backplay.sanity.config import Trial
from backplay.sanity.results import Results
from backplay.sanity.tables import TITLES, matrix_of
from backplay.view.canvas import Picture, fitted, picture, quiet
from backplay.view.colours import MINUS, PLUS
from backplay.view.networks import SIZE, draw_matrix, matrix_panels

COLOURS = {"sg": MINUS, "rg": PLUS}
STYLES = {"distance": "-", "surviving": ":", "permuted": "-.", "floor": "--", "ordinary": "-", "bound": "--"}
PANEL, HEIGHT = 2.6, 2.1  # inches a panel
_LABELS = 12  # layers that are named
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


@picture
def cascade_figure(results: Results, trial: Trial) -> Figure:
    """Distances step by step; thin lines are two networks that know nothing (fig:hellinger-sanity)."""
    theory = results.measured(trial, "ordinary")
    shown = [name for name in ("distance", "surviving", "permuted", "floor") if results.measured(trial, name)]
    networks = results.networks(trial)
    figure, axes = _panels(networks, 2 if theory else 1)
    for column, network in enumerate(networks):
        panel = axes[0][column]
        _curves(results, trial, network, panel, shown)
        _references(results, network, panel)
        panel.set_ylim(0, 1.03)
        if theory:
            _curves(results, trial, network, axes[1][column], ("ordinary", "bound"))
            axes[1][column].set_yscale("log")
        _steps(results, trial, network, axes[-1][column])
        for row in axes[:-1]:
            row[column].set_xticks([])
    axes[0][0].set_ylabel("distance of walks", fontsize=SIZE)
    if theory:
        axes[1][0].set_ylabel("BC_ord, overlap that arrives", fontsize=SIZE)
    _legend(figure, [row[-1] for row in axes])
    return figure


@picture
def spread_figure(results: Results, trial: Trial) -> Figure:
    """The deviation over images, step by step, each network on a scale of its own (fig:hellinger-variance)."""
    networks = results.networks(trial)
    figure, axes = _panels(networks)
    for column, network in enumerate(networks):
        _curves(results, trial, network, axes[0][column], ["distance", "surviving"], deviation=True)
        axes[0][column].set_ylim(bottom=0)
        _steps(results, trial, network, axes[0][column])
    axes[0][0].set_ylabel("deviation over images", fontsize=SIZE)
    _legend(figure, [axes[0][-1]])
    return figure


@picture
def maps_figure(results: Results, trial: Trial) -> Figure:
    """Similarity of maps step by step: ranks solid, oriented gradients dotted (app:sanity-heatmap)."""
    networks = results.networks(trial)
    figure, axes = _panels(networks)
    for column, network in enumerate(networks):
        cells = results.cells(trial, network)
        for k, label in enumerate(trial.methods):
            for readout, style in (("spearman", "-"), ("hog", ":")):
                means = [results.spread(cell, f"{label}.{readout}") for cell in cells]
                _line(axes[0][column], [c.given["step"] for c in cells], [_mean(m) for m in means],
                      style, _PALETTE[k % len(_PALETTE)], f"{label}, {TITLES[readout]}")  # fmt: skip
        _steps(results, trial, network, axes[0][column])
    axes[0][0].set_ylabel("similarity of maps", fontsize=SIZE)
    _legend(figure, [axes[0][-1]])
    return figure


@picture
def noise_figure(results: Results, trial: Trial) -> Figure:
    """Distances over σ; thin lines are the pairs of inputs of the same run (fig:hellinger-input-noise)."""
    networks = results.networks(trial)
    figure, axes = _panels(networks)
    for column, network in enumerate(networks):
        panel = axes[0][column]
        shown = [name for name in ("distance", "surviving", "permuted") if results.measured(trial, name)]
        _curves(results, trial, network, panel, shown, key="sigma")
        _pairs(results, network, panel)
        panel.set_xscale("log")
        panel.set_ylim(0, 1.03)
        panel.set_xlabel("noise σ", fontsize=SIZE)
    axes[0][0].set_ylabel("distance of walks", fontsize=SIZE)
    _legend(figure, [axes[0][-1]])
    return figure


def _panels(networks: Sequence[str], rows: int = 1) -> tuple[Figure, list[list[Axes]]]:
    """A row of panels, or two, a column for each network."""
    figure = Picture(figsize=(PANEL * len(networks) + 0.3, HEIGHT * rows + 1.2), layout="constrained")
    axes: Any = figure.subplots(rows, len(networks), squeeze=False)
    for column, network in enumerate(networks):
        axes[0][column].set_title(fitted(network, PANEL, SIZE, 2)[0], fontsize=SIZE)
        for row in range(rows):
            quiet(axes[row][column], SIZE * 0.9).grid(axis="y", color="0.9", lw=0.5)
    return figure, [list(row) for row in axes]


def _curves(
    results: Results,
    trial: Trial,
    network: str,
    axes: Axes,
    readouts: Sequence[str],
    deviation: bool = False,
    key: str = "step",
) -> None:
    cells = results.cells(trial, network)
    for game in trial.games:
        for name in readouts:
            found = [results.spread(cell, f"{game}.{name}") for cell in cells]
            values = [math.nan if s is None else s.std if deviation else s.mean for s in found]
            if name == "floor" and not any(value > 0 for value in values):
                continue  # no gate closes: it says nothing
            _line(axes, [c.given[key] for c in cells], values, STYLES[name], COLOURS[game], _title(game, name))


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
                    axes.axhline(found.mean, color=COLOURS[game], lw=0.6, ls=STYLES[name], alpha=0.8)


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
                )


def _steps(results: Results, trial: Trial, network: str, axes: Axes) -> None:
    """Steps by the layer that they draw anew."""
    cells = results.cells(trial, network)
    every = -(-len(cells) // _LABELS)
    shown = [cell for k, cell in enumerate(cells) if (len(cells) - 1 - k) % every == 0]
    names = [fitted(cell.given["layer"] or "nothing", 1.0, SIZE * 0.85, 1)[0] for cell in shown]
    axes.set_xticks([cell.given["step"] for cell in shown], names, rotation=90)
    axes.tick_params(axis="x", labelsize=SIZE * 0.8)
    axes.set_xlabel("drawn anew, from the output to", fontsize=SIZE)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend under all panels."""
    found: dict[str, Any] = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    columns = min(4, max(1, len(found)))
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
