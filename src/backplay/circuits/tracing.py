"""Following the walk from group to group: what `bp.circuit` is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.errors import NEVER_WALKED, InputError
from backplay.games import Play
from backplay.kernels.kernel import DIFFERENCE, TOTAL, WALK, Measure
from backplay.network import Node
from backplay.network.groups import Groups, find_grouped
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.progress import Progress
from backplay.trajectory.descent import constants_ahead, descend
from backplay.trajectory.survival import survival

MEASURES = (WALK, TOTAL, DIFFERENCE)
ROOT, INPUT, CEMETERY, CONSTANTS = "output", "input", "†", "constants"  # names of the root and of the ends

Masses = Mapping[Measure, Mass]  # what stands at one node, of each measure


@dataclass(frozen=True)
class Stage:
    """A chosen layer: its name, and its states in groups."""

    name: str
    groups: Groups

    @property
    def node(self) -> Node:
        return self.groups.node

    def group(self, index: int) -> str:
        """The name of one group."""
        return f"{self.name}[{index}]"


class Tracing:
    """The graph of one sample as it grows from the output down."""

    def __init__(self, play: Play, layers: Sequence[Stage], keep: float, sample: int) -> None:
        self.play, self.layers, self.keep, self.sample = play, layers, keep, sample
        self.stops = [layer.node for layer in layers]
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []
        self._standing: dict[Node, dict[Measure, Mass]] = {}  # what kept groups have sent to each layer
        self._sent: dict[Node, list[tuple[str, Tensor]]] = {node: [] for node in self.stops}  # (3, groups) by source
        self._ends: dict[str, tuple[str, float]] = {}  # kind and mass of each end

    def run(self) -> Tracing:
        """Follow the walk through all layers."""
        play = self.play
        self.nodes.append({"name": ROOT, "kind": "root", "layer": "", "index": None} | self._root())
        zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
        mine = play.start.layout.spread(torch.arange(len(play.value), device=zeros.device) == self.sample, play.root())
        roots = {m: Mass(play.root(m) * mine, zeros, play.start.layout) for m in MEASURES}
        self._follow(ROOT, play.start, roots, None)
        for layer in self.layers:
            kept = self._prune(layer)
            if layer is self.layers[-1]:
                self._finish(layer, kept)
                continue
            with Progress(f"following groups of {layer.name}", len(kept)) as progress:
                for index in kept:
                    self._follow(layer.group(index), layer.node, self._part(layer, index), layer.node)
                    progress.advance(1)
        for name, (kind, mass) in self._ends.items():
            self.nodes.append({"name": name, "kind": kind, "layer": "", "index": None, "mass": mass})
        return self

    def _root(self) -> dict[str, float]:
        sums = [float(self.play.start.layout.sum(self.play.root(m))[self.sample]) for m in MEASURES]
        return _held(sums)

    def _part(self, layer: Stage, index: int) -> dict[Measure, Mass]:
        """What stands in one group of a layer."""
        mask = layer.groups.mask([index])
        return {
            m: Mass(mass.value * mask, mass.exponent, mass.layout) for m, mass in self._standing[layer.node].items()
        }

    def _follow(self, source: str, node: Node, masses: Masses, origin: Node | None) -> None:
        """Lead what stands at a node on to the next layers and to the ends."""
        sums: dict[Node, list[Tensor]] = {}
        for measure, mass in masses.items():
            passed = descend(self.play, node, mass, measure, self.stops, origin)
            for layer in self.layers:
                if layer.node in passed.masses:
                    arrived = passed.masses[layer.node]
                    sums.setdefault(layer.node, []).append(layer.groups.sums(arrived)[self.sample])
                    here = self._standing.setdefault(layer.node, {})
                    here[measure] = here[measure].plus(arrived) if measure in here else arrived
            if measure is WALK:
                self._end(source, INPUT, "input", self._arrived(passed.masses))
                self._end(source, CEMETERY, "cemetery", float(passed.losses.cemetery[self.sample]))
                self._end(source, CONSTANTS, "constant", float(passed.losses.constant[self.sample]))
        for stop, found in sums.items():
            self._sent[stop].append((source, torch.stack(found)))

    def _arrived(self, masses: Mapping[Node, Mass]) -> float:
        """What has come to inputs that are no layers."""
        ends = [n for n in masses if isinstance(n, Input) and n not in self.stops]
        return sum(float(masses[n].total()[self.sample]) for n in ends)

    def _end(self, source: str, end: str, kind: str, mass: float) -> None:
        if mass > 0:
            self._ends[end] = kind, self._ends.get(end, (kind, 0.0))[1] + mass
            self.edges.append({"source": source, "target": end, "mass": mass})

    def _prune(self, layer: Stage) -> list[int]:
        """The groups that are kept of a layer; nodes and edges of those, and of the rest as one."""
        sent = self._sent[layer.node]
        if not sent:
            return []
        sums = torch.stack([shares for _, shares in sent]).sum(0).cpu()  # (3, groups)
        kept = largest(sums[0], self.keep)
        rest = torch.ones(layer.groups.count, dtype=torch.bool)
        rest[kept] = False
        for index in kept:
            self._node(layer, layer.group(index), "group", index, sums[:, index])
        if bool((sums[0][rest] > 0).any()):
            self._node(layer, f"{layer.name}[rest]", "rest", None, sums[:, rest].sum(1))
        for source, shares in sent:
            shares = shares.cpu()
            targets = [(layer.group(k), shares[:, k]) for k in kept]
            targets.append((f"{layer.name}[rest]", shares[:, rest].sum(1)))
            for target, held in targets:
                if float(held[0]) > 0:
                    self.edges.append({"source": source, "target": target} | _held(held.tolist()))
        return kept

    def _node(self, layer: Stage, name: str, kind: str, index: int | None, held: Tensor) -> None:
        place: dict[str, Any] = {"name": name, "kind": kind, "layer": layer.name, "index": index}
        self.nodes.append(place | _held(held.tolist()))

    def _finish(self, layer: Stage, kept: Sequence[int]) -> None:
        """What becomes of the groups of the last layer, all at once: what each of their states may expect."""
        if not kept or isinstance(layer.node, Input):
            return
        mass = self._standing[layer.node][WALK]
        all_of_it = layer.groups.sums(mass)[self.sample]
        arrives = self._expected(layer, mass, survival(self.play))
        constant = self._expected(layer, mass, constants_ahead(self.play)) if self._constants() else 0 * arrives
        for k in kept:
            source, rest = layer.group(k), float((all_of_it - arrives - constant)[k])
            self._end(source, INPUT, "input", float(arrives[k]))
            self._end(source, CONSTANTS, "constant", float(constant[k]))
            self._end(source, CEMETERY, "cemetery", rest if rest > 1e-12 * float(all_of_it[k]) else 0.0)

    def _constants(self) -> bool:
        return bool(self.play.constant[self.sample] > 0)

    def _expected(self, layer: Stage, mass: Mass, ahead: Mapping[Node, Mass]) -> Tensor:
        """(groups,) what the mass of each group may expect of something ahead."""
        h = ahead[layer.node]
        return layer.groups.sums(Mass(mass.value * h.value, mass.exponent + h.exponent, mass.layout))[self.sample]


def largest(masses: Tensor, keep: float) -> list[int]:
    """The largest masses that together hold the share `keep` of all, as few as possible, the largest first."""
    values, order = masses.sort(descending=True, stable=True)
    there = int((values > 0).sum())
    if keep == 1:
        return order[:there].tolist()
    enough = int((values.cumsum(0) < keep * values.sum() * (1 - 1e-12)).sum()) + 1
    return order[: min(enough, there)].tolist()


def _held(sums: Sequence[float]) -> dict[str, float]:
    return dict(zip(("mass", "total", "difference"), sums, strict=True))


def choose(play: Play, name: str | Node, by: str) -> Node:
    """The node or module of a name, if walks stand at its output."""
    node = find_grouped(play.network, name, by)
    if node not in play.network.reached:
        raise InputError(f"{name!r} is {NEVER_WALKED}.")
    for other in (n for n in play.passed(DIFFERENCE).masses if not isinstance(n, Input)):
        if play.kernel(other).crosses(node):
            raise InputError(
                f"{name!r} is crossed inside attention, where walks do not stand; name {other.name!r} instead."
            )
    return node
