"""Scenes that have been played, and the numbers that panels and exports show of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from backplay.app.entropy import move_entropy
from backplay.app.grounds import Ground, Words, ground_of
from backplay.app.library import Library
from backplay.app.scene import GAMES, Scene
from backplay.app.uploads import Uploads
from backplay.games.play import Play
from backplay.games.subplay import SubPlay
from backplay.network import Node
from backplay.trajectory.sampling import Trajectories
from backplay.view.play import layers, shares

KEPT = 6  # solved scenes that are kept: going back and forth is free
WALKS = 40  # that are drawn

Numbers = NDArray[np.float64]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Passing:
    """What passes one layer: the shares of all walks in the turn of each player, and what they decide from there on."""

    name: str
    plus: float
    minus: float
    bits: float  # of the moves from this layer to the next one, of a walk that stands here


@dataclass(eq=False)
class Solved:
    """A scene with its play. Whoever asks it holds the lock of its model."""

    scene: Scene
    ground: Ground
    play: Play

    @property
    def value(self) -> float:
        """What is explained: the logit."""
        return float(self.play.value[0])

    @property
    def target(self) -> int:
        """The class that is explained."""
        if isinstance(self.ground, Words):
            return self.ground.goal(self.scene.target).index
        return self.ground.target(self.scene.target)

    @cached_property
    def heat(self) -> Numbers:
        """The map: (H, W) of pixels, (T,) of tokens."""
        found = self.play.attribution()
        if isinstance(self.ground, Words):
            return self.ground.scores(found, self.scene.game, self.scene.keywords())
        return self.ground.gather(found)

    @cached_property
    def players(self) -> tuple[Numbers, Numbers, float]:
        """Discounted visits of both players at the input, shaped as the map, and the logarithm of their scale."""
        found = self.play.occupation(self.play.network.input)
        plus, minus = (self.ground.gather(t) for t in (found.plus, found.minus))
        return plus, minus, float(found.log_scale[0])

    @cached_property
    def arriving(self) -> Numbers:
        """The probability that the walk ends at each pixel or token."""
        return self.ground.gather(self.play.marginal(self.play.network.input))

    @cached_property
    def walks(self) -> Trajectories:
        """Some of the walks that arrive."""
        return self.play.sample(WALKS, seed=0, arriving=True)

    @cached_property
    def rows(self) -> list[Passing]:
        """The layers from the output to the input."""
        order = {node: k for k, node in enumerate(self.play.network.nodes)}
        named = layers(self.play)
        bits = dict.fromkeys((node for _, node in named), 0.0)
        inner = sorted((node for node in bits if node not in self.play.network.inputs), key=order.__getitem__)
        for node, part in move_entropy(self.play).items():
            above = next((row for row in inner if order[row] >= order[node]), None)
            if above is not None:
                bits[above] += float(part[0])
        return [self._passing(name, node, bits[node]) for name, node in named]

    def _passing(self, name: str, node: Node, bits: float) -> Passing:
        plus, minus = (float(s[0]) for s in shares(self.play, node))
        return Passing(name, plus, minus, bits / (plus + minus) if plus + minus > 0 else 0.0)

    def ending_at(self, at: tuple[int, ...]) -> SubPlay:
        """The walks that end at a pixel or token."""
        return self.play.through(self.play.network.input, self.ground.mask(at))

    def layer_names(self) -> list[str]:
        """The layers that can be looked into, from the output to the input."""
        return [name for name, node in layers(self.play) if node not in self.play.network.inputs]


class Table:
    """Solved scenes by what they are. It knows no visitors: equal scenes are one, others never meet."""

    def __init__(self, library: Library, uploads: Uploads) -> None:
        self.library, self.uploads = library, uploads
        self._known: OrderedDict[Scene, Solved] = OrderedDict()
        self._grounds: OrderedDict[tuple[str, str], Ground] = OrderedDict()
        self._lock = threading.Lock()

    def solve(self, scene: Scene) -> Solved:
        """The play of a scene; `BackplayError` says in a line why there is none."""
        model = self.library.find(scene.model)
        known = self._recall(self._known, scene)
        if known is not None:
            return known
        with model.lock:
            ground = self.ground(scene)
            game = GAMES[scene.game](ground.network, **scene.keywords())
            target: Any = ground.target(scene.target)
            found = Solved(scene, ground, game.play(ground.inputs, target))
        return self._keep(self._known, scene, found)

    def ground(self, scene: Scene) -> Ground:
        """What a scene is played on: the same for all modes."""
        model = self.library.find(scene.model)
        key = scene.model, scene.text if model.reads_text else scene.picture
        known = self._recall(self._grounds, key)
        return known or self._keep(self._grounds, key, ground_of(scene, model, self.uploads))

    def _recall(self, kept: OrderedDict[K, V], key: K) -> V | None:
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
            return kept.get(key)

    def _keep(self, kept: OrderedDict[K, V], key: K, found: V) -> V:
        with self._lock:
            kept[key] = found
            while len(kept) > KEPT:
                kept.popitem(last=False)
        return found
