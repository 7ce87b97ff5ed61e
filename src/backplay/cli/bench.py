"""`backplay bench run|table|rows`: the benchmark from its config to its tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from backplay.cli.output import print_json, whole
from backplay.cli.parser import Commands, Parser, add_command, add_json
from backplay.errors import KeywordError
from backplay.progress import Progress

ROW_FORMATS = ("csv", "json", "parquet")


def add(commands: Commands, given: list[str]) -> None:
    parser = add_command(
        commands, "bench", "reproduce the paper's tables: run a config, show its tables, its rows", run
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="run|table|rows", parser_class=Parser)
    _add_run(_part(parts, "run", "work off a config; rows are kept as they are computed", run_config))
    _add_table(_part(parts, "table", "the tables of a run", show_tables))
    _add_rows(_part(parts, "rows", "the rows of a run, all or what a query selects", show_rows))


def _part(parts: Any, name: str, about: str, function: Any) -> Parser:
    parser: Parser = parts.add_parser(name, help=about, description=about)
    add_json(parser, argparse.SUPPRESS)
    parser.set_defaults(do=function, parser=parser)
    return parser


def _add_run(parser: Parser) -> None:
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument("--out", required=True, metavar="RUN", help="the folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    parser.add_argument(
        "--engine", choices=("inline", "processes", "ray"), help="default: processes if --workers is given"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes, or Ray's actors")
    parser.add_argument("--address", metavar="HOST:PORT", help="of a Ray cluster; without it Ray is started here")
    parser.add_argument("--zoo", action="store_true", help="the bundled networks and pictures in place of the config's")
    parser.add_argument("--validation", type=int, metavar="N", help="so many samples of the validation split")
    parser.add_argument("--test", type=int, metavar="N", help="so many samples of the test split")


def _add_table(parser: Parser) -> None:
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--format", default="md", choices=("md", "latex", "csv", "html"))
    parser.add_argument("--maps", action="store_true", help="html: the best, median and worst map of every row")
    parser.add_argument("--no-time", action="store_true", help="without the time per image, which differs in every run")
    parser.add_argument("-o", "--out", metavar="FILE")


def _add_rows(parser: Parser) -> None:
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--sql", nargs="?", const="", metavar="QUERY", help="a query on `rows`; without one, a prompt")
    parser.add_argument("--format", default="csv", choices=ROW_FORMATS)
    parser.add_argument("-o", "--out", metavar="FILE")


def run(options: argparse.Namespace) -> int:
    return options.do(options)


def run_config(options: argparse.Namespace) -> int:
    from backplay import bench

    limits = {k: v for k, v in (("validation", options.validation), ("test", options.test)) if v is not None}
    if any(value < 1 for value in limits.values()):
        raise KeywordError("--validation and --test take 1 or more samples.")
    config = bench.load(options.config, options.zoo, limits)
    engine = options.engine or ("processes" if options.workers is not None else "inline")
    summary = bench.run(config, options.out, engine, options.workers, options.address, options.resume)
    if options.json:
        print_json(vars(summary))
    else:
        done = f"{summary.done} samples computed, {summary.before} were there, {summary.failed} failed"
        print(f"{done}; rows and tables: backplay bench table {options.out}")
    return 0 if summary.failed == 0 else 3


def show_tables(options: argparse.Namespace) -> int:
    from backplay import bench

    if options.maps and options.format != "html":
        raise KeywordError(f"--maps is for --format html, not {options.format}.")
    if options.maps:
        from backplay.bench import maps

        with Progress("computing the maps"):
            text = maps.page(options.folder)
    else:
        text = bench.write(bench.build(options.folder), options.format, time=not options.no_time)
    if options.json:
        print_json({"format": options.format, "text": text})
    else:
        _put(text, options.out)
    return 0


def show_rows(options: argparse.Namespace) -> int:
    from backplay.bench import queries

    if options.sql == "":
        return _prompt(options.folder)
    found = queries.select(options.folder, options.sql)
    if options.json:
        print_json(found.to_pylist())
    elif options.format == "parquet":
        if options.out is None:
            raise KeywordError("--format parquet needs -o FILE.")
        queries.write_parquet(found, Path(options.out))
    else:
        _put(queries.text(found, options.format), options.out)
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


def _put(text: str, out: str | None) -> None:
    if out is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
