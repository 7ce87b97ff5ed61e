"""What several games on one input have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

from backplay.network import Network, Node
from backplay.network.weights import Weights
from backplay.values.forward import Deform, Values


class Shared:
    """A forward pass and its moments, kept until a game needs others.

    One is held at a time: games that are played in the order of their forward passes make each of them once. `needed`
    are the nodes whose values the one game that plays on it reads again and again; None keeps all.
    """

    def __init__(
        self, network: Network, inputs: Mapping[Any, Any], weights: Weights, needed: frozenset[Node] | None = None
    ) -> None:
        self.network, self._inputs, self._weights, self._needed = network, inputs, weights, needed
        self._kept: Values | None = None
        self._key: Hashable = None
        self._answer: Tensor | None = None

    def values(self, variance: float | None = None) -> Values:
        """The network's own forward pass, with the moments of an input variance if one is given.

        What one game forgets, the others keep.
        """
        return self.deformed((), None, variance)

    def deformed(
        self, key: Hashable, deform: Deform | None, variance: float | None = None, filtering: float | None = None
    ) -> Values:
        """The forward pass that `deform` makes; equal keys stand for equal passes.

        `variance` adds the moments of that input variance afterwards; `deform` itself may use those of `filtering`.
        """
        if self._kept is None or self._key != key:
            self._kept = None  # freed first: two passes at a time would need twice the memory
            needed = self._needed if deform is None else None
            self._kept = Values(self.network, self._inputs, self._weights, deform, filtering, needed)
            self._key = key
        if variance is not None:
            self._kept.filter(variance)
        return self._kept.twin()

    def answer(self) -> Tensor:
        """The model's own logits, which name the class that is explained in every mode."""
        if self._answer is None:
            own = self._kept if self._key == () else None
            self._answer = self.network.model_logits(self._inputs) if own is None else own.logits
        return self._answer
