"""The game graph of a small network as numbers: units, what players do there, and how much of the walk comes by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backplay.errors import InputError
from backplay.games.play import Play
from backplay.kernels.kernel import WALK_DIFFERENCE
from backplay.network import Node
from backplay.network.layout import PLAIN
from backplay.network.nodes import Affine, Gate, Input

UNITS, COLUMNS = 16, 12  # in a column, and columns: more cannot be read
PLAYERS = (1, -1)


@dataclass(frozen=True)
class Unit:
    """One neuron or input element: a place in a column."""

    column: int
    index: int


@dataclass(frozen=True)
class Move:
    """From a unit to a unit: the probability of going there in the same turn, and with the turn gone over."""

    source: Unit
    target: Unit
    kept: float
    switched: float

    def chance(self, before: int, after: int) -> float:
        """Of moving from the state in the turn of one player to the state in the turn of the same or the other."""
        return self.kept if before == after else self.switched


@dataclass
class Column:
    """A layer: what is computed there (`node`), and the gate behind it if there is one."""

    node: Node
    gate: Gate | None
    size: int

    @property
    def name(self) -> str:
        return self.node.name if self.gate is None else f"{self.node.name} → {self.gate.name}"

    @property
    def output(self) -> Node:
        return self.node if self.gate is None else self.gate


@dataclass
class States:
    """All of it for one sample. Columns run from the input to the output."""

    play: Play
    sample: int
    columns: list[Column]
    moves: list[Move] = field(default_factory=list[Move])
    going_on: dict[Unit, float] = field(default_factory=dict[Unit, float])  # probability of not stopping
    mass: dict[tuple[Unit, int], float] = field(default_factory=dict[tuple[Unit, int], float])  # by unit and player

    def value(self, unit: Unit) -> float:
        """The activation, or the input's value."""
        return float(self.play.solved[self.columns[unit.column].output][self.sample].flatten()[unit.index])

    def ends(self, unit: Unit) -> float:
        """The share of all walks that end in † at a unit."""
        out = sum(m.kept + m.switched for m in self.moves if m.source == unit)
        here = sum(self.mass.get((unit, q), 0.0) for q in PLAYERS)
        last = isinstance(self.columns[unit.column].node, Input)
        return 0.0 if last else max(0.0, here * (1 - self.going_on[unit] * out))

    def unit(self, name: str, index: int) -> Unit:
        """A unit by its node's name and its number there."""
        for k, column in enumerate(self.columns):
            if name in (column.node.name, column.output.name) and not isinstance(column.node, Input):
                if not 0 <= index < column.size:
                    raise InputError(f"around={(name, index)!r}: {name!r} has the units 0 to {column.size - 1}.")
                return Unit(k, index)
        known = [c.node.name for c in self.columns if not isinstance(c.node, Input)]
        raise InputError(f"around names the node {name!r}; where players move are {', '.join(map(repr, known))}.")


def states(play: Play, sample: int) -> States:
    """Read the graph off a play: policies from `play.policy`, masses from one walk over the units."""
    found = States(play, sample, _columns(play))
    where = {column.output: k for k, column in enumerate(found.columns)}
    for k, column in enumerate(found.columns):
        for i in range(column.size):
            found.going_on[Unit(k, i)] = _goes_on(play, column, sample, i)
            if not isinstance(column.node, Input):
                found.moves += _moves(play, column, where, Unit(k, i), sample)
    _walk(found)
    return found


def _columns(play: Play) -> list[Column]:
    """Nodes that the walk may come to; a gate stands together with the node before it."""
    nodes = [n for n in play.network.nodes if n in play.visited()]
    readers = {n: [m for m in nodes if n in m.carriers] for n in nodes}
    merged = {n.operand: n for n in nodes if isinstance(n, Gate) and len(readers[n.operand]) == 1}
    merged = {n: gate for n, gate in merged.items() if not isinstance(n, (Gate, Input))}
    gates = set(merged.values())
    found = [Column(n, merged.get(n), math.prod(n.shape[1:])) for n in nodes if n not in gates]
    wide = max(found, key=lambda c: c.size)
    if len(found) > COLUMNS or wide.size > UNITS or any(c.node.layout != PLAIN for c in found):
        raise InputError(
            f"game draws networks of at most {COLUMNS} layers with {UNITS} units; this one has {len(found)}, "
            f"{wide.node.name!r} with {wide.size}. bp.view.flow(play) draws large ones."
        )
    return found


def _goes_on(play: Play, column: Column, sample: int, index: int) -> float:
    if column.gate is None:
        return 1.0
    return float(play.policy(column.gate)[sample].flatten()[index])


def _moves(play: Play, column: Column, where: dict[Node, int], unit: Unit, sample: int) -> list[Move]:
    shape = play.solved[column.node].shape
    element = (sample, *(int(i) for i in torch.unravel_index(torch.tensor(unit.index), shape[1:])))
    found: list[Move] = []
    for name, (kept, switched) in play.policy(column.node, element).items():
        target = next(n for n in where if n.name == name)
        pairs = zip(kept[sample].flatten().tolist(), switched[sample].flatten().tolist(), strict=True)
        found += [Move(unit, Unit(where[target], j), *pair) for j, pair in enumerate(pairs)]
    return found


def _walk(found: States) -> None:
    """The law of the walk, unit by unit, from the output on."""
    root: Tensor = found.play.root(WALK_DIFFERENCE)[found.sample].flatten()
    last = next(k for k, c in enumerate(found.columns) if found.play.start in (c.output, c.node))
    for i, w in enumerate(root.tolist()):
        if w:
            found.mass[Unit(last, i), 1 if w > 0 else -1] = abs(w)
    for move in sorted(found.moves, key=lambda m: -m.source.column):
        for before in PLAYERS:
            for after in PLAYERS:
                mass = found.mass.get((move.source, before), 0.0) * found.going_on[move.source]
                mass *= move.chance(before, after)
                if mass:
                    found.mass[move.target, after] = found.mass.get((move.target, after), 0.0) + mass


def weights(found: States, unit: Unit) -> list[float] | None:
    """The weights of a unit on its predecessors; None where its node is no linear layer."""
    node, values = found.columns[unit.column].node, found.play.solved
    if not isinstance(node, Affine):
        return None
    one = torch.zeros_like(values[node])
    one[found.sample].view(-1)[unit.index] = 1.0
    with torch.no_grad():
        row = node.map.adjoint(one, node.weight(values), values[node.operand].shape)
    return row[found.sample].flatten().tolist()
