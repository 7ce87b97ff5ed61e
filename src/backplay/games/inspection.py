"""Which modes each node of a network gets from a game."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from backplay.games.modes import Modes
from backplay.network import Network, Node


@dataclass(frozen=True)
class Inspected:
    """A node: its name, kind and shape (−1 for the batch), the keywords that act there and which are no defaults."""

    name: str
    kind: str
    shape: tuple[int, ...]
    modes: dict[str, Any]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        shape = " × ".join("batch" if size == -1 else str(size) for size in self.shape)
        words = " ".join(f"{name}={self.modes[name]}" for name in self.changed)
        return f"{self.name}  {self.kind}  {shape}{f'  {words}' if words else ''}"


class Inspection(tuple[Inspected, ...]):
    """The nodes of a network in order, with the modes that hold at each; printed, a line for each of them."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__


def inspect(modes: Modes, network: Network) -> Inspection:
    """What a game's modes are at each node; what no mass can reach has none."""
    modes.check_layers(network)
    return Inspection(_inspected(node, modes, node in network.reached) for node in network.nodes)


def _inspected(node: Node, modes: Modes, reached: bool) -> Inspected:
    here, defaults = modes.at(node), {f.name: f.default for f in fields(modes)}
    found = {name: getattr(here, name) for name in (modes.acting(node) if reached else ())}
    return Inspected(
        node.name, node.kind, node.shape, found, tuple(name for name in found if found[name] != defaults[name])
    )
