"""Modes by layer: for patterns of module paths, the keywords that hold there instead of the game's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Layers(Mapping[str, Mapping[str, Any]]):
    """`{pattern: {keyword: value}}` in the order in which it was given, read-only as all modes of a game are."""

    def __init__(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        self._keywords = {pattern: tuple(inner.items()) for pattern, inner in given.items()}

    def __getitem__(self, pattern: str) -> Mapping[str, Any]:
        return dict(self._keywords[pattern])

    def __iter__(self) -> Iterator[str]:
        return iter(self._keywords)

    def __len__(self) -> int:
        return len(self._keywords)

    def __eq__(self, other: object) -> bool:
        """Later patterns win: other orders are other modes."""
        if not isinstance(other, Mapping):
            return NotImplemented
        given: Mapping[Any, Any] = other
        return list(self.items()) == list(given.items())

    def __hash__(self) -> int:
        return hash(tuple(self._keywords))

    def __repr__(self) -> str:
        return repr(self.to_dict())

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The same as plain dicts."""
        return {pattern: dict(inner) for pattern, inner in self._keywords.items()}
