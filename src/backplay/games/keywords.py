"""What a keyword accepts: its default, its range in words, and the check that names what was given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from backplay.errors import KeywordError


@dataclass(frozen=True)
class Number:
    """A finite number from `low` (left out if `strict`) to `high`; whole if its default is; None if its default is."""

    default: float | None
    low: float = -math.inf
    strict: bool = False
    high: float = math.inf
    note: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise a `KeywordError` unless the value is accepted."""
        if value is None and self.default is None:
            return
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        outside = number < self.low or number > self.high or (self.strict and number == self.low)
        if not math.isfinite(number) or outside or (self.whole and not isinstance(value, int)):
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")

    @property
    def whole(self) -> bool:
        return isinstance(self.default, int)

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        low = f" {'>' if self.strict else '>='} {self.low:g}" if self.low > -math.inf else ""
        high = f"{' and' if low else ''} <= {self.high:g}" if self.high < math.inf else ""
        return f"{'an integer' if self.whole else 'a finite number'}{low}{high}{' or None' * (self.default is None)}"


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    default: str | bool
    choices: tuple[str | bool, ...]
    note: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise a `KeywordError` unless the value is accepted."""
        if not isinstance(value, (str, bool)) or value not in self.choices:
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return f"one of {', '.join(map(repr, self.choices))}"


@dataclass(frozen=True)
class Place:
    """The name of a module or node; None leaves it to the method."""

    default: str | None = None
    note: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise a `KeywordError` unless the value is accepted."""
        if value is not None and not isinstance(value, str):
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return "the name of a module or node, or None"


Keyword = Number | Choice | Place
