"""What a keyword accepts: its default, its range in words, and the check that names what was given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
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

    def check(self, name: str, value: Any) -> Any:
        """The value as Python's own int or float; a `KeywordError` unless it is accepted."""
        if value is None and self.default is None:
            return None
        number = self._plain(value)
        long = isinstance(number, int) and not -(2**63) <= number < 2**63  # torch counts and seeds with 64 bits
        if number is None or long or not math.isfinite(number) or not self._inside(number):
            bits = " of no more than 64 bits" * long
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}{bits}.")
        return number

    def _plain(self, value: Any) -> int | float | None:
        """The number, numpy's for one, as Python's own; None if it is none of the right kind."""
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        if self.whole:
            return int(value) if isinstance(value, Integral) else None
        try:
            return float(value)
        except OverflowError:  # an integer of hundreds of digits
            return None

    def _inside(self, number: float) -> bool:
        return self.low <= number <= self.high and not (self.strict and number == self.low)

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

    def check(self, name: str, value: Any) -> Any:
        """The value; a `KeywordError` unless it is accepted."""
        if not isinstance(value, (str, bool)) or value not in self.choices:
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")
        return self.choices[self.choices.index(value)]

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return f"one of {', '.join(map(repr, self.choices))}"


@dataclass(frozen=True)
class Layer:
    """The name of a module or node; None leaves it to the method."""

    default: str | None = None
    note: str = ""

    def check(self, name: str, value: Any) -> Any:
        """The value; a `KeywordError` unless it is accepted."""
        if value is not None and not isinstance(value, str):
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")
        return value

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return "the name of a module or node, or None"


Keyword = Number | Choice | Layer

SEED = Number(0, note="fixes every draw")
