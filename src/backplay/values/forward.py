"""Forward values: the program replayed node by node, as the model computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from backplay.network import Network, Node
from backplay.network.nodes import Input
from backplay.network.weights import Weights


class Values(Mapping[Any, Any]):
    """Value of every node, constant and size on one input; also the scope in which nodes look up what they need.

    `deform(node, scope)` may return another value for a node, which then drives everything behind it.
    """

    def __init__(
        self,
        network: Network,
        x: Mapping[Any, Any],
        weights: Weights,
        deform: Callable[[Node, Mapping[Any, Any]], Tensor | None] | None = None,
    ) -> None:
        self.network, self.weights = network, weights
        self._scope = network.scope(x, weights)
        for node in network.nodes:
            if not isinstance(node, Input):
                value = None if deform is None else deform(node, self._scope)
                self._scope[node] = node.run(self._scope) if value is None else value

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
