"""What a keyword accepts: its default, its range in words, and the check that names what was given."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from backplay.errors import KeywordError, instead


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


def from_json(name: str, value: Any, accepted: str) -> Any:
    """What a text holds as JSON, a `KeywordError` if it is none; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise KeywordError(f"{name}={value!r} is no JSON ({error}); it must be {accepted}.") from None


@dataclass(frozen=True)
class ByLayer:
    """Keywords by layer: for patterns of module paths, a mapping each of the keywords that hold there.

    Command lines give it as JSON.
    """

    accepts: Mapping[str, Number | Choice] = field(default_factory=dict[str, "Number | Choice"])
    elsewhere: tuple[str, ...] = ()  # keywords that hold for the whole game: refused here
    default: None = None
    note: str = "keywords that hold in some modules; later patterns win"

    def check(self, name: str, value: Any) -> Any:
        """The value as a plain dict of dicts; a `KeywordError` unless it is accepted."""
        value = from_json(name, value, self.range)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")
        given: Mapping[Any, Any] = value
        return {pattern: self._keywords(name, pattern, inner) for pattern, inner in given.items()}

    def _keywords(self, name: str, pattern: Any, keywords: Any) -> dict[str, Any]:
        if not isinstance(pattern, str) or not isinstance(keywords, Mapping):
            raise KeywordError(f"{name}={{{pattern!r}: {keywords!r}}} is out of range: it must be {self.range}.")
        given: Mapping[Any, Any] = keywords
        for key in given:
            if key in self.elsewhere:
                raise KeywordError(
                    f"{name}: {key!r} at {pattern!r} has no meaning by layer, only for the whole game; "
                    f"give it to the game itself, {key}=…."
                )
            if key not in self.accepts:
                hint = instead(key, self.accepts, "by layer there are")
                raise KeywordError(f"{name}: unknown keyword {key!r} at {pattern!r}{hint}.")
        return {key: self.accepts[key].check(f"{name}[{pattern!r}]: {key}", inner) for key, inner in given.items()}

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return 'a mapping such as {"features.*": {"' + next(iter(self.accepts), "keyword") + '": …}}, or None'


@dataclass(frozen=True)
class Bound(Number):
    """A finite number, or a tensor of such that can be broadcast to the input; None leaves it to the input."""

    default: float | None = None

    def check(self, name: str, value: Any) -> Any:
        """The value, a tensor detached; a `KeywordError` unless it is accepted."""
        if not isinstance(value, Tensor):
            return super().check(name, value)
        if not value.numel() or value.is_complex() or not bool(torch.isfinite(value).all()):
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")
        return value.detach()

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return "a finite number, a tensor of such like the input, or None"


@dataclass(frozen=True)
class ByPattern:
    """Objects by patterns of module paths; `read` checks one of them, and `words` says what they are.

    Command lines give it as JSON.
    """

    read: Callable[[str, Any], Any]
    words: str
    default: None = None
    note: str = ""

    def check(self, name: str, value: Any) -> Any:
        """The value as a plain dict; a `KeywordError` unless it is accepted."""
        value = from_json(name, value, self.range)
        if value is None:
            return None
        if not isinstance(value, Mapping) or not all(isinstance(pattern, str) for pattern in value):  # pyright: ignore[reportUnknownVariableType]
            raise KeywordError(f"{name}={value!r} is out of range: it must be {self.range}.")
        given: Mapping[Any, Any] = value
        return {pattern: self.read(f"{name}[{pattern!r}]", inner) for pattern, inner in given.items()}

    @property
    def range(self) -> str:
        """What is accepted, in words."""
        return f"a mapping such as {self.words}, or None"


Keyword = Number | Choice | Layer | ByLayer | ByPattern | Bound

SEED = Number(0, note="fixes every draw")
