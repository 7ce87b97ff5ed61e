"""A scene: what is played, as the page's controls and its address say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backplay.errors import InputError, KeywordError, instead
from backplay.games import RoutingGame, StoppingGame
from backplay.games.modes import Modes, RoutingModes, StoppingModes
from backplay.keywords import ByLayer, Choice, Keyword, Number

GAMES: dict[str, type[RoutingGame] | type[StoppingGame]] = {"rg": RoutingGame, "sg": StoppingGame}
MODES: dict[str, type[Modes]] = {"rg": RoutingModes, "sg": StoppingModes}
LONGEST = 2000  # letters of a sentence


@dataclass(frozen=True)
class Scene:
    """A model, an input, a class and a game with its modes. Scenes that are equal have equal pictures."""

    model: str
    picture: str = "example:0"
    text: str = ""
    target: int | None = None  # None: the class that the model answers
    game: str = "rg"
    modes: tuple[tuple[str, Any], ...] = ()  # those that differ from their defaults, in the order of the game
    layers: str = ""  # `features.*: tau=0.5; head.*: epsilon=0`

    def keywords(self) -> dict[str, Any]:
        """What the game is made with."""
        layers = read_layers(self.layers, self.game)
        return dict(self.modes) | ({"layers": layers} if layers else {})

    def query(self, prefix: str = "") -> dict[str, str]:
        """The scene as parameters of an address; what is at its default is left out."""
        plain = {"model": self.model, "picture": self.picture, "text": self.text, "game": self.game}
        target = {} if self.target is None else {"target": str(self.target)}
        layers = {"layers": self.layers} if self.layers else {}
        modes = {name: _written(value) for name, value in self.modes}
        found = {name: value for name, value in plain.items() if value} | target | modes | layers
        return {prefix + name: value for name, value in found.items()}


def accepts(game: str) -> dict[str, Number | Choice]:
    """What each mode of a game may be, modes by layer aside."""
    return {name: a for name, a in MODES[game].accepts().items() if isinstance(a, (Number, Choice))}


def changed(game: str, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Those of the modes that the game has and that differ from their defaults, checked.

    Noise of gates that are exact, and what attention would do that is a gradient, say nothing and are left out.
    """
    known = accepts(game)
    found = {name: known[name].check(name, values[name]) for name in known if name in values}
    for name, (switch, off) in MODES[game].idle.items():
        if found.get(switch, known[switch].default) == off:
            found.pop(name, None)
    return tuple((name, value) for name, value in found.items() if value != known[name].default)


def from_query(given: Mapping[str, str], default: Scene, prefix: str = "") -> Scene:
    """The scene of an address; what it does not say is as in `default`."""
    told = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    game = told.get("game", default.game)
    if game not in GAMES:
        raise InputError(f"game={game[:20]!r} is unknown; it is rg, the Routing Game, or sg, the Stopping Game.")
    known = accepts(game)
    modes = {name: read_value(name, accept, told[name]) for name, accept in known.items() if name in told}
    target = told.get("target", "")
    if target and not is_number(target):
        raise InputError(f"target={target[:20]!r} is no number of a class; give 0 or more.")
    read_layers(told.get("layers", ""), game)
    return Scene(
        model=told.get("model", default.model),
        picture=told.get("picture", default.picture),
        text=told.get("text", default.text)[:LONGEST],
        target=int(target) if target else None,
        game=game,
        modes=changed(game, modes),
        layers=told.get("layers", "").strip(),
    )


def is_number(text: str) -> bool:
    """Whether a text is a whole number, and none so long that Python refuses to read it."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def read_value(name: str, accept: Keyword, text: str) -> Any:
    """A text as what a mode accepts; a `KeywordError` unless it is in its range."""
    plain: Any = text.strip()
    if accept.default is None and plain.lower() == "none":
        return None
    if isinstance(accept, Choice) and True in accept.choices:
        plain = {"true": True, "false": False}.get(plain.lower(), plain)
    if isinstance(accept, Number):
        try:
            plain = float(plain)
        except ValueError:
            raise KeywordError(f"{name}={text[:20]!r} is no number; it must be {accept.range}.") from None
    return accept.check(name, plain)


def read_layers(text: str, game: str) -> dict[str, dict[str, Any]]:
    """`features.*: tau=0.5, epsilon=0; head.*: alpha=1` as the keyword `layers` takes it; nothing where it is empty."""
    known = by_layer(game)
    found: dict[str, dict[str, Any]] = {}
    for part in filter(str.strip, text.replace("\n", ";").split(";")):
        pattern, colon, modes = part.strip().partition(":")
        if not colon or not pattern.strip() or not modes.strip():
            raise InputError(f"{part.strip()[:40]!r} is no modes of a layer; write features.*: tau=0.5, epsilon=0.")
        inner = found.setdefault(pattern.strip(), {})
        for mode in filter(str.strip, modes.split(",")):
            name, equals, value = (word.strip() for word in mode.partition("="))
            if not equals:
                raise InputError(f"{mode.strip()[:40]!r} sets no mode; write tau=0.5.")
            if name not in known:
                raise KeywordError(f"no mode {name!r} by layer{instead(name, known)}.")
            inner[name] = read_value(name, known[name], value)
    return found


def by_layer(game: str) -> Mapping[str, Number | Choice]:
    """What each mode may be that a game has by layer."""
    accept = MODES[game].accepts()["layers"]
    assert isinstance(accept, ByLayer)
    return accept.accepts


def with_mode(text: str, game: str, pattern: str, name: str, value: Any) -> str:
    """Modes by layer with one mode of one pattern changed; a new pattern comes last, where it wins."""
    if not pattern.strip() or set(pattern) & set(":;"):
        raise InputError(f"{pattern[:40]!r} names no layers; choose some, or write a pattern such as features.*.")
    found = read_layers(text, game)
    found.setdefault(pattern.strip(), {})[name] = by_layer(game)[name].check(name, value)
    written = {p: ", ".join(f"{mode}={_written(v)}" for mode, v in modes.items()) for p, modes in found.items()}
    return "; ".join(f"{p}: {modes}" for p, modes in written.items())


def _written(value: Any) -> str:
    """A mode in an address: numbers as short as they can be read back."""
    return repr(value) if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
