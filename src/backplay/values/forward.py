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

    deformed: bool = False  # whether other values than the model's own drive it

    def __init__(self, network: Network, weights: Weights, scope: dict[Any, Any]) -> None:
        self.network, self.weights, self._scope = network, weights, scope
        self._others = {torch.float32, torch.float64} - {self.dtype}  # half precision is converted by the scope (S38)
        self._converted: dict[Any, Tensor] = {}

    def __getitem__(self, key: Any) -> Any:
        value = self._scope[key]
        if not isinstance(value, Tensor) and _is_forgotten(key, value):
            value = self._again(key)
        if isinstance(value, Tensor) and value.dtype in self._others:
            return self._unified(key, value)
        return value

    def _unified(self, key: Any, value: Tensor) -> Tensor:
        """Kernels meet one precision: what the model has cast on the way is known in that of its input."""
        if key not in self._converted:
            self._converted[key] = value.to(self.dtype)
        return self._converted[key]

    def shape(self, node: Node) -> torch.Size:
        """Of a node's value, which may be forgotten."""
        value = self._scope[node]
        return value if isinstance(value, torch.Size) else self[node].shape

    def _again(self, node: Node) -> Any:
        """A value that was forgotten, run again from what is left."""
        assert not self.deformed  # only the model's own pass can be run again from any node on
        waiting = [node]
        while waiting:
            top = waiting[-1]
            missing = [n for n in top.inputs if _is_forgotten(n, self._scope[n])]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if _is_forgotten(top, self._scope[top]):
                self._scope[top] = top.run(self._scope)
        return self._scope[node]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)

    @property
    def batch(self) -> int:
        return self._scope[self.network.inputs[0]].shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self._scope[self.network.inputs[0]].dtype

    @property
    def device(self) -> torch.device:
        return self._scope[self.network.inputs[0]].device

    @property
    def logits(self) -> Tensor:
        return self[self.network.output]

    def form(self, gate: Gate) -> Form:
        """Which gate it is (S3a); decided anew when the model's constants change."""
        return self.weights.prepared(gate, "form", lambda: form_of(gate, self))

    def weight(self, node: Affine) -> Tensor:
        """`W` of an affine node, batch norm folded in: a copy, never a view of the model's tensors (S1)."""
        return self.weights.prepared(node, "signed", lambda: self.weights.copied(node.weight(self)))

    def bias(self, node: Affine) -> Tensor | None:
        """Its `b`, batch norm folded in, broadcastable against the output; a copy too."""
        own = node.bias
        return None if own is None else self.weights.prepared(node, "bias", lambda: self.weights.copied(own(self)))


class Values(Forward):
    """A forward pass, with moments (S22) and observed values (S20) where the game needs them.

    `deform(node, values)` may return another value for a node, which then drives everything behind it. A pass whose
    deformation needs moments filters those of `input_variance` along the way. If the nodes are named whose values are
    to be `kept`, all others are forgotten as soon as the pass has used them: `shape` knows theirs, and who asks for one
    gets it run again.
    """

    def __init__(
        self,
        network: Network,
        x: Mapping[Any, Any],
        weights: Weights,
        deform: Deform | None = None,
        input_variance: float | None = None,
        kept: frozenset[Node] | None = None,
    ) -> None:
        super().__init__(network, weights, network.scope(x, weights))
        assert kept is None or deform is None  # what is forgotten is run again as the model has it
        self.deformed = deform is not None
        self._observed: Observed | None = None
        self.moments: Moments | None = None if input_variance is None else self._moments(input_variance)
        others, self._others = self._others, set[torch.dtype]()  # the pass itself computes as the model does
        for _ in network.steps(self._scope, None if deform is None else lambda node: deform(node, self), kept=kept):
            pass
        self._others = others
        if self.moments is not None:
            self.moments.advance()

    def plain(self) -> Forward:
        """The same pass for what is built on it: no reference leads back here, so that all is freed with the last."""
        return Forward(self.network, self.weights, self._scope)

    def twin(self) -> Values:
        """The same values and moments; what one of both forgets, the other keeps."""
        other = copy.copy(self)
        other._scope, other._converted, other._observed = self._scope.copy(), self._converted.copy(), None
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
        self._scope[node] = getattr(self._scope[node], "shape", None)
        self._converted.pop(node, None)
        if isinstance(node, Max):
            self._scope.pop(node.place, None)
        if self._observed is not None:
            self._observed.forget(node)


def _is_forgotten(key: Any, value: Any) -> bool:
    """Whether the value of a node is gone: its shape stands in its place, or nothing where it was no tensor."""
    return (value is None or isinstance(value, torch.Size)) and isinstance(key, Node)
