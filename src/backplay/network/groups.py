"""Which states of a node belong together: its channels, heads, tokens or positions (S26c)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError, KeywordError
from backplay.network.attention import Attention
from backplay.network.choices import Max
from backplay.network.contraction import Contraction
from backplay.network.graph import Network
from backplay.network.linear import Convolution, Dense
from backplay.network.mass import Mass
from backplay.network.nodes import Affine, Input, Mix, Node, Scope
from backplay.network.wires import Wire

BY = ("channel", "head", "token", "position")


@dataclass(frozen=True)
class Groups:
    """The states of a node in `count` groups."""

    node: Node
    by: str  # one of BY
    labels: Tensor  # the number of each state's group, from 0 on; broadcastable against the node's value
    count: int

    def mask(self, chosen: Sequence[int]) -> Tensor:
        """True in the states of some groups, broadcastable against the node's value."""
        return torch.isin(self.labels, torch.tensor(list(chosen), device=self.labels.device))

    def sums(self, mass: Mass) -> Tensor:
        """(B, count) what each group of each sample holds, float64."""
        rows = mass.layout.rows(mass.value).double()
        labels = mass.layout.rows(self.labels.expand(mass.value.shape))
        sums = torch.zeros(len(rows), self.count, dtype=torch.float64, device=rows.device)
        return sums.scatter_add_(1, labels, rows) * torch.exp2(mass.exponent)[:, None]


def check_by(by: Any) -> str:
    """The word that says how states are grouped."""
    if not isinstance(by, str) or by not in BY:
        raise KeywordError(f"by={by!r} is out of range: it must be one of {', '.join(map(repr, BY))}.")
    return by


def find_grouped(network: Network, name: str | Node, by: str) -> Node:
    """The node or module of a name; for heads the attention inside that module."""
    return attention_inside(network, name) if by == "head" else network.find(name)


def attention_inside(network: Network, name: str | Node) -> Attention:
    """The one attention in a module, or the attention node itself."""
    known = [n for n in network.nodes if isinstance(n, Attention)]
    inside = [n for n in known if n is name or n.name == name or any(path == name for path, _ in n.calls)]
    if len(inside) == 1:
        return inside[0]
    if not known:
        raise InputError(f"{name!r} holds no attention, and neither does any other part of this network.")
    problem = f"holds {len(inside)} attentions" if inside else "holds no attention"
    raise InputError(f"{name!r} {problem}; name one of {[n.name for n in (inside or known)]}.")


def groups_of(network: Network, node: Node, by: str, scope: Scope) -> Groups:
    """The groups of a node's states; `scope` holds the values of a play."""
    value = scope[node]
    sizes = {d: _own_size(node, d, value) for d in range(value.ndim)}
    axes = _attention_axes(node, by) if isinstance(node, Attention) else _axes(network, node, by, scope, sizes)
    labels, count = torch.zeros([1] * value.ndim, dtype=torch.long, device=value.device), 1
    for axis in axes:
        along = _own_index(node, axis, value).view([-1 if d == axis else 1 for d in range(value.ndim)])
        labels, count = labels * sizes[axis] + along, count * sizes[axis]
    return Groups(node, by, labels, count)


def _own_size(node: Node, axis: int, value: Tensor) -> int:
    """The length of an axis within one sample: what is left of the axis that holds the samples, elsewhere all."""
    layout = node.layout
    return layout.outer * layout.inner if axis == layout.dim else value.shape[axis]


def _own_index(node: Node, axis: int, value: Tensor) -> Tensor:
    """The place of each entry of an axis within its sample."""
    places, layout = torch.arange(value.shape[axis], device=value.device), node.layout
    if axis != layout.dim:
        return places
    whole = layout.batch(value) * layout.inner
    return places // whole * layout.inner + places % layout.inner


# ---------------------------------------------------------------- axes


def _attention_axes(node: Attention, by: str) -> list[int]:
    """Of an attention's output: heads are what values and weights share, a channel is a feature of a head."""
    equation = node.equation
    heads = [c for c in equation.out if c in equation.left and c in equation.right]
    features = [c for c in equation.out if c in equation.left and c not in equation.right]
    queries = [c for c in equation.out if c not in equation.left]
    letters = {"head": heads, "channel": heads + features, "token": queries, "position": queries}[by]
    return [equation.out.index(c) for c in letters]


def _axes(network: Network, node: Node, by: str, scope: Scope, sizes: dict[int, int]) -> list[int]:
    shape = tuple(node.shape)
    if by == "head":
        raise InputError(f"{node.name!r} is of kind {node.kind} and has no heads; name an attention, or give a mask.")
    channel = channel_axis(network, node, scope)
    if channel is None:
        raise InputError(f"the axes of {node.name!r} {shape} are not known as channels and places; give a mask.")
    if by == "channel":
        return [channel]
    places = [d for d in sizes if d != channel and (d != node.layout.dim or sizes[d] > 1)]
    if not places:
        raise InputError(f"{node.name!r} {shape} has channels alone and no {by}s; group it by='channel'.")
    if by == "token" and len(places) > 1:
        own = tuple(sizes[d] for d in places)
        raise InputError(f"{node.name!r} has places of shape {own} and no tokens; group it by='position'.")
    return places


def channel_axis(network: Network, node: Node, scope: Scope) -> int | None:
    """The axis of a node's value along which its channels lie; None where no single one holds them.

    Convolutions and products with weights make channels; everything else hands those of its first operand on.
    """
    value: Tensor = scope[node]
    match node:
        case Input():
            reads = [n for n in network.nodes if isinstance(n, Affine) and n.operand is node]
            convolved = any(isinstance(n.map, Convolution) for n in reads)
            return 1 if convolved or value.ndim > 3 else value.ndim - 1
        case Mix():
            weight = node.weight(scope).double()
            size = node.map.apply(torch.ones(scope[node.operand].shape, dtype=torch.float64).to(weight.device), weight)
            return _traced(network, node, scope, lambda labels: node.map.apply(labels[0], weight) / size)
        case Affine(map=Convolution()):
            return 1
        case Affine(map=Dense()):
            return value.ndim - 1
        case Affine(map=Contraction(equation)):
            made = [d for d, c in enumerate(equation.out) if c not in equation.left]
            return made[0] if len(made) == 1 else None
        case Wire():
            return _traced(network, node, scope, lambda labels: node.move(labels, scope))
        case Max(winner=winner) if winner is not None:
            return _traced(network, node, scope, lambda labels: node.pick(labels, scope))
        case _:
            below = node.carriers[0] if node.carriers else None
            same = below is not None and scope[below].ndim == value.ndim
            return channel_axis(network, below, scope) if same and below is not None else None


def _traced(network: Network, node: Node, scope: Scope, move: Callable[[Sequence[Tensor]], Tensor]) -> int | None:
    """Where the channels of the operands are to be found after a move, by moving their numbers, from 1 on."""
    labels: list[Tensor] = []
    axes = [channel_axis(network, operand, scope) for operand in node.carriers]
    for operand, axis in zip(node.carriers, axes, strict=True):
        value = scope[operand]
        if axis is None:
            return None
        numbers = torch.arange(1.0, value.shape[axis] + 1, dtype=torch.float64, device=value.device)
        labels.append(numbers.view([-1 if d == axis else 1 for d in range(value.ndim)]).expand(value.shape))
    moved = move(labels)
    fitting = [d for d in range(moved.ndim) if _lie_along(moved, d)]
    return axes[0] if axes[0] in fitting else fitting[-1] if fitting else None


def _lie_along(labels: Tensor, axis: int) -> bool:
    """Whether labels change along one axis alone; what a wire has filled in has the label 0, which fits any."""
    along = labels.movedim(axis, 0).flatten(1).amax(1) if labels.ndim > 1 else labels
    spread = along.view([-1 if d == axis else 1 for d in range(labels.ndim)])
    return bool(((labels == 0) | ((labels - spread).abs() < 1e-6 * spread)).all())


# ---------------------------------------------------------------- states as callers give them


def read_states(network: Network, node: Node, states: Any, by: str, scope: Scope) -> Tensor:
    """A mask that broadcasts against the node's value: 1 in chosen states, 0 elsewhere, or what lies between.

    `states` are the numbers of groups, or such a mask itself.
    """
    value: Tensor = scope[node]
    given = states if isinstance(states, Tensor) else _as_tensor(states, node)
    given = given.detach().to(value.device)
    if given.dtype == torch.bool or given.is_floating_point():
        return _read_mask(given, node, value)
    if given.ndim > 1:
        raise InputError(
            f"states of shape {tuple(given.shape)} for {node.name!r}: give numbers of {by}s in one list, or a mask of "
            "bool or floating point."
        )
    chosen: list[int] = given.flatten().tolist()
    groups = groups_of(network, node, by, scope)
    wrong = [c for c in chosen if not 0 <= c < groups.count]
    if wrong or not chosen:
        problem = f"{by} {wrong[0]} is out of range" if wrong else f"no {by} is chosen"
        raise InputError(
            f"{problem}: {node.name!r} has {groups.count} {by}s; give numbers from 0 to {groups.count - 1}."
        )
    return groups.mask(chosen).to(value.dtype)


def _as_tensor(states: Any, node: Node) -> Tensor:
    try:
        if isinstance(states, (str, bool)) or states is None:
            raise TypeError
        numbers = torch.as_tensor(list(states) if isinstance(states, (range, set, frozenset)) else states)
        return numbers if numbers.numel() else numbers.long()  # an empty list has no numbers of any kind
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"states of {node.name!r} must be numbers, or a mask of bool or within [0, 1]; got {type(states).__name__}."
        ) from error


def _fitting(mask: Tensor, value: Tensor) -> str:
    """What to give instead of a mask that does not fit: a flat one is most often meant for channels."""
    if mask.ndim == 1 and value.ndim > 2:
        ones = ", 1" * (value.ndim - 2)
        return f"for channels give ({value.shape[1]}{ones}), or channel numbers"
    return "give one that broadcasts to them"


def _read_mask(mask: Tensor, node: Node, value: Tensor) -> Tensor:
    try:
        whole = torch.broadcast_shapes(mask.shape, value.shape) == value.shape
    except RuntimeError:
        whole = False
    if not whole:
        raise InputError(
            f"a mask of shape {tuple(mask.shape)} does not fit the states of {node.name!r}, {tuple(value.shape)}; "
            f"{_fitting(mask, value)}."
        )
    mask = mask.to(value.dtype)
    inside = (mask >= 0) & (mask <= 1)
    if not bool(inside.all()):
        wrong = float(mask[~inside].flatten()[0])
        raise InputError(f"a mask at {node.name!r} holds {wrong:g}; its entries are bool or numbers from 0 to 1.")
    return mask.view([1] * (value.ndim - mask.ndim) + list(mask.shape))
