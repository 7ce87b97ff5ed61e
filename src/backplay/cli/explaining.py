"""Maps of photographs: one network, several methods, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.cli.arriving import ArrivingPlay, SpentPass
from backplay.cli.columns import GAMES, Column
from backplay.cli.layers import Laid, check_map, laid_out
from backplay.entry import without_gradients
from backplay.errors import InputError, UnsupportedError, suggestion
from backplay.games.batches import check_finite
from backplay.games.play import Play
from backplay.inputs import read_target
from backplay.methods.subject import Subject
from backplay.network.arguments import Arguments
from backplay.network.capture import TOLERANCE
from backplay.network.captures import Captures

_NAMED = 20  # classes that an error names
MOST = 8  # photographs at once: a line tells of each as it is done


@dataclass(frozen=True)
class ColumnMap:
    """One map of one photograph, in arrays: what is done with it wakes none of torch's threads."""

    heat: NDArray[Any]  # (C, H, W), or as a layer has it
    arrives: float | None = None  # the share of the walk that arrives at the photograph; None where nobody walks
    sound: bool = True  # finite, and no mass of the walk is lost
    plane: NDArray[Any] | None = None  # (h, w) the same as it lies on the photograph; None: the sum of its channels
    aside: float = 0.0  # the share of a layer's relevance that lies nowhere there, but on a class token

    @property
    def shown(self) -> NDArray[Any]:
        """(h, w)."""
        return self.heat.sum(0, dtype=np.float64) if self.plane is None else self.plane


@dataclass(frozen=True)
class Explained:
    """What a network says to a photograph, and its maps."""

    x: NDArray[Any]  # (3, H, W) as the network saw it
    target: int
    predicted: int
    against: int | None
    value: float  # what is explained: a logit, or the difference of two
    maps: dict[Column, ColumnMap]


@dataclass(frozen=True)
class _Ready:
    """A network captured for images of one shape, and what is made once for it."""

    network: bp.Network
    players: dict[Column, Any]  # a game, or a method
    layers: dict[Column, Laid]  # how relevance at a layer lies on the image


class Explaining:
    """Columns on one network, which is captured for each shape of image; games and methods are made once for each.

    With `share` the walk of each game is followed too, which finds the share that arrives; without, the map alone.
    """

    def __init__(
        self,
        loaded: models.Loaded,
        columns: Sequence[Column],
        target: str | None = None,
        against: str | None = None,
        share: bool = True,
    ) -> None:
        self.loaded, self.columns, self.share = loaded, columns, share
        self.target = None if target is None else class_number("--target", target, loaded)
        self.against = None if against is None else class_number("--against", against, loaded)
        if self.against is not None and self.against == self.target:
            raise InputError(f"--against {against} is the class that --target names; give another one.")
        self._known: dict[tuple[int, ...], _Ready] = {}
        self._still: set[Column] = set()  # where nobody walks

    def prepare(self, x: Tensor) -> bp.Network:
        """The network for images like this one, (1, 3, H, W); refuses what would fail for every photograph."""
        return self._ready(x).network

    def _ready(self, x: Tensor) -> _Ready:
        shape = tuple(x.shape[1:])
        if shape not in self._known:
            network = bp.capture(self.loaded.model, x)
            check_classes(network, self.target, self.against)
            for column in self.columns:
                bp.Explainer(network, column.method, **column.params).check_fits(network)
                if "layer" in column.params:
                    check_map(network, column.params["layer"])
                _warn_of_preset(column, network)
            self._known[shape] = _Ready(
                network,
                {column: _player(column, network) for column in self.columns},
                {column: laid_out(network, column.layer) for column in self.columns if column.layer is not None},
            )
        return self._known[shape]

    def together(self, x: Tensor) -> int:
        """How many images like this one are best explained at once."""
        return min(self.prepare(x).together(x), MOST)

    def __call__(self, xs: Tensor) -> list[Explained]:
        """The answers to a batch (B, 3, H, W): the network runs once for all games, the model once for all others."""
        ready = self._ready(xs[:1])
        inputs = Captures.held(ready.network).prepare(xs)[1]
        games = [column for column in self.columns if not isinstance(ready.players[column], bp.Explainer)]
        games.sort(key=lambda column: ready.players[column].forward_key() != ())  # on the network's own pass first
        others = [column for column in self.columns if column not in games]
        with without_gradients():
            subject = Subject.of(ready.network, xs, self.target) if others else None
            alone = len(games) == 1 and not self.share  # nobody else reads the values that this game does not
            needed = ready.players[games[0]].needed(ready.network) if alone else None
            passed = SpentPass(ready.network, inputs, ready.network.weights(), needed)
            if subject is None:
                passed.values()
            logits = passed.answer() if subject is None else subject.logits
            chosen = logits.argmax(1) if self.target is None else torch.full((len(xs),), self.target)
            aim = read_target(chosen if self.against is None else self._weights(logits, chosen), logits, inputs)
            maps: dict[Column, list[ColumnMap]] = {}
            for k, column in enumerate(games):
                passed.last = k == len(games) - 1
                maps[column] = self._played(column, ready.players[column], ready.network, inputs, aim.given, passed)
            for column in others:
                assert subject is not None
                (heat,) = ready.players[column].maps_of(subject.aimed(aim.given))
                maps[column] = [_laid(one, ready.layers.get(column)) for one in heat]
        images = xs.float().numpy()
        return [
            Explained(
                x=images[k],
                target=int(chosen[k]),
                predicted=int(logits[k].argmax()),
                against=self.against,
                value=float(aim.value(logits)[k]),
                maps={column: maps[column][k] for column in self.columns},
            )
            for k in range(len(xs))
        ]

    def _played(
        self, column: Column, game: Any, network: bp.Network, inputs: Arguments, target: Any, passed: SpentPass
    ) -> list[ColumnMap]:
        """The maps of a game, with the share of its walks that arrives."""
        if self.share and column not in self._still:
            try:
                play = ArrivingPlay(game, network, inputs, target, keep=False, shared=passed)
            except UnsupportedError:  # where gradients take the walk's place there is a map, but nobody walks (S25)
                self._still.add(column)
            else:
                (heat,) = check_finite(play.maps())
                arrives, ended = play.ends()
                lost = (arrives + ended - 1).abs()  # the walk is a law: what arrives and what ends elsewhere make 1
                rows = zip(heat.numpy(), arrives.tolist(), lost.tolist(), strict=True)
                return [ColumnMap(one, share, error < TOLERANCE) for one, share, error in rows]
        (heat,) = check_finite(Play(game, network, inputs, target, keep=False, shared=passed).maps())
        return [ColumnMap(one) for one in heat.numpy()]

    def _weights(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """+1 at the chosen class of each photograph and −1 at the other one (S26b)."""
        weights = torch.zeros_like(logits)
        weights.scatter_(1, chosen[:, None], 1.0)
        assert self.against is not None
        if bool((chosen == self.against).any()):
            name = self.loaded.class_name(self.against)
            raise InputError(f"--against: the model answers {name} itself; give --target or another class.")
        weights[:, self.against] = -1.0
        return weights


def _laid(heat: Tensor, lay: Laid | None) -> ColumnMap:
    if lay is None:
        return ColumnMap(heat.numpy())
    plane, aside = lay(heat)
    return ColumnMap(heat.numpy(), plane=plane.numpy(), aside=aside)


def _player(column: Column, network: bp.Network) -> Any:
    """The game of a column, or its method."""
    if column.method in GAMES and column.layer is None:
        return GAMES[column.method](network, **column.params)
    own = "layer" in column.params  # a parameter like others, of class activation maps
    return bp.Explainer(network, column.method, **column.params, **({} if own else {"layer": column.layer}))


def check_classes(network: bp.Network, target: int | None, against: int | None) -> None:
    """Refuse a network that is no classifier, and classes that it has not."""
    shape = network.output.shape[1:]
    if len(shape) != 1:
        raise InputError(f"the model returns {tuple(shape)} for an image; explain classifies: (classes,).")
    for option, index in (("--target", target), ("--against", against)):
        if index is not None and not 0 <= index < shape[0]:
            raise InputError(f"{option} {index}: the model has the classes 0 to {shape[0] - 1}.")


def _warn_of_preset(column: Column, network: bp.Network) -> None:
    """A preset says which architecture it is for, and warns elsewhere."""
    misfit = column.preset.misfit(network) if column.preset is not None else None
    if misfit is not None:
        warnings.warn(f"{column.asked}: {misfit}", stacklevel=2)


def class_number(option: str, text: str, loaded: models.Loaded) -> int:
    """The number of a class; names are looked up where the model brings them, whatever their case."""
    try:
        return int(text)
    except ValueError:
        pass
    if loaded.classes is None:
        raise InputError(f"{option} {text}: nobody named the classes of {loaded.source}; give a number.")
    found = [k for k, name in enumerate(loaded.classes) if name.casefold() == text.casefold()]
    if not found:
        hint = suggestion(text, loaded.classes)
        known = f": there are {', '.join(loaded.classes)}" if len(loaded.classes) <= _NAMED else ""
        raise InputError(f"{option} {text}: the model has no such class{hint}{known}; give its name or number.")
    if len(found) > 1:  # ImageNet has two cranes
        raise InputError(f"{option} {text}: classes {', '.join(map(str, found))} have this name; give a number.")
    return found[0]


def told_of(report: dict[str, Any]) -> str:
    """The maps of a report in a line: `RG 12 % arrives, Grad-CAM`."""
    from backplay.view.colours import share

    parts = [
        f"{name} {share(one['arrives'])} arrives" if one["arrives"] is not None else name
        for name, one in report["maps"].items()
    ]
    return ", ".join(parts).replace("\u00a0", " ")
