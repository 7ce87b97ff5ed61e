"""The commands under one name: how they are found, and how what goes wrong becomes one line."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click
import rich.progress  # noqa: F401  # pyright: ignore[reportUnusedImport]  # asked for here, not in the middle of a run
from click.shell_completion import shell_complete

from backplay.cli.bar import aside
from backplay.cli.options import json_option
from backplay.cli.output import end, print_json, wants_json
from backplay.errors import BackplayError, suggestion

COMMANDS = ("demo", "explain", "compare", "methods", "models", "inspect", "zoo", "bench", "sanity", "app", "completion")
_COMPLETE = "_BACKPLAY_COMPLETE"  # set by a shell that asks what may follow


class Program(click.Group):
    """Each command is `command` in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"backplay.cli.{cmd_name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = suggestion(args[0], COMMANDS)
            ctx.fail(f"no command named {args[0]}{hint}: there are {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from backplay import __version__

        if wants_json(ctx.obj or ()):
            print_json({"version": __version__})
        else:
            click.echo(f"backplay {__version__}")
        ctx.exit()


program = Program(
    "backplay",
    help="Explain neural networks by playing them backward.",
    params=[
        click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
json_option(program)


def run(given: Sequence[str]) -> int:
    """Run a command line; every way in which it may end has its exit code."""
    asked = os.environ.get(_COMPLETE)
    if asked:
        return shell_complete(program, {}, "backplay", _COMPLETE, asked)
    name = " ".join(["backplay", *[word for word in given if word in COMMANDS][:1]])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = _invoke(list(given))
            sys.stdout.flush()
            return code
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command: its help, in its own lines
        print(error.message, file=sys.stderr)
        return 2
    except click.UsageError as error:
        path = name if error.ctx is None else error.ctx.command_path
        return end(given, path, f"{_told(error)}; see {path} --help", 2)
    except (KeyboardInterrupt, click.Abort):
        return end(given, name, "interrupted", 130)
    except BrokenPipeError:  # whoever read the output has gone, `| head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (BackplayError, OSError, click.ClickException) as error:
        return end(given, name, error, 1)
    except MemoryError:
        return end(given, name, "the memory is too small for this; give a smaller network or image", 1)


def _invoke(given: list[str]) -> int:
    """What `click` does for a program, without its own way of ending."""
    with program.make_context("backplay", given, obj=tuple(given)) as ctx:
        return program.invoke(ctx) or 0


def _told(error: click.UsageError) -> str:
    """click's words, with the nearest relative of what was not understood."""
    if isinstance(error, click.NoSuchOption):
        known = [] if error.ctx is None else [o for p in error.ctx.command.get_params(error.ctx) for o in p.opts]
        return f"unknown option {error.option_name}{suggestion(error.option_name, known)}"
    return error.format_message().strip().rstrip(".")


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """A warning is one line, without the place in the code where it arose."""
    with aside():
        print("backplay: " + " ".join(str(message).split()), file=sys.stderr)
