"""The page that shows what stands behind a table: the best, the median and the worst map of every row."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

import numpy as np

from backplay import photographs
from backplay.bench import config as configs
from backplay.bench import formats
from backplay.bench.metrics import Map, Metric, Sample
from backplay.bench.rows import SECONDS, Job, TableCell
from backplay.bench.runs import _order
from backplay.bench.store import read
from backplay.bench.tables import Finished, Row, build, words
from backplay.bench.work import MapWorker
from backplay.bench.work import heat_of as computed

BY = "al"  # what maps are ranked by; where it was not measured, the first column of the table that was

Scores = dict[TableCell, dict[str, list[tuple[float, int]]]]  # by cell and metric: value and sample


def page(folder: str | Path, table_limit: int | None = None) -> str:
    """All tables of a run, and behind each the maps of its rows; they are computed again."""
    folder = Path(folder)
    worker = MapWorker(_order(configs.kept(folder)))
    scores = _scores(folder)

    def shown(table: Finished, row: Row) -> str:
        label = f"{row.title} {words(row.line.params)}".strip()
        found = _figures(worker, row.line.cell, scores, table)
        if row.line.toggled not in (None, row.line.cell):
            found += _figures(worker, row.line.toggled, scores, table, "switched on, ")
        return f"<h3>{html.escape(label)}</h3>{found}" if found else ""

    return formats.page(build(folder)[:table_limit], shown)


def _scores(folder: Path) -> Scores:
    table = read(folder)
    names = ("model", "data", "split", "method", "params", "index", "metric", "value")
    found: Scores = {}
    for *cell, index, metric, value in zip(*(table.column(n).to_pylist() for n in names), strict=True):
        if value is not None:
            found.setdefault(TableCell(*cell), {}).setdefault(metric, []).append((value, index))
    return found


def _figures(worker: MapWorker, cell: TableCell, scores: Scores, table: Finished, prefix: str = "") -> str:
    """The best, the median and the worst sample of a cell."""
    found = scores.get(cell, {})
    columns = sorted(table.columns, key=lambda column: column.name != BY)
    by = next((column for column in columns if column.name in found and column.name != SECONDS), None)
    if by is None:
        return ""
    ranked = sorted(found[by.name], reverse=by.better == "lower")  # from the worst to the best
    chosen = {"best": ranked[-1], "median": ranked[len(ranked) // 2], "worst": ranked[0]}
    return "".join(_figure(worker, cell, f"{prefix}{name}", by, *one) for name, one in chosen.items())


def _figure(worker: MapWorker, cell: TableCell, name: str, by: Metric, score: float, index: int) -> str:
    sample, heat = computed(worker, Job(cell, index, ()))
    caption = html.escape(f"{name}: {sample.name}, {by.title} {score:.3f}")
    pictures = "".join(f'<img width="160" src="{_png(pixels)}">' for pixels in (_image(sample), _heat(heat)))
    return f"<figure>{pictures}<figcaption>{caption}</figcaption></figure>"


def _image(sample: Sample) -> np.ndarray:
    """The image with the outline of its mask, colours stretched to what can be seen."""
    x = sample.x.permute(1, 2, 0).double().numpy()
    low, high = x.min(), x.max()
    pixels = (255 * (x - low) / (high - low if high > low else 1)).astype(np.uint8)
    inside = np.pad(sample.mask, 1)
    core = inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    pixels[sample.mask & ~core] = (255, 220, 0)
    return pixels


def _heat(heat: Map) -> np.ndarray:
    """Red speaks for the class, blue against it."""
    limit = float(np.quantile(np.abs(heat), 0.995)) or float(np.abs(heat).max()) or 1.0
    scaled = np.clip(heat / limit, -1, 1)[..., None]
    ends = np.where(scaled >= 0, np.array([178, 24, 43]), np.array([33, 102, 172]))
    return (247 + (ends - 247) * np.abs(scaled)).astype(np.uint8)


def _png(pixels: np.ndarray) -> str:
    out = io.BytesIO()
    photographs.pillow().fromarray(pixels).save(out, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
