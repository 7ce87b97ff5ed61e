"""Arguments: what every command shares."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from backplay.errors import suggestion

Commands = Any  # argparse keeps the type of add_subparsers' result to itself
Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """Errors are one line, and options are written in full."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        self.elsewhere: dict[str, str] = {}  # options that this parser has not, and who has them
        # argparse takes -1 and -0.1 for values, and would take -1e-1 for an option
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$|-inf$|-nan$", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class Once(argparse.Action):
    """An option that is given once: argparse would drop all but the last without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        given = f"{self.dest} was given"
        if getattr(options, given, False):
            parser.error(f"{option} is given twice; give one {self.dest}")
        setattr(options, given, True)
        setattr(options, self.dest, value)


def add_json(parser: Parser, default: Any) -> None:
    """The option that all commands have, before and behind their name."""
    parser.add_argument("--json", action="store_true", default=default, help="print one JSON value instead of text")


def add_command(commands: Commands, name: str, about: str, run: Run) -> Parser:
    """A command, with the option that all of them have."""
    parser: Parser = commands.add_parser(name, help=about, description=about)
    add_json(parser, argparse.SUPPRESS)  # as it was said before the command, unless it is said here
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_model(parser: Parser, weights: str) -> None:
    """The options that name a network."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="zoo:NAME, torchvision:NAME, timm:NAME, hf:PATH or path.py:factory, which executes that file",
    )
    parser.add_argument("--weights", metavar="FILE", help=weights)


def parse(parser: Parser, given: list[str]) -> argparse.Namespace:
    """The options; an unknown one is an error that names its nearest relative."""
    options, unknown = parser.parse_known_args(given)
    if unknown:
        owner: Parser = options.parser
        written = unknown[0].partition("=")[0]
        hint = owner.elsewhere.get(written) or suggestion(written, owner._option_string_actions)
        owner.error(f"unknown {'option' if written.startswith('-') else 'argument'} {written}{hint}")
    return options
