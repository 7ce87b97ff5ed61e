"""What a game is worth at the states of a node, in the paper's units: the recursion, to be followed with a pencil."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.errors import tensor_words
from backplay.network.attention import Attention
from backplay.network.nodes import Gate, Node
from backplay.values.forward import Values

if TYPE_CHECKING:
    from backplay.games.game import Game


@dataclass(frozen=True, repr=False)
class StateValues:
    """Values at the states of a node with player + in turn, shaped like its output, in float64.

    In the Stopping Game (def:adf-recursion, eq:adf-q-bellman) they are payoffs: `plus` and `minus` what either player
    gets if the game goes on (eq:adf-q-cont; to stop pays 0, eq:adf-q-stop), at an input what it pays out
    (eq:adf-v-terminal), `action` their difference, and `value` the advantage `V` after the decision to stop or go on
    (eq:adf-v-active, eq:adf-advantage).
    In the Routing Game they are logarithms: `plus` and `minus` the values of the two stream states,
    `τ log(ε^{1/τ} + Σ c^{1/τ})` (eq:routing-forward-linear), `action` that of going on, `ℓ(z)`
    (eq:routing-activation-continue, eq:routing-forward-continue), and `value` that of the state, `ℓ(a)`
    (eq:routing-activation-value, eq:routing-forward-act).
    There `ℓ(0)` is −∞ and the paper's ω, `ℓ` of a negative number, is NaN.
    At a gate, streams and action are those of what it decides on, and `continues` is the probability of going on.
    """

    plus: Tensor | None  # None where a node of the Routing Game has no streams of its own
    minus: Tensor | None
    action: Tensor
    value: Tensor
    continues: Tensor | None = None  # of gates
    oracle: Tensor | None = None  # of attention: `V_QK` (eq:attn-qk-value), (B, heads, queries)

    def __repr__(self) -> str:
        known = [name for name in self.__dataclass_fields__ if getattr(self, name) is not None]
        return f"StateValues({', '.join(known)}; value {tensor_words(self.value)})"


def decided(node: Node) -> Node:
    """The node whose value a state is about: of a gate what it decides on, of any other node itself."""
    return node.operand if isinstance(node, Gate) else node


def continuing(game: Game[Any], node: Node, values: Values) -> Tensor | None:
    """The probability of going on at a gate."""
    return game.kernel(node, values).push([torch.ones_like(values[node])]).double() if isinstance(node, Gate) else None


def oracle_value(node: Node, values: Values) -> Tensor | None:
    """`V_QK = ℓ(Σ_k exp e_qk)` of every query (eq:attn-qk-value); None where no such scores are found."""
    if not isinstance(node, Attention):
        return None
    scores = _scores(node, values)
    if scores is None or scores.shape != node.weight(values).shape:
        return None
    return node.queries_first(scores).double().logsumexp(-1)


def _scores(node: Attention, values: Values) -> Tensor | None:
    """`e_qk`, what the oracle's softmax reads, as the model lays it out."""
    if node.logits is not None:
        return node.logits(values)
    softmax = node.weights_node
    while softmax is not None and not softmax.facts.softmax:
        softmax = softmax.inputs[0] if len(softmax.inputs) == 1 else None
    return None if softmax is None else values[softmax.inputs[0]]
