"""How much the gradient of a Softplus network can change (app:softplus-dombrowski): a bound for all inputs at once.

A gate whose slope is `sigmoid(z/θ)` changes that slope by at most `|z − z'| / (4θ)`. From node to node the graph turns
this into a bound on the whole map of the Stopping Game, which is the gradient (thm:softplus-gradient).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import UnsupportedError
from backplay.kernels.kernel import DIFFERENCE
from backplay.network import Node
from backplay.network.attention import Attention
from backplay.network.nodes import Affine, Diagonal, Gate, Held, Input, Sum
from backplay.network.wires import Wire
from backplay.trajectory.comparable import check_play
from backplay.values.forward import Values

if TYPE_CHECKING:
    from backplay.games.play import Play

_KNOWN = "affine nodes, constant mixes, diagonals, sums, wires, ReLU gates that are softened and Softplus"


@dataclass(frozen=True)
class Bounded:
    """Of the function from the inputs to a node's value, in Euclidean norms and for all inputs `x`, `y`."""

    slope: float  # `J`: ‖D(x)‖ is at most this
    change: float  # `H`: ‖D(x) − D(y)‖ is at most this times ‖x − y‖

    def times(self, factor: float) -> Bounded:
        """Behind a linear map of that norm."""
        return Bounded(self.slope * factor, self.change * factor)


@entry
def curvature(play: Play) -> Tensor:
    """(B,) float64: the map changes by no more than this times the change of the input, both in Euclidean norms.

    >>> soft = bp.StoppingGame(model, softplus=0.5)
    >>> bp.bounds.curvature(soft.play(x, ("features.2", (0, 4, 4))))  # of a hidden neuron, below the max pooling

    It holds for every pair of inputs, so it is far from tight on deep networks. Linear maps enter by
    `‖W‖₂ ≤ √(‖W‖₁ ‖W‖_∞)`; a ReLU without `softplus` jumps, and the bound is ∞. Nodes that no such bound is known for
    (maxima, products, norms, attention, other gates) are refused by name. torch's own Softplus is straight beyond its
    threshold: the jump of its slope there, e⁻²⁰ as it comes, is left out.
    """
    check_play(play, "curvature takes a play")
    modes: Any = play.game.modes
    plain = {"risk": {0}, "gate": {"exact"}, "entropy_bias": {0}}
    if not hasattr(modes, "softplus") or any(modes.anywhere(name) != values for name, values in plain.items()):
        raise UnsupportedError(
            f"curvature bounds the gradient, the map of StoppingGame(model, softplus=θ) alone; got {play.game!r}."
        )
    play.check_unchanged("bound its curvature")
    return _of_target(play)


def _of_target(play: Play) -> Tensor:
    """The bound of `Σ w · logit`; where the logits are affine, by the rows that are asked for and no others."""
    start, values, root = play.start, play.solved, play.root(DIFFERENCE)
    bounded: dict[Node, Bounded] = {}
    plain = isinstance(start, Affine) and _refusal(start, values) is None
    last = start.operand if isinstance(start, Affine) and plain else start
    for node in play.network.nodes:
        if node in play.visited() and (node is not start or not plain):
            theta: float | None = getattr(play.game.modes.at(node), "softplus", None)  # its own, by layer
            bounded[node] = _bounded(node, values, bounded, 0.0 if theta is None else theta)
    if isinstance(start, Affine) and plain:
        root = start.map.adjoint(root, values.weight(start), values[start.operand].shape)
    return last.layout.sum(root.double().square()).sqrt() * bounded[last].change


def _bounded(node: Node, values: Values, bounded: dict[Node, Bounded], theta: float) -> Bounded:
    """From the operands of a node to the node."""
    refusal = _refusal(node, values)
    if refusal is not None:
        raise UnsupportedError(f"{refusal}; the bound knows {_KNOWN}.")
    below = [bounded[n] for n in node.carriers]
    match node:
        case Input():
            return Bounded(1.0, 0.0)
        case Affine():
            return below[0].times(_norm(node, values))
        case Gate():
            return _gate(node, values, below[0], theta)
        case Sum():
            return Bounded(sum(b.slope for b in below), sum(b.change for b in below))
        case Diagonal():
            return below[0] if node.scale is None else below[0].times(float(node.scale(values).abs().amax()))
        case _:
            assert isinstance(node, Wire)
            copied = [b.times(copies) for b, copies in zip(below, _copies(node, values), strict=True)]
            return Bounded(math.hypot(*(b.slope for b in copied)), math.hypot(*(b.change for b in copied)))


def _refusal(node: Node, values: Values) -> str | None:
    """Why no bound passes a node, None if one does."""
    known = isinstance(node, (Input, Affine, Gate, Sum, Diagonal, Wire)) and not isinstance(node, (Attention, Held))
    if not known or node.detached_inputs:
        return f"no curvature bound passes {node.name!r}, of kind {node.kind}"
    if isinstance(node, Gate) and values.form(node).name not in ("relu", "softplus"):
        return f"no curvature bound passes the gate {node.name!r}, {node.operator}"
    return None


def _gate(node: Gate, values: Values, below: Bounded, theta: float) -> Bounded:
    """`H ← H + J²/(4θ)` behind Softplus(θ), whose slope is at most 1; a constant behind the gate is a diagonal."""
    form = values.form(node)
    width = theta if form.name == "relu" else 1 / float(form.options.get("beta", 1.0))
    bent = below.slope**2 / (4 * width) if width > 0 else math.inf
    return Bounded(below.slope, below.change + bent).times(abs(float(form.scale)))


def _norm(node: Affine, values: Values) -> float:
    """`√(‖W‖₁ ‖W‖_∞) ≥ ‖W‖₂`, from the row sums and the column sums of `|W|`."""
    weight, below, above = values.weight(node).abs(), values[node.operand], values[node]
    rows = node.map.row_sums(weight, below.shape, below).amax()
    columns = node.map.adjoint(torch.ones_like(above), weight, below.shape).amax()
    return math.sqrt(float(rows) * float(columns))


def _copies(node: Wire, values: Values) -> list[float]:
    """For each operand the norm of its move: the root of how often one of its elements is repeated."""
    shapes = [values[n].shape for n in node.inputs]
    counted = node.transpose(torch.ones_like(values[node]), values, shapes)
    return [math.sqrt(float(count.amax())) for count in counted]
