"""Tables of the pages that are read off the package: keywords of the games, presets, methods.

    python docs/make_tables.py

writes them into docs/_generated, as every build of the pages does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import backplay as bp

FOLDER = Path(__file__).parent / "_generated"


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def keywords(accepts: Mapping[str, Any]) -> str:
    """A row for each keyword: its default, what it accepts, what it is for."""
    rows = ([f"`{name}`", f"`{k.default!r}`", _range(k), k.note] for name, k in accepts.items())
    return table(["keyword", "default", "accepts", "meaning"], rows)


def _range(keyword: Any) -> str:
    words = keyword.range.removeprefix("one of ")
    return words.replace("a finite number", "number").replace("an integer", "integer")


def presets() -> str:
    rows = []
    for name, preset in bp.presets.items():
        words = {**preset.keywords, **(preset.reynolds or {})}
        shown = ", ".join(f"{k}={v!r}" for k, v in words.items())
        game = preset.game.__name__ + (", averaged" if preset.reynolds else "")
        modes = f"`{shown}`" if shown else "defaults"
        rows.append([f"`{name}`", game, modes, preset.purpose, preset.architecture, f"`{preset.table}`"])
    return table(["preset", "game", "modes", "for", "selected on", "table of the paper"], rows)


def methods() -> str:
    rows = []
    for name, info in bp.methods().items():
        params = ", ".join(f"`{p}={k.default!r}`" for p, k in info.params.items())
        if name in ("rg", "sg", "rg_eq"):
            params = "the keywords of the game" + (" and of the average" if name == "rg_eq" else "")
        rows.append([f"`{name}`", info.family, ", ".join(info.architectures), params or "none", info.reference])
    return table(["method", "family", "for", "parameters and defaults", "from"], rows)


def write(folder: Path = FOLDER) -> None:
    """All tables; a file that says the same already stays as it is."""
    pages = {
        "keywords-routing.md": keywords(bp.RoutingGame.modes_type.accepts()),
        "keywords-stopping.md": keywords(bp.StoppingGame.modes_type.accepts()),
        "presets.md": presets(),
        "methods.md": methods(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        file = folder / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
