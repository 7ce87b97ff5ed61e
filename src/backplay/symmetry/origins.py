"""Where constants come from: entry by entry of a parameter, as long as only wires lie between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.network import operators
from backplay.network.graph import Network
from backplay.network.nodes import Overlay, Ref, resolve


@dataclass
class Origin:
    """A constant made of the entries of one parameter: their flat index plus 1, in the constant's shape."""

    parameter: str
    entries: Tensor


class Origins:
    """Origins of the constants of a network's program."""

    def __init__(self, network: Network, values: Mapping[Any, Any]) -> None:
        self._known: dict[Ref, Origin] = {}
        tensors = network.tensors()
        for ref, name in network.parameter_names().items():
            tensor = tensors[name]
            numbers = torch.arange(1, tensor.numel() + 1, device=tensor.device).view(tensor.shape)
            self._known[ref] = Origin(name, numbers)
        for statement in network.statements:
            sources = [r for r in refs(statement.args) if r in self._known]
            packet = getattr(statement.function, "overloadpacket", None)
            if len(sources) != 1 or statement.kwargs or not operators.meaning(getattr(packet, "__name__", "")).moves:
                continue
            origin = self._known[sources[0]]
            moved = statement.function(*resolve(statement.args, Overlay({sources[0]: origin.entries}, values)))
            if isinstance(moved, Tensor):
                self._known[statement.ref] = Origin(origin.parameter, moved.long())

    def of(self, ref: Ref) -> Origin | None:
        """The parameter behind a constant; None where it is computed."""
        return self._known.get(ref)


def refs(tree: Any) -> list[Ref]:
    """The constants among nested arguments."""
    if isinstance(tree, Ref):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [r for item in tree for r in refs(item)]  # pyright: ignore[reportUnknownVariableType]
    return []
