"""Maps of photographs: one network, several methods, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import backplay as bp
from backplay import models
from backplay.cli.columns import GAMES, Column
from backplay.errors import InputError, UnsupportedError, suggestion
from backplay.games.batches import check_finite
from backplay.games.play import Play
from backplay.kernels.kernel import WALK
from backplay.methods.subject import Subject
from backplay.network.capture import TOLERANCE

MOST = 8  # photographs at once: a line tells of each as it is done


@dataclass(frozen=True)
class ColumnMap:
    """One map of one photograph."""

    heat: Tensor  # (C, H, W)
    arrives: float | None  # the share of the walk that arrives at the photograph; None where nobody walks
    sound: bool  # finite, and no mass of the walk is lost


@dataclass(frozen=True)
class Explained:
    """What a network says to a photograph, and its maps."""

    x: Tensor  # (3, H, W) as the network saw it
    target: int
    predicted: int
    against: int | None
    value: float  # what is explained: a logit, or the difference of two
    maps: dict[Column, ColumnMap]


class Explaining:
    """Columns on one network, which is captured for each shape of image; games and methods are made once for each."""

    def __init__(
        self, loaded: models.Loaded, columns: Sequence[Column], target: str | None = None, against: str | None = None
    ) -> None:
        self.loaded, self.columns = loaded, columns
        self.target = None if target is None else class_number("--target", target, loaded)
        self.against = None if against is None else class_number("--against", against, loaded)
        if self.against is not None and self.against == self.target:
            raise InputError(f"--against {against} is the class that --target names; give another one.")
        self._known: dict[tuple[int, ...], tuple[bp.Network, dict[Column, Any]]] = {}

    def prepare(self, x: Tensor) -> bp.Network:
        """The network for images like this one, (1, 3, H, W); refuses what would fail for every photograph."""
        shape = tuple(x.shape[1:])
        if shape not in self._known:
            network = bp.capture(self.loaded.model, x)
            check_classes(network, self.target, self.against)
            for column in self.columns:
                bp.Explainer(network, column.method, **column.params).check_fits(network)
                _warn_of_preset(column, network)
            self._known[shape] = network, {column: _player(column, network) for column in self.columns}
        return self._known[shape][0]

    def together(self, x: Tensor) -> int:
        """How many images like this one are best explained at once."""
        return min(self.prepare(x).together(x), MOST)

    def __call__(self, xs: Tensor) -> list[Explained]:
        """The answers to a batch (B, 3, H, W): the model runs once for all columns."""
        network = self.prepare(xs[:1])
        players = self._known[tuple(xs.shape[1:])][1]
        with torch.inference_mode(False), torch.no_grad():
            subject = Subject.of(network, xs, self.target)
            chosen = subject.logits.argmax(1) if self.target is None else torch.full((len(xs),), self.target)
            if self.against is not None:
                subject = subject.aimed(self._weights(subject.logits, chosen))
            maps = {column: _maps(players[column], subject) for column in self.columns}
        return [
            Explained(
                x=xs[k],
                target=int(chosen[k]),
                predicted=int(subject.logits[k].argmax()),
                against=self.against,
                value=float(subject.aim.value(subject.logits)[k]),
                maps={column: found[k] for column, found in maps.items()},
            )
            for k in range(len(xs))
        ]

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


def _player(column: Column, network: bp.Network) -> Any:
    """The game of a column, or its method."""
    if column.method in GAMES:
        return GAMES[column.method](network, **column.params)
    return bp.Explainer(network, column.method, **column.params)


def _maps(player: Any, subject: Subject) -> list[ColumnMap]:
    if isinstance(player, bp.Explainer):
        (heat,) = player.maps_of(subject)
        return [ColumnMap(one, None, True) for one in heat]
    try:
        play = Play(player, subject.network, subject.inputs, subject.target)
        (heat,) = check_finite(play.maps())
        # the walk's own pass: its mass at the image is the share that arrives, and with the rest it must be 1
        arrives = play.mass(play.network.input, WALK).total()
        lost = (arrives + play.passed(WALK).losses.total() - 1).abs()
    except UnsupportedError:  # where gradients take the walk's place there is a map, but nobody walks (S25)
        (heat,) = check_finite(Play(player, subject.network, subject.inputs, subject.target, keep=False).maps())
        return [ColumnMap(one, None, True) for one in heat]
    rows = zip(heat, arrives.tolist(), lost.tolist(), strict=True)
    return [ColumnMap(one, share, error < TOLERANCE) for one, share, error in rows]


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
    told = column.preset.misfit(network) if column.preset is not None else None
    if told is not None:
        warnings.warn(f"{column.asked}: {told}", stacklevel=2)


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
        raise InputError(f"{option} {text}: the model has no such class{hint}; give its name or number.")
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
