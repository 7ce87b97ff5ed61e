"""Forward values: the program replayed node by node, as the model computes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from backplay.network import Network, Node
from backplay.network.nodes import Input
from backplay.network.weights import Weights


class Values(Mapping[Any, Any]):
    """Value of every node, constant and size on one input; also the scope in which nodes look up what they need."""

    def __init__(self, network: Network, x: Mapping[Any, Any], weights: Weights) -> None:
        self.network, self.weights = network, weights
        self._scope = network.scope(x, weights)
        for node in network.nodes:
            if not isinstance(node, Input):
                self._scope[node] = node.run(self._scope)

    def __getitem__(self, key: Any) -> Any:
        return self._scope[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)

    @property
    def batch(self) -> int:
        return self._scope[self.network.input].shape[0]

    @property
    def logits(self) -> Tensor:
        return self._scope[self.network.output]

    def forget(self, node: Node) -> None:
        """Free a value that nobody will ask for again."""
        self._scope[node] = None
