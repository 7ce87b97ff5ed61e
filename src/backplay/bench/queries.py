"""Rows to look at: all of them, or what an SQL query on the table `rows` selects."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from backplay.bench.store import arrow, read
from backplay.errors import BackplayError, MissingLibraryError, first_line


class QueryError(BackplayError, ValueError):
    """A query that the database refuses."""


def select(folder: str | Path, query: str | None = None) -> Any:
    """The rows of a run as a `pyarrow.Table`; with a query, its answer: `select method, avg(value) from rows …`."""
    rows = read(folder)
    if query is None:
        return rows
    try:
        import duckdb
    except ImportError as error:
        raise MissingLibraryError("queries need DuckDB: pip install 'backplay[bench]'") from error
    # the query sees the rows and nothing else: no files, no network
    connection = duckdb.connect(config={"enable_external_access": "false"})
    connection.register("rows", rows)
    try:
        answer: Any = connection.sql(query)  # None of a statement that answers nothing
    except duckdb.Error as error:
        raise QueryError(
            f"the query fails: {first_line(error)}; the table is rows ({', '.join(rows.column_names)})."
        ) from error
    if answer is None:
        raise QueryError("the query fails: it answers nothing; give one that selects from rows.")
    return answer.to_arrow_table()


def text(table: Any, form: str) -> str:
    """A table as CSV, or as JSON lines."""
    if form == "json":
        return "".join(f"{json.dumps(row, ensure_ascii=False, default=str)}\n" for row in table.to_pylist())
    import pyarrow.csv

    arrow()
    out = io.BytesIO()
    pyarrow.csv.write_csv(table, out)
    return out.getvalue().decode()


def write_parquet(table: Any, path: Path) -> None:
    """A table as one compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow().parquet.write_table(table, path, compression="zstd")
