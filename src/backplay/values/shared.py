"""What several games on one input have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backplay.network import Network
from backplay.network.weights import Weights
from backplay.values.forward import Deform, Values
from backplay.values.moments import Moments


class Shared:
    """The network's own forward pass and the moments of each input variance, each computed once."""

    def __init__(self, network: Network, inputs: Mapping[Any, Any], weights: Weights) -> None:
        self._network, self._inputs, self._weights = network, inputs, weights
        self._plain: Values | None = None
        self._moments: dict[float, Moments] = {}

    def values(self) -> Values:
        """The network's own forward pass; what one game forgets, the others keep."""
        return self._own().twin()

    def deformed(self, deform: Deform) -> Values:
        """A forward pass of a game's own."""
        return Values(self._network, self._inputs, self._weights, deform)

    def _own(self) -> Values:
        if self._plain is None:
            self._plain = Values(self._network, self._inputs, self._weights)
        return self._plain

    def moments(self, input_variance: float) -> Moments:
        if input_variance not in self._moments:
            self._moments[input_variance] = Moments(self._own(), input_variance).advance()
        return self._moments[input_variance]
