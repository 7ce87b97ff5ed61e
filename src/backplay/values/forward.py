"""Forward values: the program replayed node by node, as the model computes it, and what players know beyond that."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.network import Network, Node
from backplay.network.choices import Max
from backplay.network.forms import Form, form_of
from backplay.network.nodes import Affine, Gate
from backplay.network.weights import Weights

if TYPE_CHECKING:
    from backplay.values.moments import Moments
    from backplay.values.observed import Observed

Deform = Callable[[Node, "Values"], Tensor | None]


class Forward(Mapping[Any, Any]):
    """Value of every node, constant and size on one input; also the scope in which nodes look up what they need."""

    def __init__(self, network: Network, weights: Weights, scope: dict[Any, Any]) -> None:
        self.network, self.weights, self._scope = network, weights, scope

    def __getitem__(self, key: Any) -> Any:
        return self._scope[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)

    @property
    def batch(self) -> int:
        return self._scope[self.network.inputs[0]].shape[0]

    @property
    def logits(self) -> Tensor:
        return self._scope[self.network.output]

    def form(self, gate: Gate) -> Form:
        """Which gate it is (S3a); decided anew when the model's constants change."""
        return self.weights.prepared(gate, "form", lambda: form_of(gate, self))

    def weight(self, node: Affine) -> Tensor:
        """`W` of an affine node, batch norm folded in: a copy, never a view of the model's tensors (S1)."""
        return self.weights.prepared(node, "signed", lambda: self.weights.copied(node.weight(self)))


class Values(Forward):
    """A forward pass, with moments (S22) and observed values (S20) where the game needs them.

    `deform(node, values)` may return another value for a node, which then drives everything behind it. A pass whose
    deformation needs moments filters those of `input_variance` along the way.
    """

    def __init__(
        self,
        network: Network,
        x: Mapping[Any, Any],
        weights: Weights,
        deform: Deform | None = None,
        input_variance: float | None = None,
    ) -> None:
        super().__init__(network, weights, network.scope(x, weights))
        self.deformed = deform is not None
        self._observed: Observed | None = None
        self.moments: Moments | None = None if input_variance is None else self._moments(input_variance)
        for _ in network.steps(self._scope, None if deform is None else lambda node: deform(node, self)):
            pass
        self._unify()
        if self.moments is not None:
            self.moments.advance()

    def _unify(self) -> None:
        """Kernels meet one precision: what the model has cast on the way is known in that of its input."""
        played = self._scope[self.network.inputs[0]].dtype
        others = {torch.float32, torch.float64} - {played}  # half precision is converted where it is read (S38)
        for key, value in self._scope.items():
            if isinstance(value, Tensor) and value.dtype in others:
                self._scope[key] = value.to(played)

    def plain(self) -> Forward:
        """The same pass for what is built on it: no reference leads back here, so that all is freed with the last."""
        return Forward(self.network, self.weights, self._scope)

    def twin(self) -> Values:
        """The same values and moments; what one of both forgets, the other keeps."""
        other = copy.copy(self)
        other._scope, other._observed = self._scope.copy(), None
        other.moments = None if self.moments is None else self.moments.on(other)
        return other

    def _moments(self, input_variance: float) -> Moments:
        from backplay.values.moments import Moments  # which are moments of a forward pass

        return Moments(self, input_variance)

    def filter(self, input_variance: float) -> None:
        """Filter the moments of an input variance through the pass, unless they are there."""
        if self.moments is None or self.moments.input_variance != input_variance:
            self.moments = self._moments(input_variance).advance()

    @property
    def observed(self) -> Values | Observed:
        """What players see: the values themselves, unless the game has put something else here (S20)."""
        return self if self._observed is None else self._observed

    @observed.setter
    def observed(self, seen: Observed) -> None:
        self._observed = seen

    def forget(self, node: Node) -> None:
        """Free a value that is not needed any more."""
        self._scope[node] = None
        if isinstance(node, Max):
            self._scope.pop(node.place, None)
        if self._observed is not None:
            self._observed.forget(node)
