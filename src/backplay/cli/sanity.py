"""`backplay sanity run|table|figure`: the paper's experiments from their config to tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from backplay.cli.bench import put
from backplay.cli.options import engine_of, json_asked, json_option, run_options
from backplay.cli.output import check_folder, print_json
from backplay.errors import KeywordError

_ABOUT = "the paper's randomisation experiments: run a config, show its tables, draw its figures"


@click.group("sanity", help=f"{_ABOUT.capitalize()}.", short_help=_ABOUT)
@json_option
def command() -> None:
    pass


@command.command(
    "run", help="Work off a config; rows are kept as they are computed, tables and figures written at the end."
)
@run_options
@click.option("--images", type=int, metavar="N", help="So many images of the test split.")
@json_option
def run_config(
    config: str,
    out: str,
    resume: bool,
    engine: str | None,
    workers: int | None,
    address: str | None,
    zoo: bool,
    images: int | None,
) -> int:
    from backplay.sanity import config as configs
    from backplay.sanity import runs

    if images is not None and images < 1:
        raise KeywordError(f"--images takes 1 or more, got {images}.")
    summary = runs.run(configs.load(config, zoo, images), out, engine_of(engine, workers), workers, address, resume)
    written = [str(path) for path in runs.write(out)]
    if json_asked():
        print_json(vars(summary) | {"written": written})
    else:
        print(f"{summary.words}; {len(written)} tables and figures are in {out}: {', '.join(runs.FOLDERS)}")
    return 0 if summary.failed == 0 else 3


@command.command("table", help="The tables of a run; with --json a record for each number, as csv has them.")
@click.argument("run", metavar="RUN")
@click.option("--format", "form", default="md", show_default=True, type=click.Choice(["md", "latex", "csv"]))
@click.option("-o", "--out", metavar="FILE")
@json_option
def show_tables(run: str, form: str, out: str | None) -> int:
    from backplay.sanity import tables

    built = tables.build(run)
    if json_asked():
        print_json(tables.records(built))
    if out is not None or not json_asked():
        put(tables.write(built, form), out)
    return 0


@command.command("figure", help="The figures of a run, as files.")
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "forms",
    multiple=True,
    default=("png", "svg"),
    show_default=True,
    type=click.Choice(["png", "svg", "pdf"]),
    help="May be given several times.",
)
@click.option("-o", "--out", metavar="DIR", help="Where to write them (default: RUN/figures).")
@json_option
def draw_figures(run: str, forms: Sequence[str], out: str | None) -> int:
    from backplay.sanity import figures, runs

    target = check_folder(Path(run, runs.FIGURES) if out is None else Path(out))
    written = [str(path) for path in figures.save(figures.draw(run), target, list(forms))]
    if json_asked():
        print_json(written)
    else:
        print("\n".join(written))
    return 0
