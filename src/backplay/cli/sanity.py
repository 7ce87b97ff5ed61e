"""`backplay sanity run|table|figure`: the paper's experiments from their config to tables and figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from backplay.cli.bench import _put
from backplay.cli.output import check_folder, print_json
from backplay.cli.parser import Commands, Parser, add_command, add_json
from backplay.errors import KeywordError

FIGURE_FORMATS = ("png", "svg", "pdf")


def run_config(
    config: str,
    out: str,
    resume: bool,
    engine: str | None,
    workers: int | None,
    address: str | None,
    zoo: bool,
    images: int | None,
    json: bool,
) -> int:
    """Work off a config; rows are kept as they are computed."""
    from backplay.sanity import config as configs
    from backplay.sanity import runs

    if images is not None and images < 1:
        raise KeywordError(f"--images takes 1 or more, got {images}.")
    chosen = engine or ("processes" if workers is not None else "inline")
    summary = runs.run(configs.load(config, zoo, images), out, chosen, workers, address, resume)
    if json:
        print_json(vars(summary))
    else:
        done = f"{summary.done} samples computed, {summary.before} were there, {summary.failed} failed"
        print(f"{done}; tables: backplay sanity table {out}, figures: backplay sanity figure {out} --out DIR")
    return 0 if summary.failed == 0 else 3


def show_tables(folder: str, form: str, out: str | None, json: bool) -> int:
    """The tables of a run."""
    from backplay.sanity import tables

    text = tables.write(tables.build(folder), form)
    if json:
        print_json({"format": form, "text": text})
    else:
        _put(text, out)
    return 0


def draw_figures(folder: str, out: str, forms: list[str], json: bool) -> int:
    """The figures of a run, as files."""
    from backplay.sanity import figures

    target = check_folder(Path(out))
    written = [str(path) for path in figures.save(figures.draw(folder), target, forms)]
    print_json(written) if json else print("\n".join(written))
    return 0


# -------------------------------------------------------------------- options


def add(commands: Commands, given: list[str]) -> None:
    about = "the paper's randomisation experiments: run a config, show its tables, draw its figures"
    parser = add_command(commands, "sanity", about, run)
    parts = parser.add_subparsers(dest="part", required=True, metavar="run|table|figure", parser_class=Parser)
    _add_run(_part(parts, "run", "work off a config; rows are kept as they are computed", lambda o: run_config(
        o.config, o.out, o.resume, o.engine, o.workers, o.address, o.zoo, o.images, o.json)))  # fmt: skip
    table = _part(parts, "table", "the tables of a run", lambda o: show_tables(o.folder, o.format, o.out, o.json))
    table.add_argument("folder", metavar="RUN")
    table.add_argument("--format", default="md", choices=("md", "latex", "csv"))
    table.add_argument("-o", "--out", metavar="FILE")
    figure = _part(
        parts,
        "figure",
        "the figures of a run",
        lambda o: draw_figures(o.folder, o.out, o.format or ["png", "svg"], o.json),
    )
    figure.add_argument("folder", metavar="RUN")
    figure.add_argument("--format", nargs="+", choices=FIGURE_FORMATS, help="default: png and svg")
    figure.add_argument("-o", "--out", required=True, metavar="DIR")


def _part(parts: Any, name: str, about: str, do: Any) -> Parser:
    parser: Parser = parts.add_parser(name, help=about, description=about)
    add_json(parser, argparse.SUPPRESS)
    parser.set_defaults(do=do, parser=parser)
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
    parser.add_argument("--images", type=int, metavar="N", help="so many images of the test split")


def run(options: argparse.Namespace) -> int:
    return options.do(options)
