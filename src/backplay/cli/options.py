"""Options that several commands share, and texts of the command line as what keywords accept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from backplay.errors import BackplayError, KeywordError
from backplay.keywords import ByPattern, Choice, Keyword, Number

Decorator = Callable[[Any], Any]

MODELS = "zoo:NAME, torchvision:NAME, timm:NAME, hf:PATH or path.py:factory, which executes that file"


def command(name: str, about: str, **settings: Any) -> Decorator:
    """A command with the option that all of them have; its function is called with its own options alone."""

    def made(function: Any) -> Any:
        return click.command(name, help=about, short_help=about.partition(";")[0], **settings)(json_option(function))

    return made


def json_option(function: Any) -> Any:
    """`--json`, before and behind a command's name; `json_asked` tells."""
    about = "Print one JSON value instead of text."
    return click.option("--json", is_flag=True, expose_value=False, callback=_remember, help=about)(function)


def _remember(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        ctx.find_root().meta[_JSON] = True


def json_asked() -> bool:
    """Whether `--json` was given."""
    return bool(click.get_current_context().find_root().meta.get(_JSON))


_JSON = "backplay.json"


def command_line() -> Sequence[str]:
    """What was typed behind the name of the program."""
    return click.get_current_context().find_root().obj or ()


def model_option(required: bool = True) -> Decorator:
    """`--model NAME`."""
    return click.option("--model", required=required, metavar="NAME", help=f"{MODELS}.", shell_complete=complete_models)


def weights_option(about: str, multiple: bool = False) -> Decorator:
    """`--weights FILE`."""
    return click.option("--weights", metavar="FILE", multiple=multiple, help=about, type=click.Path())


def out_option(default: str | None = None) -> Decorator:
    """`-o DIR`."""
    shown: dict[str, Any] = {} if default is None else {"default": Path(default), "show_default": True}
    about = {"metavar": "DIR", "help": "Folder for the results.", "type": click.Path(path_type=Path)}
    return click.option("-o", "--out", required=default is None, **about, **shown)


_RUN = (
    click.argument("config", metavar="CONFIG.yaml"),
    click.option("--out", required=True, metavar="RUN", help="The folder of the run."),
    click.option("--resume", is_flag=True, help="Go on with the run in that folder."),
    click.option(
        "--engine",
        type=click.Choice(["inline", "processes", "ray"]),
        help="Who computes; processes if --workers is given, else inline.",
    ),
    click.option("--workers", type=int, metavar="N", help="Processes, or Ray's actors."),
    click.option("--address", metavar="HOST:PORT", help="Of a Ray cluster; without it Ray is started here."),
    click.option("--zoo", is_flag=True, help="The bundled networks and pictures in place of the config's."),
)


def run_options(function: Any) -> Any:
    """What every command that works off a config takes."""
    for option in reversed(_RUN):
        function = option(function)
    return function


def engine_of(engine: str | None, workers: int | None) -> str:
    """Who computes, where only the number of workers was given too."""
    return engine or ("processes" if workers is not None else "inline")


def separated(values: Iterable[str]) -> list[str]:
    """`a,b` and `c` as a, b, c; what stands in braces, as JSON does, stays whole."""
    return [part.strip() for value in values for part in _parts(value)]


def _parts(value: str) -> list[str]:
    parts, depth = [""], 0
    for letter in value:
        depth += (letter in "{[") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def read_value(name: str, accepts: Keyword, text: str) -> Any:
    """Text as what a keyword accepts; a `KeywordError` unless it is in its range."""
    checked = accepts.check(name, _plain(name, accepts, text))
    if isinstance(accepts, ByPattern) and checked is not None:
        return json.loads(text)  # as it was written: a record and a file's name can hold that
    return checked


def _plain(name: str, accepts: Keyword, text: str) -> Any:
    if accepts.default is None and text.lower() == "none":
        return None
    if isinstance(accepts, Choice):
        return {"true": True, "false": False}.get(text.lower(), text) if True in accepts.choices else text
    if not isinstance(accepts, Number):
        return text
    try:
        number = float(text)
    except ValueError:
        option = f"--{name.replace('_', '-')}"
        raise KeywordError(f"{option} {text!r} is no number; it takes {accepts.range}.") from None
    if not accepts.whole:
        return number
    try:
        return int(text)
    except ValueError:  # 2.5, which the check of the range refuses
        return text


# ---------------------------------------------------------------- shell completion


def complete_list(known: Callable[[], Iterable[str]]) -> Any:
    """Completion of the last name in a list that is separated by commas."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        head, comma, last = incomplete.rpartition(",")
        return [CompletionItem(head + comma + name) for name in known() if name.startswith(last)]

    return complete


def complete_models(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completion of a model's name."""
    return [CompletionItem(name) for name in model_names(incomplete) if name.startswith(incomplete)]


def model_names(incomplete: str = "") -> Sequence[str]:
    """Names that `--model` takes; those of a library that is slow to import only once it is named."""
    from backplay.models.sources import SOURCES

    prefix, colon, _ = incomplete.partition(":")
    if not colon:
        return [f"{name}:" for name in SOURCES]
    source = SOURCES.get(prefix)
    try:
        return [f"{prefix}:{name}" for name in (source.names() if source and source.names else [])]
    except BackplayError:
        return []
