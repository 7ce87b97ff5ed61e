"""Patterns of module paths, as `layers={"features.*": …}` gives them: which nodes they mean.

A pattern means a node if it fits, as file names are fitted (`*`, `?`, `[…]`), the path of a module that the node lies
in: "layer4" and "layer4.*" mean all that is computed inside. A batch norm that is folded into the layer before it (S4)
lies in both modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from backplay.errors import KeywordError, suggestion
from backplay.network.nodes import Node


def paths_of(node: Node) -> tuple[str, ...]:
    """The paths of the modules that a node lies in, the outermost first; that of the model itself is ""."""
    return tuple(dict.fromkeys((*(path for path, _ in node.calls), node.path)))


def fitting(patterns: Iterable[str], node: Node) -> tuple[str, ...]:
    """The patterns that mean a node, in their order."""
    return _fitting(tuple(patterns), paths_of(node))


@lru_cache(maxsize=2**14)  # games ask many times for each node of a play
def _fitting(patterns: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(pattern for pattern in patterns if any(fnmatchcase(path, pattern) for path in paths))


def check_patterns(keyword: str, patterns: Iterable[str], nodes: Sequence[Node], wanted: str = "node") -> None:
    """Refuse a pattern that means none of the nodes."""
    used = {pattern for node in nodes for pattern in fitting(patterns, node)}
    for pattern in patterns:
        if pattern not in used:
            known = sorted({path for node in nodes for path in paths_of(node) if path})
            example = f" such as {known[0]!r}" if known else ""
            raise KeywordError(
                f"{keyword}: the pattern {pattern!r} matches no {wanted} of this network{suggestion(pattern, known)}; "
                f"give the path of a module{example}, with * for any part of it."
            )
