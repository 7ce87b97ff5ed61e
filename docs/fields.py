"""Fields of dataclasses in the API pages: what the comment beside each of them says."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any


def comments(source: str) -> dict[str, str]:
    """The annotated names of a class, each with the comment behind it or in the lines above it, in the class's order.

    >>> comments("class A:\\n    x: int  # a number\\n")
    {'x': 'a number'}
    """
    lines = source.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.end_lineno or node.lineno
            behind = lines[last - 1].encode()[node.end_col_offset :].decode().strip()
            above: list[str] = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("# ") or "----" in line:
                    break
                above.insert(0, line.strip().removeprefix("#").strip())
            said = behind.removeprefix("#").partition("# pyright")[0].strip() or " ".join(above)
            found[node.target.id] = said
    return found


def add(app: object, what: str, name: str, obj: Any, options: object, lines: list[str]) -> None:
    """Put the fields of a dataclass, those of its bases first, behind its docstring (a hook of autodoc)."""
    if what != "class" or not dataclasses.is_dataclass(obj):
        return
    said: dict[str, str] = {}
    for each in reversed(obj.__mro__):
        if dataclasses.is_dataclass(each):
            try:
                said |= comments(inspect.cleandoc("\n" + inspect.getsource(each)))
            except (OSError, TypeError):
                continue
    shown = {f.name: said.get(f.name, "") for f in dataclasses.fields(obj) if not f.name.startswith("_")}
    if any(shown.values()):
        lines += ["", *(f"- `{field}`{': ' + text if text else ''}" for field, text in shown.items()), ""]
