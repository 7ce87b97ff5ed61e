"""`backplay completion SHELL`: what a shell needs to complete commands, options, methods and models."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from backplay.cli.options import command as declared
from backplay.cli.options import json_asked
from backplay.cli.output import print_json
from backplay.errors import UnsupportedError


@declared("completion", 'print a shell\'s completion script; eval "$(backplay completion bash)" switches it on')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    kind = get_completion_class(shell)
    if kind is None:
        raise UnsupportedError(f"click completes nothing for {shell}; there are bash, zsh and fish.")
    script = kind(click.Command("backplay"), {}, "backplay", "_BACKPLAY_COMPLETE").source()
    if shell == "bash":  # which would take `zoo:vgg` for three words
        script += "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n"
    print_json({"shell": shell, "script": script}) if json_asked() else print(script)
    return 0
