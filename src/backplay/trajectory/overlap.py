"""The Hellinger passes of two plays (alg:hellinger-backward, alg:hellinger-forward): plain and given survival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.errors import list_words
from backplay.kernels.geometric import geometric
from backplay.kernels.kernel import WALK, Kernel
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Mix
from backplay.trajectory.passes import KernelPass, Passed, arrived, joined, run
from backplay.trajectory.roots import OverlapPass, common_root
from backplay.trajectory.survival import (
    conditioned,
    expect,
    log2_survival,
    ones_at_inputs,
    root_given_survival,
    survival,
)
from backplay.values.powers import square_root

if TYPE_CHECKING:
    from backplay.games.play import Play

Watch = Callable[[Node, OverlapPass], None]  # sees the pass after every node


@dataclass(frozen=True)
class TwoPlays:
    """Two plays on one graph, and what their walks share. No geometric kernel outlives its use."""

    a: Play
    b: Play

    @cached_property
    def twins(self) -> dict[Node, Node]:
        """Of each node of A's network, the same node of B's."""
        return dict(zip(self.a.network.nodes, self.b.network.nodes, strict=True))

    def kernels(self, node: Node) -> tuple[Kernel, Kernel]:
        """Of both plays, at a node of A's network."""
        return self.a.kernel(node), self.b.kernel(self.twins[node])

    def kernel(self, node: Node) -> Kernel:
        """`√(T_A T_B)` at a node of A's network (eq:geom-kernel)."""
        return geometric(*self.kernels(node), node.name)

    def backward(self, watch: Watch) -> Passed:
        """`β` at the input and in the ends (alg:hellinger-backward).

        Its sum is the overlap of the laws (lem:hellinger-backward-correctness, eq:bc-chain-rule).
        """
        overlap = OverlapPass(self.a, self.b, self.kernels)
        run(overlap, done=lambda node: watch(node, overlap))
        return overlap.passed.arrive()

    def forward(self) -> tuple[Tensor, dict[Node, Mass]]:
        """(B,) `BC` and `γ`, the overlap to come, at every state (alg:hellinger-forward).

        `γ` at the root is `BC` (lem:hellinger-forward-correctness).
        """
        start, behind = common_root(self.a, self.b, self.kernels)
        visited = [n for n in self.a.visited() if n not in behind]
        ahead = expect(self.a.network, self.kernel, visited, ones_at_inputs(self.a), ends=True)
        total = start.losses.total()
        for node, mass in start.masses.items():
            total = total + _weighted(mass, ahead[node]).total()
        return total, ahead

    def surviving(self) -> Surviving:
        """The laws given survival, by their kernels (thm:conditioned-survival ii, iii; eq:conditioned-bc-kernel)."""
        h_a, h_b = survival(self.a), survival(self.b)
        both = {node: _between(h_a[node], h_b[self.twins[node]]) for node in h_a}
        alphas: list[Mass] = []
        for play, h in ((self.a, h_a), (self.b, h_b)):
            start = play.start
            first = Mass(root_given_survival(play, h[start]), torch.zeros_like(h[start].exponent), start.layout)
            alphas.append(_carried(play, play.kernel, {start: first}, h))
        common, _ = common_root(self.a, self.b, self.kernels)
        overlap = {node: _weighted(mass, both[node]) for node, mass in common.masses.items()}
        beta = _carried(self.a, self.kernel, overlap, both)
        log_a, log_b = (log2_survival(p, h[p.start]) for p, h in ((self.a, h_a), (self.b, h_b)))
        scaled = Mass(beta.value, beta.exponent - (log_a + log_b) / 2, beta.layout)
        met = alphas[0] if self.a is self.b else scaled
        return Surviving(alphas[0], alphas[1], met, log_a, log_b)


@dataclass(frozen=True)
class Surviving:
    """`α_A`, `α_B` and `β` at the inputs given survival, and the binary logarithms of `Z_A`, `Z_B`."""

    alpha_a: Mass
    alpha_b: Mass
    beta: Mass
    log2_a: Tensor
    log2_b: Tensor

    @staticmethod
    def joined(parts: Sequence[Surviving]) -> Surviving:
        """Those of several batches, one behind the other."""
        alpha_a, alpha_b, beta = (joined([getattr(p, n) for p in parts]) for n in ("alpha_a", "alpha_b", "beta"))
        logs = [torch.cat([getattr(p, n) for p in parts]) for n in ("log2_a", "log2_b")]
        return Surviving(alpha_a, alpha_b, beta, logs[0], logs[1])


@dataclass(frozen=True, repr=False)
class Growth:
    """The overlap once one affine node is passed, taken apart, (B,) each (rem:adf-cemetery-floor).

    On the way back `cemetery` and `constant` never shrink (eq:cem-recursion) and `ordinary` never grows
    (eq:ord-recursion).
    """

    name: str
    bc: Tensor  # all of it: the prefix BC
    ordinary: Tensor  # of walks that go on, or have reached an input element
    cemetery: Tensor  # of walks that have ended in †
    constant: Tensor  # of walks that have ended in constant elements (S26)

    def __repr__(self) -> str:
        words = [f"{n} {list_words([f'{v:.4f}' for v in getattr(self, n).tolist()])}" for n in _PARTS]
        return f"Growth({self.name!r}, {', '.join(words)})"

    @staticmethod
    def joined(parts: Sequence[Growth], size: Tensor) -> Growth:
        """Those of several batches, one behind the other, divided by the masses that the walks really carried."""
        whole = (torch.cat([getattr(p, n) for p in parts]) / size for n in _PARTS)
        return Growth(parts[0].name, *(part.clamp(max=1) for part in whole))


_PARTS = "bc", "ordinary", "cemetery", "constant"


def prefixes(plays: TwoPlays) -> tuple[Passed, list[Growth]]:
    """The backward pass with the prefix `BC` after every affine node (lem:bc-chain-rule, lem:bc-monotone, S31)."""
    curve: list[Growth] = []

    def watch(node: Node, overlap: OverlapPass) -> None:
        if _is_affine(node, plays.a):
            losses = overlap.passed.losses
            ordinary = torch.stack([overlap.root.waiting(), *(m.total() for m in overlap.passed.masses.values())])
            parts = ordinary.sum(0), losses.cemetery, losses.constant
            curve.append(Growth(node.name, torch.stack([losses.total(), *ordinary]).sum(0), *parts))

    return plays.backward(watch), curve


def _is_affine(node: Node, play: Play) -> bool:
    """Affine nodes that the walk visits; attention counts once, with its V projection (S23)."""
    if node not in play.visited():
        return False
    return node.kind == "affine" or (isinstance(node, Mix) and play.kernel(node).carriers is not None)


def _weighted(mass: Mass, h: Mass) -> Mass:
    return Mass(mass.value * h.value, mass.exponent + h.exponent, mass.layout)


def _between(a: Mass, b: Mass) -> Mass:
    """`√(h_A h_B)` with its scale."""
    half = torch.floor((a.exponent + b.exponent) / 2)
    rest = torch.exp2((a.exponent + b.exponent) / 2 - half)
    value = square_root(a.value) * square_root(b.value)
    return Mass(value * a.layout.spread(rest.to(value.dtype), value), half, a.layout)


def _carried(play: Play, kernel: Callable[[Node], Kernel], start: dict[Node, Mass], h: dict[Node, Mass]) -> Mass:
    """Mass at the inputs under the Doob transform of a kernel."""
    passed = Passed(start)
    run(KernelPass(play.network, lambda node: conditioned(node, kernel(node), h), passed, WALK, keep=False))
    return arrived(passed.arrive(), play)
