"""On which gates two plays differ: `δ`, `p` and `q` of rem:adf-cemetery-floor, measured (S35)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import list_words
from backplay.kernels.kernel import WALK
from backplay.network.nodes import Gate
from backplay.trajectory.overlap import TwoPlays


@dataclass(frozen=True, repr=False)
class GateShares:
    """Shares of the elements of one gate that both walks may come to, (B,) each.

    An element is live where the walk may go on, dead where it is sure to end.
    """

    name: str
    differ: Tensor  # δ: live in one play, dead in the other
    alive: Tensor  # p: live in B
    dead: Tensor  # q: dead in A

    def __repr__(self) -> str:
        words = [f"{n} {list_words([f'{v:.3f}' for v in getattr(self, n).tolist()])}" for n in _SHARES]
        return f"GateShares({self.name!r}, {', '.join(words)})"

    @staticmethod
    def joined(parts: Sequence[GateShares]) -> GateShares:
        """Those of several batches, one behind the other."""
        return GateShares(parts[0].name, *(torch.cat([getattr(p, n) for p in parts]) for n in _SHARES))


_SHARES = "differ", "alive", "dead"


def gate_shares(plays: TwoPlays) -> list[GateShares]:
    """One entry for each gate that both walks come to, in the order in which they leave them."""
    found: list[GateShares] = []
    visited, others = plays.a.visited(), plays.b.visited()
    for node in reversed(plays.a.network.nodes):
        if not isinstance(node, Gate) or node not in visited or plays.twins[node] not in others:
            continue
        ones = torch.ones_like(visited[node].value)
        a, b = (kernel.pull(ones, WALK)[0] > 0 for kernel in plays.kernels(node))
        shares = (node.layout.sum(where.to(ones)) / node.layout.sum(ones) for where in (a != b, b, ~a))
        found.append(GateShares(node.name, *shares))
    return found
