"""What a call asks for: methods, or presets, at every combination of the parameters that were given."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import backplay as bp
from backplay.cli.options import read_value
from backplay.errors import KeywordError, instead
from backplay.keywords import Keyword, Layer

GAMES = {"sg": bp.StoppingGame, "rg": bp.RoutingGame}
LAYER = Layer(note="a module at whose output relevance is asked for; CAMs read their feature map there")
_LONGEST = 120  # bytes of the part of a file's name that carries the parameters
_SYMBOLS = {"tau": "τ", "alpha": "α", "beta": "β", "epsilon": "ε", "gamma": "γ", "risk": "λ", "input_variance": "σ²"}


@dataclass(frozen=True, eq=False)
class Column:
    """One map of each photograph: a method with its parameters."""

    asked: str  # the name that was given: of a method, or of a preset
    method: str
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])  # parameters from the command line
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])  # all of them, defaults too

    @property
    def layer(self) -> str | None:
        """The module at whose output relevance is asked for; None where that is the photograph, as of every CAM."""
        return None if "layer" in self.params else self.given.get("layer")

    @property
    def name(self) -> str:
        """`rg`, or `rg tau=0.5`."""
        return " ".join([self.asked, *(f"{k}={words(v)}" for k, v in self.given.items())])

    @property
    def title(self) -> str:
        """Over a map: `RG, τ = 0.5`."""
        shown = bp.methods()[self.method].title if self.asked == self.method else self.asked
        return ", ".join([shown, *typeset(self.given)])

    @property
    def modes(self) -> dict[str, Any]:
        """Of a game: its ε, and what else is not as it is by default."""
        known, values = bp.methods()[self.method].params, {**self.params, **self.given}
        return {k: v for k, v in values.items() if k == "epsilon" or k not in known or v != known[k].default}

    @property
    def preset(self) -> bp.Preset | None:
        return bp.presets[self.asked] if self.asked in bp.presets and self.asked != self.method else None

    def describe(self) -> dict[str, Any]:
        """For JSON: every parameter, so that a record of them outlives a change of the defaults."""
        return {"name": self.name, "method": self.method, "params": {**self.params, **self.given}}


def words(value: Any) -> str:
    """A parameter's value as it is typed."""
    if isinstance(value, (bool, Mapping)):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def typeset(params: Mapping[str, Any]) -> list[str]:
    """Parameters as a picture has them: `τ = 0.5`."""
    return [f"{_SYMBOLS.get(k, k)} = {_typeset(v)}" for k, v in params.items()]


def _typeset(value: Any) -> str:
    return words(value).replace("-", "−") if isinstance(value, (int, float)) else words(value)


def names() -> list[str]:
    """Every name that `--method` takes."""
    return [*bp.methods(), *(name for name in bp.presets if name not in bp.methods())]


def read(asked: Sequence[str], keywords: Mapping[str, Sequence[str]]) -> list[Column]:
    """A column for each method at each combination of the parameters that it knows.

    Refused before anything that takes long: unknown names, parameters that no chosen method knows, values out of their
    range or that exclude each other, methods that lack their library.
    """
    if not asked or "" in asked:
        raise KeywordError("--method names no method; see `backplay methods`.")
    unknown = [name for name in asked if name not in names()]
    if unknown:
        where = "`backplay methods` lists them"
        raise KeywordError(f"no method named {unknown[0]!r}{instead(unknown[0], names(), where=where)}.")
    _check_known(asked, keywords)
    found = [column for name in dict.fromkeys(asked) for column in _columns(name, keywords)]
    return list({column.name: column for column in found}.values())


def _check_known(asked: Sequence[str], keywords: Mapping[str, Sequence[str]]) -> None:
    """A parameter goes to those methods that know it; one that none of them knows is an error."""
    for name in keywords:
        if not any(name in accepted(bp.methods()[method_of(one)]) for one in asked):
            owners = [info.name for info in bp.methods().values() if name in accepted(info)]
            option, have = f"--{name.replace('_', '-')}", "has" if len(owners) == 1 else "have"
            raise KeywordError(f"{option}: {', '.join(asked)} has no such parameter; {', '.join(owners)} {have} it.")


def accepted(info: bp.MethodInfo) -> dict[str, Keyword]:
    """What may be set of a method: its parameters, and the layer of those that give relevance at layers."""
    return {**info.params} | ({"layer": LAYER} if info.layers else {})


def method_of(asked: str) -> str:
    """The method of that name, or the one that a preset sets the parameters of."""
    if asked in bp.methods():
        return asked
    preset = bp.presets[asked]
    if preset.reynolds is not None:
        return "rg_eq"
    return "rg" if preset.game is bp.RoutingGame else "sg"


def _columns(asked: str, keywords: Mapping[str, Sequence[str]]) -> list[Column]:
    info = bp.methods()[method_of(asked)]
    info.check_libraries()
    known = accepted(info)
    own = {k: [read_value(k, accepts, v) for v in keywords[k]] for k, accepts in known.items() if k in keywords}
    preset = bp.presets[asked] if asked not in bp.methods() else None
    base = {} if preset is None else {**preset.keywords, **(preset.reynolds or {})}
    found: list[Column] = []
    for values in itertools.product(*own.values()):
        given = dict(zip(own, values, strict=True))
        set_here = {k: v for k, v in given.items() if k in info.params}
        params = info.check(base | set_here)
        if info.name in GAMES:
            GAMES[info.name].modes_type(**{**base, **set_here})  # what excludes what
        found.append(Column(asked, info.name, given, params))
    return found


def file_name(columns: Sequence[Column], more: Mapping[str, Any]) -> str:
    """What was asked for, as a part of a file's name: `rg-tau=0.5,1+gradcam-target=3`."""
    parts: list[str] = []
    for asked in dict.fromkeys(column.asked for column in columns):
        own = [column.given for column in columns if column.asked == asked]
        values = {k: ",".join(dict.fromkeys(words(given[k]) for given in own)) for k in own[0]}
        parts.append("-".join([asked, *(f"{k}={v}" for k, v in values.items())]))
    name = "-".join(["+".join(parts), *(f"{k}={words(v)}" for k, v in more.items() if v is not None)])
    safe = re.sub(r"[^\w.,+=-]+", "_", name)
    if len(safe.encode()) <= _LONGEST:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{safe.encode()[: _LONGEST - 9].decode(errors='ignore')}-{digest}"
