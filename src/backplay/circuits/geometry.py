"""Where the parts of a circuit's picture lie: layers as columns, groups as boxes, what goes between them as bands.

Lengths are shares of the picture: x from the left, y from above. Every column fills the height, each box by its share
of the walks that come to its layer, so that deep layers, which few walks reach, can be read as well as high ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backplay.circuits.circuit import Circuit, CircuitEdge, CircuitNode

MOST = 12  # boxes in a column; the smallest of a larger layer are one box
GAP = 0.012  # between two boxes
THINNEST = 0.004  # of a box


@dataclass(frozen=True)
class Box:
    """One group, several small ones together, the root or the input."""

    label: str
    tooltip: str  # the whole story, in a line
    x: float
    y: float  # its upper end
    height: float
    tone: float | None  # (Γ₊ − Γ₋) / (Γ₊ + Γ₋), from −1 to 1; None where discounts are not followed


@dataclass(frozen=True)
class Band:
    """What goes from one box to another: `y` are upper ends, `thickness` is the same at both."""

    x: tuple[float, float]
    y: tuple[float, float]
    thickness: float
    tone: float | None
    tooltip: str


@dataclass(frozen=True)
class Column:
    """A layer: its name, and what is said of it in a second line."""

    x: float
    name: str
    note: str


@dataclass(frozen=True)
class Geometry:
    """All of a circuit's picture."""

    columns: Sequence[Column]
    boxes: Sequence[Box]
    bands: Sequence[Band]


def arrange(circuit: Circuit) -> Geometry:
    """Lay a circuit out."""
    nodes = {node.name: node for node in circuit.nodes}
    stages = [[n for n in circuit.nodes if n.kind == "root"]]
    stages += [[n for n in circuit.nodes if n.layer == layer] for layer in circuit.layers]
    stages.append([n for n in circuit.nodes if n.kind == "input"])
    names = ["output", *circuit.layers, "input"]
    shown = [(name, stage) for name, stage in zip(names, stages, strict=True) if stage]
    boxes: dict[str, Box] = {}  # by the name of the node; nodes that share a box have the same
    columns: list[Column] = []
    for k, (name, stage) in enumerate(shown):
        x = k / max(1, len(shown) - 1)
        mass = sum(n.mass for n in stage)
        ended = sum(e.mass for e in circuit.edges if nodes[e.target].kind == "cemetery" and nodes[e.source] in stage)
        columns.append(Column(x, name, f"{percent(mass)}" + f", † {percent(ended)}" * (ended > 0)))
        boxes |= _boxes(x, stage)
    return Geometry(columns, list(dict.fromkeys(boxes.values())), _bands(circuit, boxes))


def _boxes(x: float, stage: Sequence[CircuitNode]) -> dict[str, Box]:
    """The boxes of a column, the largest group first; the rest and all that is small comes last as one."""
    ranked = sorted(stage, key=lambda n: (n.kind == "rest", -n.mass))
    groups = [n for n in ranked if n.kind != "rest"]
    room = MOST if len(ranked) <= MOST else MOST - 1
    parts = [[n] for n in groups[:room]]
    others = [n for n in ranked if n not in groups[:room]]
    if others:
        parts.append(others)
    whole = sum(n.mass for n in stage) or 1.0
    free = 1 - GAP * (len(parts) - 1) - THINNEST * len(parts)
    boxes: dict[str, Box] = {}
    y = 0.0
    for part in parts:
        mass = sum(n.mass for n in part)
        height = THINNEST + free * mass / whole
        label = _label(part)
        named = label if part[0].index is not None or part[0].kind in ("rest", "group") else ""  # the column says it
        box = Box(named, f"{label}: {percent(mass)} of walks", x, y, height, _tone(part))
        boxes |= {n.name: box for n in part}
        y += height + GAP
    return boxes


def _label(part: Sequence[CircuitNode]) -> str:
    first = part[0]
    if len(part) > 1 or first.kind == "rest":
        groups = sum(n.kind == "group" for n in part)
        return f"{groups} more" + " and rest" * (len(part) > groups) if groups else "rest"
    return first.name if first.index is None else str(first.index)


def _tone(held: Sequence[CircuitNode | CircuitEdge]) -> float | None:
    """Who owns it: the difference over the total."""
    if any(h.total is None or h.difference is None for h in held):
        return None
    total = sum(h.total or 0.0 for h in held)
    return sum(h.difference or 0.0 for h in held) / total if total > 0 else 0.0


def _bands(circuit: Circuit, boxes: dict[str, Box]) -> list[Band]:
    """Edges between boxes, those of one pair of boxes together, side by side at both ends."""
    pairs: dict[tuple[Box, Box], list[CircuitEdge]] = {}
    for edge in circuit.edges:
        if edge.source in boxes and edge.target in boxes:
            pairs.setdefault((boxes[edge.source], boxes[edge.target]), []).append(edge)
    masses = {pair: sum(e.mass for e in edges) for pair, edges in pairs.items()}
    leaving, coming = _sums(masses, 0), _sums(masses, 1)
    used: dict[tuple[Box, int], float] = {}
    bands: list[Band] = []
    for (one, other), edges in sorted(pairs.items(), key=lambda item: (item[0][0].y, item[0][1].y)):
        mass = masses[one, other]
        ends = one.height * mass / leaving[one], other.height * mass / coming[other]
        thickness = min(ends)
        starts = one.y + used.get((one, 0), 0.0), other.y + used.get((other, 1), 0.0)
        used[one, 0] = used.get((one, 0), 0.0) + ends[0]
        used[other, 1] = used.get((other, 1), 0.0) + ends[1]
        tooltip = f"{_name(one)} → {_name(other)}: {percent(mass)} of walks"
        bands.append(Band((one.x, other.x), starts, thickness, _tone(edges), tooltip))
    return bands


def _name(box: Box) -> str:
    return box.tooltip.rpartition(":")[0]


def _sums(masses: dict[tuple[Box, Box], float], side: int) -> dict[Box, float]:
    totals: dict[Box, float] = {}
    for pair, mass in masses.items():
        totals[pair[side]] = totals.get(pair[side], 0.0) + mass
    return totals


def percent(share: float) -> str:
    """A share of walks: `12 %`, `0.03 %`, `4e-07 %`."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.2g} %"


def hue(tone: float | None) -> tuple[str, float]:
    """The colour of a tone and how strong it is: red where + is ahead, blue where − is, grey where nobody counts."""
    if tone is None:
        return "#8c8c8c", 0.4
    return "#b2182b" if tone >= 0 else "#2166ac", 0.2 + 0.5 * min(1.0, abs(tone))
