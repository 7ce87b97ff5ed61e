"""The command `backplay`: each command is a module with `add`, which declares it, and `run`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from backplay.cli import bench, demo, explain, inspect, methods, models, sanity, zoo
from backplay.cli.parser import Parser, add_json, parse
from backplay.errors import BackplayError

COMMANDS = (demo, explain, methods, models, inspect, zoo, bench, sanity)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input becomes one line on standard error and an exit code that is not 0."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = "backplay"
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            options = parse(_parser(given), given)
            name = f"backplay {options.command}"
            code = options.run(options)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return _end(f"{name}: interrupted", 130)
    except BrokenPipeError:  # whoever read the output has gone, `| head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (BackplayError, OSError) as error:
        return _end(f"{name}: {error}", 1)
    except MemoryError:
        return _end(f"{name}: the memory is too small for this; give a smaller network or image", 1)


def _parser(given: list[str]) -> Parser:
    parser = Parser(prog="backplay", description="Explain neural networks by playing them backward.")
    add_json(parser, False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        command.add(commands, given)
    return parser


def _end(message: str, code: int) -> int:
    print(" ".join(line.strip() for line in message.splitlines()), file=sys.stderr)
    return code


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """A warning is one line, without the place in the code where it arose."""
    _end(f"backplay: {message}", 0)
