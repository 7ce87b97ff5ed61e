"""`backplay app`: the explorer in the browser."""

from __future__ import annotations

import click

from backplay.cli.options import MODELS, complete_models, json_asked, json_option
from backplay.cli.output import check_pictures, print_json

_ABOUT = (
    "Explore networks in the browser: pick a model and a picture or a sentence, move the modes, and see the map, both "
    "players and their walks; compare pictures, models, modes and methods.\n\n"
    "The page is served to this machine alone and fetches nothing from elsewhere."
)


@click.command("app", help=_ABOUT, short_help="explore networks in the browser")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 for any that is free.")
@click.option(
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"{MODELS}; may be given several times (default: the bundled networks).",
    shell_complete=complete_models,
)
@json_option
def command(port: int, names: tuple[str, ...]) -> int:
    from backplay.app.server import imported, serve

    check_pictures()
    imported()
    from backplay.app.library import BUNDLED

    serve(names or BUNDLED, port, _say)
    return 0


def _say(address: str) -> None:
    if json_asked():
        print_json({"address": address})
    else:
        print(f"The explorer is at {address} (Ctrl-C ends it)", flush=True)
