"""What of a program counts: what the output depends on, what mass can reach, what is only told, and its names."""

from __future__ import annotations

from backplay.errors import CaptureError
from backplay.network.attention import Attention
from backplay.network.builder import Builder
from backplay.network.nodes import Halves, Input, Node, Oracle
from backplay.network.refusals import no_kind


def reachable(nodes: list[Node], output: Node) -> list[Node]:
    """What the output depends on, in the order of the program."""
    seen: set[Node] = {output}
    for node in reversed(nodes):
        if node in seen:
            seen.update(node.inputs, node.reads)
    return [n for n in nodes if n in seen or isinstance(n, Input)]


def read_once(nodes: list[Node], carrying: set[Node], output: Node) -> list[Node]:
    """A contraction that no mass crosses, such as queries times keys, is computed once."""
    for node in nodes:
        if isinstance(node, Halves) and node not in carrying:
            node.keep(node.inputs[0])
    return reachable(nodes, output)


def reached_by_mass(nodes: list[Node], output: Node, builder: Builder) -> set[Node]:
    """The nodes that mass can reach; each of them must have a kind."""
    carrying: set[Node] = {output}
    for node in reversed(nodes):
        if node not in carrying:
            continue
        if isinstance(node, Oracle):
            raise CaptureError(no_kind(node, builder))
        carrying.update(node.carriers)
    return carrying


def mark_oracles(nodes: list[Node], output: Node) -> None:
    """What reaches the output only through softmax weights is of kind oracle (S3)."""
    told: set[Node] = {output}
    for node in reversed(nodes):
        if node in told and not isinstance(node, Oracle):
            told.update(node.carriers if isinstance(node, Attention) else node.inputs)
    for node in nodes:
        if node not in told and not isinstance(node, Input):
            node.kind = "oracle"


def name_all(nodes: list[Node]) -> None:
    """The module path; a second call or operation of it is `path#2`."""
    counts: dict[str, int] = {}
    for node in nodes:
        base = node.name if isinstance(node, Input) else node.path or node.operator
        base = f"{base}:{node.operator}" if node.helper else base
        counts[base] = counts.get(base, 0) + 1
        node.name = base if counts[base] == 1 else f"{base}#{counts[base]}"
