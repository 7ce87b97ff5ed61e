"""The common root of two plays (S27): its first row is that of the target's logit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.geometric import mean
from backplay.kernels.kernel import WALK, Kernel, PassThrough, Relabelling, Scaling
from backplay.kernels.tags import Row, rows
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.trajectory.passes import Passed

if TYPE_CHECKING:
    from backplay.games.play import Play


def common_root(a: Play, b: Play, twins: dict[Node, Node]) -> tuple[Passed, list[Node]]:
    """What the overlap pass starts from, and the nodes that it has already left.

    Plays of one target start at its logit. Otherwise the rows of both logits are compared as rows of one state: the
    walk first follows wires and scales, whose single move is the logit under another name.
    """
    output = a.network.output
    zeros = torch.zeros(len(a.value), dtype=torch.float64, device=a.value.device)
    found = Passed(cemetery=zeros.clone(), constant=zeros.clone(), leaked=zeros.clone())
    roots = a.root(), b.root()
    if torch.equal(a.target, b.target):
        found.masses[output] = Mass(roots[0], zeros, output.layout)
        return found, []
    node, left = output, [output]
    kernels = a.kernel(node), b.kernel(twins[node])
    while all(_renames(k, r) for k, r in zip(kernels, roots, strict=True)):
        roots = kernels[0].pull(roots[0], WALK)[0], kernels[1].pull(roots[1], WALK)[0]
        node = node.carriers[0]
        left.append(node)
        kernels = a.kernel(node), b.kernel(twins[node])
    _first_step(found, node, kernels, roots)
    return found, left


def _renames(kernel: Kernel, root: Tensor) -> bool:
    if isinstance(kernel, Scaling):
        return not bool((root * (kernel.scale == 0)).any())
    return isinstance(kernel, PassThrough) or (isinstance(kernel, Relabelling) and len(kernel.shapes) == 1)


def _first_step(found: Passed, node: Node, kernels: Sequence[Kernel], roots: Sequence[Tensor]) -> None:
    """Overlap of two different rows, way by way."""
    sides: list[list[Row]] = [rows(k, r) for k, r in zip(kernels, roots, strict=True)]
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
    constants = [k.constant(r) for k, r in zip(kernels, roots, strict=True)]
    if constants[0] is not None and constants[1] is not None:
        found.constant = found.constant + mean(*(node.layout.sum(c) for c in constants if c is not None))
