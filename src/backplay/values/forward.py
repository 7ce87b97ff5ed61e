"""Forward values: the program replayed node by node, as the model computes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.network import Network, Node
from backplay.network.forms import Form, form_of
from backplay.network.nodes import Gate
from backplay.network.weights import Weights

if TYPE_CHECKING:
    from backplay.values.moments import Moments
    from backplay.values.observed import Observed

Deform = Callable[[Node, "Values"], Tensor | None]


class Values(Mapping[Any, Any]):
    """Value of every node, constant and size on one input; also the scope in which nodes look up what they need.

    `deform(node, values)` may return another value for a node, which then drives everything behind it.
    """

    def __init__(
        self,
        network: Network,
        x: Mapping[Any, Any],
        weights: Weights,
        deform: Deform | None = None,
    ) -> None:
        self.network, self.weights, self.deformed = network, weights, deform is not None
        self._observed: Observed | None = None
        self.moments: Moments | None = None  # filtered variances, where the game needs them (S22)
        self._scope = network.scope(x, weights)
        for _ in network.steps(self._scope, None if deform is None else lambda node: deform(node, self)):
            pass
        self._unify()

    def _unify(self) -> None:
        """Kernels meet one precision: what the model has cast on the way is known in that of its input."""
        played = self._scope[self.network.inputs[0]].dtype
        others = {torch.float32, torch.float64} - {played}  # half precision is converted where it is read (S38)
        for key, value in self._scope.items():
            if isinstance(value, Tensor) and value.dtype in others:
                self._scope[key] = value.to(played)

    def twin(self) -> Values:
        """The same values and moments, to be forgotten apart."""
        other = self.bare()
        other._scope = self._scope.copy()
        other.moments = None if self.moments is None else self.moments.on(other)
        return other

    def bare(self) -> Values:
        """The same values for what is built on them: without a way back, so that all goes when the last user goes."""
        other = object.__new__(Values)
        other.__dict__ |= self.__dict__
        other._observed = other.moments = None
        return other

    @property
    def observed(self) -> Values | Observed:
        """What players see: the values themselves, unless the game has put something else here (S20)."""
        return self if self._observed is None else self._observed

    @observed.setter
    def observed(self, seen: Observed) -> None:
        self._observed = seen

    def __getitem__(self, key: Any) -> Any:
        return self._scope[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)

    def form(self, gate: Gate) -> Form:
        """Which gate it is (S3a); decided again when the model's constants change."""
        return self.prepared(gate, "form", lambda: form_of(gate, self))

    def prepared(self, node: Node, key: Hashable, make: Callable[[], Any]) -> Any:
        """What is derived from a node's weights: made once for each state of the model, if it rests on that alone."""
        return make() if node.fleeting else self.weights.prepared((node, key), make)

    def latest(self, node: Node, key: Hashable, variant: Hashable, make: Callable[[Any], Any]) -> Any:
        """The same where there are many variants, of which one is kept; `make` is given what it may write over."""
        return make(None) if node.fleeting else self.weights.latest((node, key), variant, make)

    @property
    def batch(self) -> int:
        return self._scope[self.network.inputs[0]].shape[0]

    @property
    def logits(self) -> Tensor:
        return self._scope[self.network.output]

    def forget(self, node: Node) -> None:
        """Free a value that nobody will ask for again."""
        self._scope[node] = None
        if self._observed is not None:
            self._observed.forget(node)
