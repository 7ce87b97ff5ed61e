"""What two walks are asked when they are compared: distances, the overlap of those that arrive, what theory says of it.

`distance` is `H`, `surviving` `H_surv` (NaN where no walk arrives), `permuted` `H_perm`, an upper bound of it;
`ordinary` is the overlap `BC_ord` at the input and `bound` what thm:rand-adf and thm:rand-routing allow it on average;
`floor` is the `H` that the cemetery floor predicts, an estimate and no bound (rem:adf-cemetery-floor, S35).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from backplay.errors import CaptureError, InputTypeError, KeywordError, instead
from backplay.games import Play, RoutingGame, StoppingGame
from backplay.games.game import Game
from backplay.games.neurons import names_neurons, one_a_sample
from backplay.methods import Explainer
from backplay.network import Model, Network, capture, read_model
from backplay.sanity.similarity import Described, describe
from backplay.trajectory import bounds
from backplay.trajectory.hellinger import Hellinger, hellinger

GAMES: dict[str, tuple[type[Game[Any]], dict[str, Any]]] = {
    "sg": (StoppingGame, {}),
    "rg": (RoutingGame, {"epsilon": 0.0}),  # as in tab:double-random-hellinger
}
USUAL = ("distance", "surviving")

Readouts = Mapping[str, Mapping[str, Tensor]]  # readout -> game -> (B,)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Walks of two plays, for each game: one number for each sample."""

    distance: Mapping[str, Tensor]  # game -> (B,) H
    surviving: Mapping[str, Tensor]  # game -> (B,) H of the walks that arrive; NaN where none does
    further: Readouts = field(default_factory=dict[str, Mapping[str, Tensor]])  # what else was asked for

    def readout(self, name: str) -> Mapping[str, Tensor]:
        """game -> (B,) any of the readouts by its name."""
        return getattr(self, name) if name in USUAL else self.further[name]


def meet(pairs: Mapping[str, tuple[Play, Play]], further: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a `Compared` from the two plays of each game."""
    found: dict[str, dict[str, Tensor]] = {name: {} for name in (*USUAL, *further)}
    for game, (a, b) in pairs.items():
        with torch.no_grad():
            h = hellinger(a, b)
            for name, kept in found.items():
                kept[game] = READOUTS[name](h)
    return {name: found[name] for name in USUAL} | {"further": {name: found[name] for name in further}}


def _ordinary(h: Hellinger) -> Tensor:
    """(B,) `BC_ord`, right even where it is far below the roundings of `BC`; 0 where no walk arrives."""
    return (h.bc_surviving * ((h.log_survival_a + h.log_survival_b) / 2).exp()).nan_to_num(0.0).clamp(max=1)


def _bound(h: Hellinger) -> Tensor:
    """(B,) `((1 − δ) b)^N`: `N` gates differ, the one that differs least in the share `δ`; `b` is 1 if players stop."""
    rows = bounds.largest_row_overlap(h.a, h.b) if isinstance(h.a.game, RoutingGame) else 1.0
    found: list[float] = []
    for k in range(len(h.distance)):
        shares = [float(gate.differ[k]) for gate in h.gates if float(gate.differ[k]) > 0]
        found.append(bounds.routing_bound(min(shares), rows, len(shares)) if shares else 1.0)
    return h.distance.new_tensor(found)


def _floor(h: Hellinger) -> Tensor:
    """(B,) the `H` that belongs to the measured floor of `BC`; 0 where there are no gates to close."""
    layers = bounds.measured_floor(h.gates)
    return (1 - layers[-1].bc).clamp(min=0).sqrt() if layers else torch.zeros_like(h.distance)


READOUTS: dict[str, Callable[[Hellinger], Tensor]] = {
    "distance": lambda h: h.distance,
    "surviving": lambda h: h.surviving,
    "permuted": lambda h: hellinger(h.a, h.b, invariant="permutation").distance,
    "ordinary": _ordinary,
    "bound": _bound,
    "floor": _floor,
}


Names = str | Sequence[str]  # one name, or several


def read_names(games: Names, further: Names) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The games and what else is asked of them, by their names; those that there are not are refused."""
    return _read_names("games", games, list(GAMES)), _read_names("further", further, _FURTHER)


def _read_names(keyword: str, given: Any, known: Sequence[str]) -> tuple[str, ...]:
    found: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(listed(keyword, given, "names"))
    unknown = [name for name in found if name not in known]
    if unknown:
        raise KeywordError(f"{keyword} has {unknown[0]!r}{instead(unknown[0], known)}.")
    return found


def listed(keyword: str, given: Any, what: str) -> list[Any]:
    """What a caller gives as several things; a single one is refused."""
    values: Any = given.tolist() if isinstance(given, Tensor) else given
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise KeywordError(f"{keyword}={given!r} is out of range: it must be a list of {what}.")
    return list(values)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def check_batch(x: object, caller: str) -> None:
    """Inputs that are counted and taken apart: one tensor, its first dimension the samples."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not len(x):
        given = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputTypeError(f"{caller} takes inputs as one tensor (B, …) of one sample or more; got {given}.")


_FURTHER = [name for name in READOUTS if name not in USUAL]


def played(network: Network, game: str, x: Tensor, target: Any) -> Play:
    """The play of a game by its short name."""
    kind, keywords = GAMES[game]
    with torch.no_grad():
        return kind(network, **keywords).play(x, target)


class Unchanged:
    """A network on its inputs: what many others are compared with, each game played once and each map made once."""

    def __init__(self, network: Network, x: Tensor, aim: Any) -> None:
        self.network, self.x, self.aim = network, x, aim
        self._plays: dict[str, Play] = {}
        self._maps: dict[str, Described] = {}

    def play(self, game: str) -> Play:
        """The play of a game by its short name."""
        if game not in self._plays:
            self._plays[game] = played(self.network, game, self.x, self.aim)
        return self._plays[game]

    def maps(self, name: str, explainer: Explainer) -> Described:
        """The maps of a method, under a name of its own."""
        if name not in self._maps:
            self._maps[name] = describe(explainer.on(self.network).attribute(self.x, self.aim))
        return self._maps[name]

    def compared_with(
        self, network: Network, x: Tensor, games: Sequence[str], further: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The fields of a `Compared`: its walks beside those of another network, or of other inputs."""
        return meet({game: (self.play(game), played(network, game, x, self.aim)) for game in games}, further)


def network_of(model: Model, x: Tensor, caller: str) -> Network:
    """A captured network as it is; a module, captured on `x`."""
    found = read_model(model, caller)
    return found if isinstance(found, Network) else capture(found, x)


def aim_of(network: Network, x: Tensor, target: Any) -> Any:
    """What both sides are asked about: the target, or the class that the network finds."""
    aim = target if names_neurons(target) else StoppingGame(network).targets(x, target)
    if isinstance(aim, Tensor) and not aim.is_floating_point() and aim.ndim == 2 and aim.shape[1] == 1:
        return aim[:, 0]
    return aim


def aim_at(aim: Any, k: int, batch: int) -> Any:
    """The aim of one sample of a batch."""
    return (one_a_sample(aim, batch) if names_neurons(aim) else aim)[k : k + 1]


def captured(network: Network, twin: nn.Module, x: Tensor) -> Network:
    """The same graph on other weights; captured anew where a sign among them makes it another graph (S5)."""
    other = network.on(twin)
    try:
        other.weights()
    except CaptureError:
        return capture(twin, x)
    return other


def mixed(*parts: object) -> int:
    """A seed out of several numbers and words: 32 bits, which is what torch's generator reads."""
    return zlib.crc32(" ".join(map(str, parts)).encode())
