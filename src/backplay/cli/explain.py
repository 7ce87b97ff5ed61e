"""`backplay explain`: a figure and its numbers for each photograph or text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import backplay as bp
from backplay.cli import columns
from backplay.cli.options import (
    complete_list,
    json_asked,
    json_option,
    model_option,
    out_option,
    separated,
    weights_option,
)
from backplay.cli.output import check_folder, print_json
from backplay.errors import InputError
from backplay.keywords import Keyword

_PARAMETER = "parameter_"  # before the names of methods' own parameters, which are their business


class MethodCommand(click.Command):
    """A command with every parameter of every method as an option; its help shows those of the methods that it names.

    The options are read from the registry, so that a new method brings its own. The help has them in three groups.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        return [*own[:-1], *_parameters(ctx.meta.get(_ASKED, ("rg",))), own[-1]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ASKED] = _asked(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = f"Parameters of {', '.join(ctx.meta.get(_ASKED, ('rg',)))}"
        groups: dict[str, list[tuple[str, str]]] = {"General": [], "Output": [], own: []}
        for option in (param for param in self.get_params(ctx) if isinstance(param, click.Option)):
            of_method = (option.name or "").startswith(_PARAMETER)
            group = own if of_method else "Output" if _OUTPUT & set(option.opts) else "General"
            record = option.get_help_record(ctx)  # None where it is hidden
            groups[group] += [] if record is None else [record]
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


_ASKED = "backplay.methods"
_OUTPUT = {"--share", "--out", "--json", "--help"}
SPELLED: dict[str, Any] = {"token_normalize_func": lambda option: option.replace("_", "-")}  # --gate_noise too


def _asked(args: Sequence[str]) -> tuple[str, ...]:
    """The methods that a command line names, before it is parsed; the default where it names none."""
    values = [arg.partition("=")[2] for arg in args if arg.startswith("--method=")]
    values += [args[k + 1] for k, arg in enumerate(args[:-1]) if arg == "--method"]
    return tuple(separated(values)) or ("rg",)


def _parameters(asked: Sequence[str]) -> list[click.Option]:
    known = bp.methods()
    named = [known[columns.method_of(one)] for one in asked if one in columns.names()]
    shown = {name for info in named for name in columns.accepted(info)}
    accepts: dict[str, Keyword] = {}
    for info in [*named, *known.values()]:
        accepts = {**columns.accepted(info), **accepts}
    return [_option(name, keyword, name in shown) for name, keyword in accepts.items()]


def _option(name: str, keyword: Keyword, shown: bool) -> click.Option:
    about = f"{keyword.note and keyword.note + '; '}{keyword.range} (default: {keyword.default})."
    return click.Option(
        [f"--{name.replace('_', '-')}", _PARAMETER + name],
        multiple=True,
        metavar="VALUE[,…]",
        help=about,
        hidden=not shown,
    )


def keywords_of(given: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The parameters of methods among a command's options, each with its values."""
    return {name.removeprefix(_PARAMETER): separated(values) for name, values in given.items() if values}


@click.command(
    "explain",
    cls=MethodCommand,
    context_settings=SPELLED,
    short_help="explain photographs or texts: a figure and its numbers for each",
    help="Explain photographs, all photographs in folders, or texts: a figure and its numbers for each.\n\n"
    "Several methods and several values of a parameter are separated by commas: each combination is a map, and a "
    "parameter goes to those methods that know it. `backplay methods NAME` tells a method's parameters; below are "
    "those of the methods that --method names here. The same call again goes on where an earlier one ended; files "
    "of other runs are never written over.",
    epilog="\b\nExample: backplay explain cat.jpg --model zoo:vgg --method rg,gradcam -o maps",
)
@click.argument("photographs", nargs=-1, metavar="[IMAGE|FOLDER]...", type=click.Path(path_type=Path))
@model_option()
@weights_option("Weights: a file, or 'random'; if left out, the trained ones, if they are on this machine.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("rg",),
    metavar="NAME[,…]",
    help="Methods or presets, see `backplay methods` (default: rg).",
    shell_complete=complete_list(columns.names),
)
@click.option("--target", metavar="CLASS", help="Class to explain, by number or name (default: the largest logit).")
@click.option("--against", metavar="CLASS", help="Explain why the target rather than this class.")
@click.option("--text", "texts", multiple=True, metavar="TEXT", help="A text for a text model; may be given again.")
@click.option("--position", metavar="TOKEN", help="For texts: the token, by number or word, whose logits are meant.")
@click.option(
    "--share/--no-share",
    default=None,
    help="Find which share of walks arrives, which takes a pass of its own (default: for up to 8 photographs).",
)
@out_option()
@json_option
def command(
    photographs: tuple[Path, ...],
    model: str,
    weights: str | None,
    methods: tuple[str, ...],
    target: str | None,
    against: str | None,
    texts: tuple[str, ...],
    position: str | None,
    share: bool | None,
    out: Path,
    **given: tuple[str, ...],
) -> int:
    asked = columns.read(separated(methods), keywords_of(given))  # refuses before anything that takes long
    check_folder(out)
    if texts and photographs:
        raise InputError("explain takes photographs and folders, or texts (--text), not both; give one of them.")
    if not texts and not photographs:
        raise InputError("there is nothing to explain; name photographs or folders of them, or give texts (--text).")
    if texts:
        from backplay.cli import texts as room

        if share is not None:
            raise InputError("--share and --no-share are for photographs; texts are short, and always have it.")
        if any(column.layer is not None for column in asked):
            raise InputError("--layer is for photographs; the scores of a text are those of its tokens.")
        report, code = room.explain(texts, model, weights, asked, target, against, position, out)
    else:
        from backplay.cli import pictures as room

        if position is not None:
            raise InputError("--position is for texts; photographs have no tokens.")
        report, code = room.explain(photographs, model, weights, asked, target, against, share, out)
    if json_asked():
        print_json(report)
    return code
