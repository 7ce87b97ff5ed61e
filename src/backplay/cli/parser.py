"""Arguments: what every command shares."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from backplay.errors import suggestion

Commands = Any  # argparse keeps the type of add_subparsers' result to itself
Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """Errors are one line, and options are written in full."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_command(commands: Commands, name: str, about: str, run: Run) -> Parser:
    """A command, with the option that all of them have."""
    parser: Parser = commands.add_parser(name, help=about, description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of text")
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
        hint = suggestion(written, owner._option_string_actions)
        owner.error(f"unknown {'option' if written.startswith('-') else 'argument'} {written}{hint}")
    return options
