"""Attribution graphs: how much of the walk goes from each group of states to each, layer by layer (S26c)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backplay.circuits.tracing import Stage, Tracing, choose
from backplay.entry import entries, entry
from backplay.errors import InputError, InputTypeError, KeywordError, MissingLibraryError
from backplay.games import Play
from backplay.network import Node
from backplay.network.groups import check_by, groups_of
from backplay.pictured import Pictured


@dataclass(frozen=True)
class CircuitNode:
    """A group of states of a chosen layer, the root, the rest of a layer that pruning left out, or an end.

    `mass` is the share of all walks that come here by way of kept groups; `total` and `difference` are the discounted
    `Γ₊ + Γ₋` and `Γ₊ − Γ₋`, which groups have and ends have not.
    """

    name: str  # unique: "layer4[12]", "output", "input", "†", "constants", "layer4[rest]"
    kind: str  # "root", "group", "rest", "input", "cemetery" or "constant"
    layer: str  # the chosen layer, "" for root and ends
    index: int | None  # the group's number
    mass: float
    total: float | None = None
    difference: float | None = None


@dataclass(frozen=True)
class CircuitEdge:
    """What goes from one node of the graph to another, without passing a third."""

    source: str
    target: str
    mass: float  # share of all walks
    total: float | None = None  # discounted, Γ₊ + Γ₋; None towards ends
    difference: float | None = None  # discounted, Γ₊ − Γ₋; None towards ends


@entries
@dataclass(frozen=True, repr=False)
class Circuit(Pictured):
    """The graph that `bp.circuit` has found. Edges that leave a group add up to its `mass`."""

    layers: tuple[str, ...]  # from the output down
    by: str
    keep: float
    nodes: tuple[CircuitNode, ...]
    edges: tuple[CircuitEdge, ...]
    title: str = ""  # what was played

    @property
    def left_out(self) -> float:
        """The share of all walks that pruning lost from sight, at whichever layer."""
        return sum(node.mass for node in self.nodes if node.kind == "rest")

    def __repr__(self) -> str:
        groups = sum(node.kind == "group" for node in self.nodes)
        size = f"{groups} {self.by}s of {', '.join(self.layers)}; {len(self.edges)} edges"
        return f"Circuit({size}, {self.left_out:.1%} of all walks left out)"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        return {
            "layers": list(self.layers),
            "by": self.by,
            "keep": self.keep,
            "left_out": self.left_out,
            "nodes": [asdict(node) for node in self.nodes],
            "edges": [asdict(edge) for edge in self.edges],
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph`; nodes and edges bear what they hold as attributes."""
        try:
            import networkx
        except ImportError as error:
            raise MissingLibraryError("to_networkx needs networkx: pip install networkx.") from error
        graph = networkx.DiGraph(layers=list(self.layers), by=self.by, keep=self.keep, left_out=self.left_out)
        for node in self.nodes:
            graph.add_node(node.name, **{k: v for k, v in asdict(node).items() if k != "name"})
        for edge in self.edges:
            held = {k: v for k, v in asdict(edge).items() if k not in ("source", "target")}
            graph.add_edge(edge.source, edge.target, **held)
        return graph

    def html(self) -> str:
        """A piece of HTML that needs nothing else: layers as columns, thickness as mass, colour as player."""
        from backplay.circuits.html import drawn

        return drawn(self)

    def _repr_html_(self) -> str:
        return self.html()


@entry
def circuit(
    play: Play, nodes: Sequence[str | Node], by: str = "channel", keep: float = 0.8, sample: int = 0
) -> Circuit:
    """Which groups of states the walk passes at some layers, and how much goes from each to each.

    `nodes` are nodes or modules in any order, `by` says what is a group: a channel, a head, a token or a position.
    From the output down every layer keeps the largest groups that carry `keep` of the walks that have come there by
    way of kept groups; the others are added up as its rest. A walk that passes by a layer is led on to the next one
    that it comes to. Ends are the input, † and constants; name the input among the nodes to have its elements apart.

    >>> bp.circuit(play, nodes=["features.0", "features.2"], keep=0.5).plot()
    """
    if not isinstance(play, Play):
        raise InputTypeError(f"circuit takes a play, game.play(x); got {type(play).__name__}.")
    if isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 < keep <= 1:
        raise KeywordError(f"keep={keep!r} is out of range: it must be a number > 0 and <= 1.")
    if isinstance(sample, bool) or not isinstance(sample, int) or not 0 <= sample < len(play.value):
        raise InputError(f"sample {sample!r} is out of range: the play holds samples 0 to {len(play.value) - 1}.")
    layers = _layers(play, nodes, check_by(by))
    traced = Tracing(play, layers, float(keep), sample).run()
    made = tuple(CircuitNode(**node) for node in traced.nodes)
    edges = tuple(CircuitEdge(**edge) for edge in traced.edges)
    return Circuit(tuple(layer.name for layer in layers), by, float(keep), made, edges, repr(play))


def _layers(play: Play, nodes: Any, by: str) -> list[Stage]:
    """The chosen layers in the order in which the walk comes to them."""
    given = [nodes] if isinstance(nodes, (str, Node)) else nodes
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(n, (str, Node)) for n in given):
        raise InputTypeError(f"nodes={nodes!r}: give a list with the names of nodes or modules.")
    network, layers = play.network, dict[Node, Stage]()
    for name in given:
        node = choose(play, name, by)
        if node in layers:
            raise InputError(f"{layers[node].name!r} and {name!r} are the same node; name it once.")
        layers[node] = Stage(name if isinstance(name, str) else name.name, groups_of(network, node, by, play.solved))
    place = {node: k for k, node in enumerate(network.nodes)}
    return sorted(layers.values(), key=lambda layer: -place[layer.node])
