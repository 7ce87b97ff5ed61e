"""Whether two plays walk on the same states (S27)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError
from backplay.network import Network, Node
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine, Fill, Ref, leaves
from backplay.network.wires import Wire

if TYPE_CHECKING:
    from backplay.games.play import Play


def check_play(play: object, asked: str) -> None:
    """A solved game, known by its passes, and whole, known by its game; `asked` says what takes it."""
    passes = callable(getattr(play, "passed", None))
    if passes and not hasattr(play, "game"):
        raise InputTypeError(
            f"{asked}, got a {type(play).__name__}, a part of one: whole plays are taken; give its .play."
        )
    if not passes:
        raise InputTypeError(f"{asked}, got {type(play).__name__}; solve one with game.play(x).")


def check_comparable(a: Play, b: Play) -> None:
    """Same game class, same nodes, same batch, same precision; an error names what differs first."""
    games = type(a.game).__name__, type(b.game).__name__
    if type(a.game) is not type(b.game):
        raise InputError(f"a {games[0]} and a {games[1]} have different states; compare two plays of one game.")
    check_same_graph(a.network, b.network)
    if len(a.value) != len(b.value):
        raise InputError(
            f"plays of {len(a.value)} and {len(b.value)} samples: a batch is compared pairwise, so give both plays "
            "the same number of samples, or use bp.hellinger_matrix on single ones."
        )
    left, right = a.value, b.value
    if left.dtype != right.dtype or left.device != right.device:
        raise InputError(
            f"plays in {left.dtype} on {left.device} and in {right.dtype} on {right.device}; play both in one "
            "precision and on one device."
        )

    if a.start.name != b.start.name:
        raise InputError(
            f"plays that start at {a.start.name!r} and at {b.start.name!r} have no common root; start both at one node."
        )
    _check_same_indices(a, b)


def _check_same_indices(a: Play, b: Play) -> None:
    """Wires that read an index or a mask move elements by it: both plays must read the same."""
    for left, right in zip(a.network.nodes, b.network.nodes, strict=True):
        if left not in a.network.reached or not isinstance(left, Wire):
            continue
        pairs = zip(*([r for r in leaves(n.args) if isinstance(r, Ref)] for n in (left, right)), strict=True)
        for mine, other in pairs:
            p, q = a.solved[mine], b.solved[other]
            computed = mine in {n.ref for n in left.detached_inputs}  # which kernels compare
            indices = isinstance(p, Tensor) and not p.is_floating_point() and not computed
            if indices and not torch.equal(p, q):
                raise InputError(
                    f"the plays differ first at node {left.name!r}, which moves elements by an index or a mask that "
                    "is not the same in both; only plays that move alike have the same states."
                )


def check_same_graph(a: Network, b: Network) -> None:
    """Node by node: name, kind, shape, and where mass may move to."""
    if a is b:
        return
    for left, right in zip(a.nodes, b.nodes, strict=False):
        if _signature(left) != _signature(right):
            raise InputError(
                f"the networks differ first at node {left.name!r}: {_words(left)} in one, {_words(right)} in the "
                "other; only plays on the same graph have the same states."
            )
    if len(a.nodes) != len(b.nodes):
        longer = max(a.nodes, b.nodes, key=len)
        extra = longer[min(len(a.nodes), len(b.nodes))]
        raise InputError(
            f"the networks differ first at node {extra.name!r}, which only one of them has ({len(a.nodes)} and "
            f"{len(b.nodes)} nodes); only plays on the same graph have the same states."
        )


def _signature(node: Node) -> tuple[object, ...]:
    states = node.name, node.kind, type(node), node.shape, node.layout, tuple(n.name for n in node.carriers)
    geometry = node.map if isinstance(node, Affine) and isinstance(node.map, Convolution) else None
    return *states, geometry, _moves(node)


def _moves(node: Node) -> tuple[object, ...]:
    """Operator and constant arguments of a wire: two of equal shapes may move elements differently."""
    if not isinstance(node, Wire) or node.facts.dropout:
        return ()
    return node.operator, *(leaf for leaf in leaves(node.args) if isinstance(leaf, (int, float, str, Fill)))


def _words(node: Node) -> str:
    return f"{node.kind} {node.name!r} of shape {node.shape}"
