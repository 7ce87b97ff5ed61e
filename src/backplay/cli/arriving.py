"""A map and the share of walks that arrives, on one way back through the network."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from backplay.games.play import Play
from backplay.kernels.kernel import DIFFERENCE, WALK, Kernel
from backplay.network import Node
from backplay.trajectory.passes import KernelPass, Passed, no_mass, run
from backplay.values.forward import Deform, Values
from backplay.values.shared import Shared


class ArrivingPlay(Play):
    """A play of which the map and the ends of the walk are kept, and nothing else.

    The pass of the map and that of the walk leave each node one after the other, so that its kernel is made once and
    dropped at once.
    """

    _walk: Passed

    def _carry(self, careful: bool) -> Passed:
        kernels: dict[Node, Kernel] = {}

        def kernel(node: Node) -> Kernel:
            if node not in kernels:
                kernels[node] = self.game.kernel(node, self.solved)
            return kernels[node]

        def done(node: Node) -> None:
            kernels.pop(node, None)
            self.solved.forget(node)

        root = self.game.map_root(self.aim, self.solved.logits)
        self._map = Passed.starting(self.start, self.root(DIFFERENCE) if root is None else root, counting=False)
        self._walk = Passed.starting(self.start, self.root(WALK))
        both = (self._map, DIFFERENCE), (self._walk, WALK)
        run(*(KernelPass(self.network, kernel, found, m, keep=False, careful=careful) for found, m in both), done=done)
        for found, _ in both:
            found.arrive()
        return self._walk if self._map.finite else self._map

    def ends(self) -> tuple[Tensor, Tensor]:
        """(B,) the share of walks that arrives at the input, and the share that ends elsewhere."""
        source = self.network.input
        arrived = self._walk.masses[source] if source in self._walk.masses else no_mass(self, source)
        return arrived.total(), self._walk.losses.total()


class SpentPass(Shared):
    """A forward pass that several games share, and that the last of them may use up: what it forgets is free."""

    last: bool = False  # whether the next game is the last one

    def deformed(
        self, key: Hashable, deform: Deform | None, variance: float | None = None, filtering: float | None = None
    ) -> Values:
        found = super().deformed(key, deform, variance, filtering)
        if self.last:
            self._kept = None
        return found
