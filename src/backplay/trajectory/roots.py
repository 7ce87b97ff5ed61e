"""The common root of two plays (S27): its first row is that of the target's logit, of weights the mixture (S26b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.geometric import mean
from backplay.kernels.kernel import WALK_DIFFERENCE, Kernel, PassThrough, Relabelling, Scaling
from backplay.kernels.tags import Row, pull_tagged, rows
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.trajectory.passes import Passed

if TYPE_CHECKING:
    from backplay.games.play import Play


Players = tuple[Tensor, Tensor]  # mass of each


class Root:
    """The first state of two walks, followed from the output until their overlap stands in `found`.

    Plays of one target start at its logit. Otherwise the rows of both roots are compared as rows of one state, of
    weighted logits their mixture (S26b): the walk first follows wires and scales, whose single move is the logit under
    another name. `at` is the node that the root stands on, None once it has been left; `left` are the nodes behind it.
    """

    def __init__(self, a: Play, b: Play) -> None:
        output = a.network.output
        zeros = torch.zeros(len(a.value), dtype=torch.float64, device=a.value.device)
        self.found = Passed(cemetery=zeros.clone(), constant=zeros.clone(), leaked=zeros.clone())
        self.at: Node | None = output
        self.left: list[Node] = []
        roots = [play.root(WALK_DIFFERENCE) for play in (a, b)]
        self._rows: list[Players] = [(root.clamp(min=0), (-root).clamp(min=0)) for root in roots]
        if torch.equal(*roots) and bool((roots[0].flatten(1).ne(0).sum(1) == 1).all()):
            self.found.masses[output] = Mass(roots[0].abs(), zeros, output.layout)
            self.at = None

    def leave(self, a: Kernel, b: Kernel) -> None:
        """One step down, by the kernels of the node that the root stands on."""
        assert self.at is not None
        node, kernels = self.at, (a, b)
        self.left.append(node)
        if all(_renames(k, plus + minus) for k, (plus, minus) in zip(kernels, self._rows, strict=True)):
            self._rows = [pull_tagged(k, *players)[0] for k, players in zip(kernels, self._rows, strict=True)]
            self.at = node.carriers[0]
        else:
            _first_step(self.found, node, kernels, self._rows)
            self.at = None


def common_root(a: Play, b: Play, twins: dict[Node, Node]) -> tuple[Passed, list[Node]]:
    """What the overlap pass starts from, and the nodes that it has already left."""
    root = Root(a, b)
    while root.at is not None:
        root.leave(a.kernel(root.at), b.kernel(twins[root.at]))
    return root.found, root.left


def _renames(kernel: Kernel, root: Tensor) -> bool:
    if isinstance(kernel, Scaling):
        return not bool((root * (kernel.scale == 0)).any())
    return isinstance(kernel, PassThrough) or (isinstance(kernel, Relabelling) and len(kernel.shapes) == 1)


def _first_step(found: Passed, node: Node, kernels: Sequence[Kernel], roots: Sequence[Players]) -> None:
    """Overlap of two different rows, way by way."""
    sides: list[list[Row]] = [rows(k, *r) for k, r in zip(kernels, roots, strict=True)]
    carriers = kernels[0].carriers or node.carriers
    assert found.cemetery is not None
    assert found.constant is not None
    zeros = torch.zeros_like(found.cemetery)
    for left, right in zip(*sides, strict=True):
        for operand, p, q in zip(carriers, left.moved, right.moved, strict=True):
            arrived = Mass(mean(p, q), zeros, operand.layout)
            found.masses[operand] = found.masses[operand].plus(arrived) if operand in found.masses else arrived
        if left.ends is not None and right.ends is not None:
            found.cemetery = found.cemetery + mean(node.layout.sum(left.ends), node.layout.sum(right.ends))
    constants = [k.constant(plus + minus) for k, (plus, minus) in zip(kernels, roots, strict=True)]
    if constants[0] is not None and constants[1] is not None:
        found.constant = found.constant + mean(*(node.layout.sum(c) for c in constants if c is not None))
