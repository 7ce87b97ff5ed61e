"""The Hellinger passes of two plays (alg:hellinger-backward, alg:hellinger-forward): plain and given survival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.conditioned import Conditioned, between
from backplay.kernels.geometric import geometric
from backplay.kernels.kernel import WALK, Kernel
from backplay.kernels.streams import StreamKernel
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Mix
from backplay.trajectory.comparison import joined
from backplay.trajectory.passes import Passed, arrived, resume
from backplay.trajectory.roots import common_root
from backplay.trajectory.survival import expect

if TYPE_CHECKING:
    from backplay.games.play import Play

Watch = Callable[[Node, Passed], None]


@dataclass
class Meeting:
    """Two plays on one graph, and what their walks share. No geometric kernel outlives its use."""

    a: Play
    b: Play

    def __post_init__(self) -> None:
        self.twins: dict[Node, Node] = dict(zip(self.a.network.nodes, self.b.network.nodes, strict=True))

    def kernel(self, node: Node) -> Kernel:
        """`√(T_A T_B)` at a node of A's network (eq:geom-kernel)."""
        return geometric(self.a.kernel(node), self.b.kernel(self.twins[node]), node.name)

    def backward(self, watch: Watch | None = None) -> Passed:
        """`β` at the input and in the ends (alg:hellinger-backward); `watch` sees the frontier after every node."""
        found, left = common_root(self.a, self.b, self.twins)
        if watch is not None and left:
            watch(left[-1], found)

        def told(node: Node) -> None:
            if watch is not None and node not in left:
                watch(node, found)

        return resume(self.a.network, self.kernel, found, WALK, keep=False, done=told)

    def forward(self) -> tuple[Tensor, dict[Node, Mass]]:
        """(B,) `BC` and `γ`, the overlap to come, at every state (alg:hellinger-forward)."""
        network = self.a.network
        found, left = common_root(self.a, self.b, self.twins)
        visited = [n for n in self.a.visited() if n not in left]
        ahead = expect(network, self.kernel, visited, unit(self.a), ends=True)
        total = found.ended()
        for node, mass in found.masses.items():
            met = Mass(mass.value * ahead[node].value, mass.exponent + ahead[node].exponent, node.layout)
            total = total + met.total()
        return total, ahead

    def surviving(self) -> Surviving:
        """The laws given survival, by kernel-side conditioning (thm:conditioned-survival ii, iii)."""
        sides = self.a, self.b
        h_a, h_b = (expect(p.network, p.kernel, p.visited(), unit(p), ends=False) for p in sides)
        h_b = {node: h_b[twin] for node, twin in self.twins.items() if twin in h_b}
        both = {node: between(h_a[node], h_b[node]) for node in h_a}
        found, _ = common_root(self.a, self.b, self.twins)
        overlap = {n: _weighted(m, both[n]) for n, m in found.masses.items()}
        log_z = [_at_root(p, h[p.network.output]) for p, h in ((self.a, h_a), (self.b, _back(h_b, self.twins)))]
        alphas = [
            _conditioned(p, p.kernel, {p.network.output: _given_root(p, h[p.network.output])}, h)
            for p, h in ((self.a, h_a), (self.b, _back(h_b, self.twins)))
        ]
        beta = _conditioned(self.a, self.kernel, overlap, both)
        scaled = Mass(beta.value, beta.exponent - (log_z[0] + log_z[1]) / 2, beta.layout)
        met = alphas[0] if self.a is self.b else scaled
        return Surviving(alphas[0], alphas[1], met, log_z[0], log_z[1])


@dataclass
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


def unit(play: Play) -> Callable[[Node], Mass]:
    """1 at every input element."""
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
    return lambda node: Mass(torch.ones_like(play.values[node]), zeros, node.layout)


def prefixes(meeting: Meeting) -> tuple[Passed, list[tuple[str, Tensor]]]:
    """The backward pass with the prefix curve `BC` behind every affine node (S31)."""
    curve: list[tuple[str, Tensor]] = []

    def watch(node: Node, found: Passed) -> None:
        if _is_affine(node, meeting):
            frontier = [mass.total() for mass in found.masses.values()]
            curve.append((node.name, torch.stack([found.ended(), *frontier]).sum(0)))

    return meeting.backward(watch), curve


def _is_affine(node: Node, meeting: Meeting) -> bool:
    """Affine nodes that the walk visits; attention counts once, with its V projection (S23)."""
    if node not in meeting.a.visited():
        return False
    composite = isinstance(node, Mix) and isinstance(meeting.a.kernel(node), StreamKernel)
    return node.kind == "affine" or (composite and meeting.a.kernel(node).carriers is not None)


def _back(masses: dict[Node, Mass], twins: dict[Node, Node]) -> dict[Node, Mass]:
    return {twins[node]: mass for node, mass in masses.items()}


def _given_root(play: Play, h: Mass) -> Mass:
    """The first state of the walk given survival: of several logits, those that survive more often count for more."""
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
    root = play.root()
    likely = root * h.value
    total = h.layout.sum(likely)
    never = total == 0
    share = likely / h.layout.spread(torch.where(never, 1, total).to(root.dtype), root)
    return Mass(torch.where(h.layout.spread(never, root), root, share), zeros, play.network.output.layout)


def _at_root(play: Play, h: Mass) -> Tensor:
    """(B,) binary logarithm of `Z = h(s_0)` (eq:survival-mass)."""
    return (h.layout.sum(h.value * play.root())).log2() + h.exponent


def _weighted(mass: Mass, h: Mass) -> Mass:
    return Mass(mass.value * h.value, mass.exponent + h.exponent, mass.layout)


def _conditioned(play: Play, kernel: Callable[[Node], Kernel], start: dict[Node, Mass], h: dict[Node, Mass]) -> Mass:
    """Mass at the inputs under the Doob transform of a kernel; from the output it starts with mass 1."""

    def step(node: Node) -> Kernel:
        plain = kernel(node)
        return Conditioned(plain, h[node], [h[n] for n in plain.carriers or node.carriers])

    found = resume(play.network, step, Passed(dict(start)), WALK, keep=False)
    return arrived(found, play)
