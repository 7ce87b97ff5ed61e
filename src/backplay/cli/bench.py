"""`backplay bench run|table|rows`: the benchmark from its config to its tables."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from backplay.cli.bar import Bar
from backplay.cli.options import engine_of, json_asked, json_option, run_options
from backplay.cli.output import print_json, whole
from backplay.errors import KeywordError

ROW_FORMATS = ("csv", "json", "parquet")
_ABOUT = "reproduce the paper's tables: run a config, show its tables, its rows"


@click.group("bench", help=f"{_ABOUT.capitalize()}.", short_help=_ABOUT)
@json_option
def command() -> None:
    pass


@command.command("run", help="Work off a config; rows are kept as they are computed.")
@run_options
@click.option("--validation", type=int, metavar="N", help="So many samples of the validation split.")
@click.option("--test", type=int, metavar="N", help="So many samples of the test split.")
@json_option
def run_config(
    config: str,
    out: str,
    resume: bool,
    engine: str | None,
    workers: int | None,
    address: str | None,
    zoo: bool,
    validation: int | None,
    test: int | None,
) -> int:
    from backplay import bench

    limits = {k: v for k, v in (("validation", validation), ("test", test)) if v is not None}
    if any(value < 1 for value in limits.values()):
        raise KeywordError("--validation and --test take 1 or more samples.")
    read = bench.load(config, zoo, limits)
    summary = bench.run(read, out, engine_of(engine, workers), workers, address, resume)
    if json_asked():
        print_json(vars(summary))
    else:
        print(f"{summary.words}; rows and tables: backplay bench table {out}")
    return 0 if summary.failed == 0 else 3


@command.command("table", help="The tables of a run; with --json a record for each number, as csv has them.")
@click.argument("run", metavar="RUN")
@click.option("--format", "form", default="md", show_default=True, type=click.Choice(["md", "latex", "csv", "html"]))
@click.option("--maps", is_flag=True, help="html: the best, median and worst map of every row.")
@click.option("--no-time", is_flag=True, help="Without the time per image, which differs in every run.")
@click.option("-o", "--out", metavar="FILE")
@json_option
def show_tables(run: str, form: str, maps: bool, no_time: bool, out: str | None) -> int:
    from backplay import bench

    if maps and form != "html":
        raise KeywordError(f"--maps is for --format html, not {form}.")
    built = bench.build(run)
    if json_asked():
        print_json(bench.records(built, time=not no_time))
        if out is None:
            return 0
    if maps:
        from backplay.bench import maps as pages

        with Bar("computing the maps"):
            text = pages.page(run)
    else:
        text = bench.write(built, form, time=not no_time)
    put(text, out)
    return 0


@command.command("rows", help="The rows of a run, all or what a query selects.")
@click.argument("run", metavar="RUN")
@click.option("--sql", metavar="QUERY", is_flag=False, flag_value="", help="A query on `rows`; without one, a prompt.")
@click.option("--format", "form", default="csv", show_default=True, type=click.Choice(ROW_FORMATS))
@click.option("-o", "--out", metavar="FILE")
@json_option
def show_rows(run: str, sql: str | None, form: str, out: str | None) -> int:
    from backplay.bench import queries

    if sql == "":
        return _prompt(run)
    found = queries.select(run, sql)
    if json_asked():
        print_json(found.to_pylist())
    elif form == "parquet":
        if out is None:
            raise KeywordError("--format parquet needs -o FILE.")
        queries.write_parquet(found, Path(out))
    else:
        put(queries.text(found, form), out)
    return 0


def _prompt(folder: str) -> int:
    """One query a line, until the input ends."""
    from backplay.bench import queries
    from backplay.errors import BackplayError

    ask = sys.stdin.isatty()
    while True:
        if ask:
            print("rows> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return 0
        if not line.strip():
            continue
        try:
            print(queries.text(queries.select(folder, line), "csv"), end="")
        except BackplayError as error:
            print(error, file=sys.stderr)


def put(text: str, out: str | None) -> None:
    if out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
