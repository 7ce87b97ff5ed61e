"""Passes over the reversed graph: one root, one measure, every kernel once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.entry import at
from backplay.kernels.kernel import Kernel, Measure
from backplay.network import Network, Node
from backplay.network.layout import PLAIN
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Affine, Input, Norm

if TYPE_CHECKING:
    from backplay.games.play import Play


@dataclass
class Passed:
    """What a pass found: mass at the nodes, and where the walk ended."""

    masses: dict[Node, Mass] = field(default_factory=dict[Node, Mass])
    cemetery: Tensor | None = None  # (B,) float64
    constant: Tensor | None = None
    leaked: Tensor | None = None

    def ended(self) -> Tensor:
        """(B,) what has ended in † and in constants, for walks."""
        assert self.cemetery is not None
        assert self.constant is not None
        return self.cemetery + self.constant


def pull(
    network: Network,
    kernel: Callable[[Node], Kernel],
    root: Tensor,
    measure: Measure,
    keep: bool = True,
    done: Callable[[Node], None] | None = None,
) -> Passed:
    """Carry `root`, mass at the network's output, back to the inputs.

    Ends of the walk are counted for undiscounted unsigned measures. `done` is told of every node that is finished.
    """
    found = started(network, root)
    if measure.signed or measure.discounted:
        found.cemetery = found.constant = found.leaked = None
    return resume(network, kernel, found, measure, keep, done)


def started(network: Network, root: Tensor) -> Passed:
    """A walk that stands at the network's output."""
    zeros = torch.zeros(network.output.layout.batch(root), dtype=torch.float64, device=root.device)
    found = Passed({network.output: Mass(root, zeros, network.output.layout)})
    found.cemetery, found.constant, found.leaked = zeros.clone(), zeros.clone(), zeros.clone()
    return found


def resume(
    network: Network,
    kernel: Callable[[Node], Kernel],
    found: Passed,
    measure: Measure,
    keep: bool = True,
    done: Callable[[Node], None] | None = None,
) -> Passed:
    """Carry what a pass has found so far back to the inputs; `pull` from a frontier instead of the output."""
    for node in reversed(network.nodes):
        if isinstance(node, Input):
            break
        if node in found.masses:
            with at(node):
                leave(found, node, kernel(node), measure, keep)
        if done is not None:
            done(node)
    for source in network.inputs:
        if source in found.masses:
            found.masses[source] = found.masses[source].normalised()
    return found


def arrived(found: Passed, play: Play) -> Mass:
    """What has come to the inputs, all of them side by side: (B, elements) with one scale for each sample."""
    return beside([found.masses.get(source, nothing(play, source)) for source in play.network.inputs])


def beside(masses: Sequence[Mass]) -> Mass:
    """Masses at the inputs as one, (B, elements)."""
    values, common = aligned(masses)
    return Mass(torch.cat([v.flatten(1) for v in values], 1), common, PLAIN)


def apart(found: Tensor, play: Play) -> list[Tensor]:
    """(B, elements) as tensors of the inputs' shapes."""
    shapes = [play.values[source].shape for source in play.network.inputs]
    parts = found.split([shape[1:].numel() for shape in shapes], 1)
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def nothing(play: Play, node: Node) -> Mass:
    """No mass: at an oracle, a detached factor, an input without influence."""
    value = play.values[node]
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=value.device)
    return Mass(torch.zeros_like(value), zeros, node.layout)


def leave(found: Passed, node: Node, step: Kernel, measure: Measure, keep: bool = True) -> None:
    """Carry what stands at one node to its carriers; what ends there is counted for walks."""
    masses = found.masses
    if isinstance(node, (Affine, Norm)):  # between these, masses change by small factors only
        masses[node] = masses[node].normalised()
    mass = masses[node]
    if found.cemetery is not None:
        _count_ends(found, step, mass)
    for operand, value in zip(step.carriers or node.carriers, step.pull(mass.value, measure), strict=True):
        arrived = Mass(value, mass.exponent, operand.layout)
        masses[operand] = masses[operand].plus(arrived) if operand in masses else arrived
    if not keep:
        del masses[node]


def _count_ends(found: Passed, step: Kernel, mass: Mass) -> None:
    for name, ends in (
        ("cemetery", step.lost(mass.value)),
        ("constant", step.constant(mass.value)),
        ("leaked", step.leaked(mass.value)),
    ):
        if ends is not None:
            setattr(found, name, getattr(found, name) + Mass(ends, mass.exponent, mass.layout).total())
