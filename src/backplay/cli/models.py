"""`backplay models`: what `--model` may name."""

from __future__ import annotations

from typing import Any

from backplay.cli.bar import Bar
from backplay.cli.options import command as declared
from backplay.cli.options import json_asked
from backplay.cli.output import print_json
from backplay.models.bundled import TEXTS
from backplay.models.sources import FACTORY, SOURCES, Source


@declared("models", "list what --model may name; with --json, every name")
def command() -> int:
    with Bar("asking the libraries"):
        found = [describe(source) for source in (*SOURCES.values(), FACTORY)]
    if json_asked():
        print_json(found)
        return 0
    width = max(len(entry["form"]) for entry in found)
    for entry in found:
        print(f"{entry['form']:{width}}  {entry['about']}")
        print(f"{'':{width}}  {_state(entry)}")
    print(f"texts: {', '.join(f'zoo:{name}' for name in TEXTS)}, or hf:PATH of a text model with its tokenizer")
    print("weights: --weights FILE (safetensors, or a state dict of torch.save), or --weights random")
    return 0


def describe(source: Source) -> dict[str, Any]:
    """A source as JSON; `names` is null where they cannot be listed."""
    return {
        "form": source.form,
        "about": source.about,
        "library": source.library,
        "version": source.version,
        "installed": source.installed,
        "names": source.names() if source.names and source.installed else None,
    }


def _state(entry: dict[str, Any]) -> str:
    if not entry["installed"]:
        extra = "vision" if entry["library"] == "torchvision" else "models"  # as the error says that needs it
        return f"{entry['library']} is not installed: pip install 'backplay[{extra}]'"
    names = entry["names"] or []
    listed = ", ".join(names) if len(names) < 10 else f"{len(names)} names, {names[0]} to {names[-1]}"
    library = f"{entry['library']} {entry['version']}" if entry["library"] else ""
    return "; ".join(part for part in (library, listed) if part) or "Python"
