"""Passes over the reversed graph: one loop for walks, relevance, multipliers and sampled trajectories.

A `BackwardPass` holds what stands at the nodes it has come to and says how that leaves a node; `run` lets it leave
every node once, the last one first. Games and distances carry mass by kernels (`KernelPass`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from backplay.entry import at
from backplay.kernels.kernel import Kernel, Measure
from backplay.network import Network, Node
from backplay.network.attention import Attention
from backplay.network.indicator import all_finite
from backplay.network.layout import PLAIN
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Affine, Input, Norm

if TYPE_CHECKING:
    from backplay.games.play import Play

S = TypeVar("S")  # what stands at a node


class BackwardPass(ABC, Generic[S]):
    """Something that is carried back through a network, node by node."""

    def __init__(self, network: Network, standing: dict[Node, S], keep: bool = True) -> None:
        self.network = network
        self.standing = standing  # what stands at each node that the pass has come to
        self.keep = keep  # whether it stays written down after the node has been left

    @abstractmethod
    def move(self, node: Node, here: S) -> Iterable[tuple[Node, S]]:
        """What stands at a node, moved on: each operand with what comes to it."""

    @abstractmethod
    def add(self, one: S, other: S) -> S:
        """What stands at a node where two things have come together."""

    def leave(self, node: Node) -> None:
        """Move on what stands at a node, if anything does; what stands at an input stays."""
        if node not in self.standing or isinstance(node, Input):
            return
        with at(node):
            for operand, moved in self.move(node, self.standing[node]):
                here = self.standing.get(operand)
                self.standing[operand] = moved if here is None else self.add(here, moved)
        if not self.keep:
            del self.standing[node]


def run(*passes: BackwardPass[Any], done: Callable[[Node], None] | None = None) -> None:
    """The backward loop. Passes on copies of one graph go side by side; `done` gets nodes that all have left."""
    for position in reversed(range(len(passes[0].network.nodes))):
        for each in passes:
            each.leave(each.network.nodes[position])
        node = passes[0].network.nodes[position]
        if done is not None and not isinstance(node, Input):
            done(node)


class MassPass(BackwardPass[Mass]):
    """Mass with a scale for each sample, so that it stays in range through any depth (S11).

    A pass that is not `careful` may come to infinite masses at the inputs; then it has to be run again.
    """

    careful: bool = True

    @abstractmethod
    def step(self, node: Node, mass: Mass) -> Iterable[tuple[Node, Tensor]]:
        """Each operand with the values that come to it, on the scale of the given mass."""

    def move(self, node: Node, here: Mass) -> Iterable[tuple[Node, Mass]]:
        if isinstance(node, (Affine, Norm)):  # between these, masses change by small factors only
            here = self.standing[node] = here.normalised(self.careful)
        for operand, value in self.step(node, here):
            yield operand, Mass(value, here.exponent, operand.layout)

    def add(self, one: Mass, other: Mass) -> Mass:
        return one.plus(other)


@dataclass
class Losses:
    """Where walks have ended other than at the input, never to leave (eq:cemetery-absorbing): (B,) float64 each."""

    cemetery: Tensor
    constant: Tensor
    leaked: Tensor  # the part of the cemetery that biases absorb

    @staticmethod
    def none(batch: int, device: torch.device) -> Losses:
        zeros = torch.zeros(batch, dtype=torch.float64, device=device)
        return Losses(zeros, zeros, zeros)

    def total(self) -> Tensor:
        """(B,) what has ended in † and in constants."""
        return self.cemetery + self.constant

    def count(self, kernel: Kernel, mass: Mass) -> None:
        """Add what ends at a node that holds this mass."""
        self.cemetery = self.cemetery + _total(kernel.lost(mass.value), mass)
        self.constant = self.constant + _total(kernel.constant(mass.value), mass)
        self.leaked = self.leaked + _total(kernel.leaked(mass.value), mass)


def _total(ends: Tensor | None, mass: Mass) -> Tensor | float:
    return 0.0 if ends is None else Mass(ends, mass.exponent, mass.layout).total()


@dataclass
class Passed:
    """What a pass has come to: mass at the nodes, and where walks have ended."""

    masses: dict[Node, Mass] = field(default_factory=dict[Node, Mass])
    counted: Losses | None = None  # None: ends are not counted

    @staticmethod
    def starting(node: Node, root: Tensor, counting: bool = True) -> Passed:
        """Mass `root` at a node: where the walk starts (eq:lmp-alpha-boundary)."""
        batch = node.layout.batch(root)
        zeros = torch.zeros(batch, dtype=torch.float64, device=root.device)
        masses = {node: Mass(root, zeros, node.layout)}
        return Passed(masses, Losses.none(batch, root.device) if counting else None)

    @property
    def losses(self) -> Losses:
        """Of a walk."""
        assert self.counted is not None
        return self.counted

    def arrive(self) -> Passed:
        """Bring what has come to the inputs to a scale near 1."""
        for node, mass in self.masses.items():
            if isinstance(node, Input):
                self.masses[node] = mass.normalised()
        return self

    @property
    def finite(self) -> bool:
        """Whether all that has come to the inputs is."""
        return all(all_finite(mass.value) for node, mass in self.masses.items() if isinstance(node, Input))


class KernelPass(MassPass):
    """Mass carried by kernels (eq:lmp-alpha-recursion); ends of the walk are counted if `passed` counts them."""

    def __init__(
        self,
        network: Network,
        kernel: Callable[[Node], Kernel],
        passed: Passed,
        measure: Measure,
        keep: bool = True,
        careful: bool = True,
    ) -> None:
        super().__init__(network, passed.masses, keep)
        self.kernel, self.passed, self.measure, self.careful = kernel, passed, measure, careful

    def step(self, node: Node, mass: Mass) -> Iterable[tuple[Node, Tensor]]:
        kernel = self.kernel(node)
        if self.passed.counted is not None:
            self.passed.counted.count(kernel, mass)
        return zip(kernel.carriers or node.carriers, kernel.pull(mass.value, self.measure), strict=True)


def pull(
    network: Network,
    kernel: Callable[[Node], Kernel],
    start: Node,
    root: Tensor,
    measure: Measure,
    keep: bool = True,
    done: Callable[[Node], None] | None = None,
    careful: bool = False,
) -> Passed:
    """Carry `root`, mass at the node `start`, back to the inputs.

    Ends of the walk are counted for undiscounted unsigned measures. `done` is called with every node that is finished;
    with it a pass that was not `careful` enough stays infinite, without it is run again.
    """
    passed = Passed.starting(start, root, counting=not (measure.signed or measure.discounted))
    run(KernelPass(network, kernel, passed, measure, keep, careful), done=done)
    passed.arrive()
    if careful or done is not None or passed.finite:
        return passed
    return pull(network, kernel, start, root, measure, keep, careful=True)


# ---------------------------------------------------------------- what has come to the inputs


def arrived(passed: Passed, play: Play) -> Mass:
    """What has come to the inputs, all of them side by side: (B, elements) with one scale for each sample."""
    return side_by_side([passed.masses.get(source, no_mass(play, source)) for source in play.network.inputs])


def side_by_side(masses: Sequence[Mass]) -> Mass:
    """Masses at the inputs as one, (B, elements)."""
    values, common = aligned(masses)
    return Mass(torch.cat([v.flatten(1) for v in values], 1), common, PLAIN)


def joined(parts: Sequence[Mass]) -> Mass:
    """Mass at the inputs of several batches, (B, elements), one behind the other."""
    return Mass(torch.cat([m.value for m in parts]), torch.cat([m.exponent for m in parts]), parts[0].layout)


def by_input(elements: Tensor, play: Play) -> list[Tensor]:
    """(B, elements) as tensors of the inputs' shapes."""
    shapes = [play.solved[source].shape for source in play.network.inputs]
    parts = elements.split([shape[1:].numel() for shape in shapes], 1)
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def crossing(play: Play, node: Node, measure: Measure, future: Mapping[Node, Mass] | None = None) -> Mass | None:
    """What comes through a node's states inside a composite (S23): `Γ^V` (eq:attn-Gamma-V-corollary).

    It stands at a V projection, and on the wires that lead from there to the mixing.

    With a `future` at every node, each part times what it may expect of that. None at all other nodes.
    """
    total: Mass | None = None
    masses = play.passed(measure).masses
    for mixing in (n for n in masses if isinstance(n, Attention) and (n.projection is node or node in n.wires)):
        kernel, mass = play.kernel(mixing), masses[mixing]
        if kernel.crossed is None or kernel.carriers is None:  # in the Stopping Game the walk stands there
            continue
        ahead = None if future is None else future[kernel.carriers[0]]
        wire = None if kernel.crossed is node else node
        through = kernel.cross(mass.value, measure, None if ahead is None else ahead.value, wire)
        exponent = mass.exponent if ahead is None else mass.exponent + ahead.exponent
        mass = Mass(through, exponent, node.layout)
        total = mass if total is None else total.plus(mass)
    return total


def no_mass(play: Play, node: Node) -> Mass:
    """No mass: at an oracle, a detached factor, an input without influence."""
    value = play.solved[node]
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=value.device)
    return Mass(torch.zeros_like(value), zeros, node.layout)
