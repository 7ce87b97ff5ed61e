"""The command `backplay` (the `cli` extra). Each command is a module of this package, imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from backplay import __version__
from backplay.cli.output import end
from backplay.errors import MissingLibraryError

LIBRARIES = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input becomes one line on standard error and an exit code that is not 0."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # reports ask for it, and it needs no other library
        print(f"backplay {__version__}")
        return 0
    try:
        from backplay.cli.program import run
    except ImportError as error:
        if (error.name or "").split(".")[0] not in LIBRARIES:
            raise
        missing = MissingLibraryError(f"the command line needs {error.name}: pip install 'backplay[cli]'")
        return end(given, "backplay", missing, 1)
    return run(given)
