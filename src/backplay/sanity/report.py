"""What a run leaves in its folder beside its rows: its tables and its figures."""

from __future__ import annotations

from pathlib import Path

from backplay.bench.store import write_whole
from backplay.errors import InputError
from backplay.sanity import figures, tables

TABLES, FIGURES = FOLDERS = ("tables", "figures")
FORMS = ("md", "csv")


def write(folder: str | Path) -> list[Path]:
    """Write all tables (`tables/tables.md`, `.csv`) and figures (`figures/*.png`, `.svg`) of a run into its folder."""
    folder = Path(folder)
    built = tables.build(folder)
    (folder / TABLES).mkdir(exist_ok=True)
    written = [folder / TABLES / f"tables.{form}" for form in FORMS]
    for path, form in zip(written, FORMS, strict=True):
        write_whole(path, tables.write(built, form).encode())
    return written + _draw(folder)


def _draw(folder: Path) -> list[Path]:
    """The figures; none where the experiments have none."""
    try:
        return figures.save(figures.draw(folder), folder / FIGURES)
    except InputError:  # no experiment of the run has a figure
        return []
