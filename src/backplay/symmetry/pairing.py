"""Which channels of B become which of A's: the best assignment of an orbit, given what each pair is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from backplay.symmetry.orbits import Branch, Leaf, Member, leaf_kinds

Pairs = list[tuple[Leaf, Leaf]]  # (a leaf of A's, the leaf of B's that takes its place)


class Gains:
    """What it is worth that a leaf of B takes the place of a leaf of A: (leaves, leaves) for each kind of leaf."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.kinds = leaf_kinds(members)
        self.tables = [torch.zeros(len(leaves), len(leaves), dtype=torch.float64) for leaves in self.kinds]
        self._found = {leaf.channels: (k, i) for k, leaves in enumerate(self.kinds) for i, leaf in enumerate(leaves)}

    def set(self, left: Leaf, right: Leaf, gain: float) -> None:
        """What one pair is worth."""
        (kind, row), (_, column) = self._found[left.channels], self._found[right.channels]
        self.tables[kind][row, column] = gain

    def between(self, left: Sequence[Leaf], right: Sequence[Leaf]) -> Tensor:
        """(left, right) what each pair is worth, for leaves of one kind."""
        rows, columns = ([self._found[leaf.channels][1] for leaf in side] for side in (left, right))
        return self.tables[self._found[left[0].channels][0]][rows][:, columns]


def pair(left: Sequence[Member], right: Sequence[Member], gains: Gains) -> tuple[float, Pairs]:
    """The assignment of one list of equals to another that is worth most, and its worth; cells by the best within."""
    if not isinstance(left[0], Leaf):
        return _pair_cells(_branches(left), _branches(right), gains)
    leaves, others = _leaves(left), _leaves(right)
    table = gains.between(leaves, others)
    order = assign(table).tolist()
    value = float(table[torch.arange(len(order)), order].sum())
    return value, [(leaves[k], others[o]) for k, o in enumerate(order)]


def _pair_cells(left: Sequence[Branch], right: Sequence[Branch], gains: Gains) -> tuple[float, Pairs]:
    table = torch.zeros(len(left), len(right), dtype=torch.float64)
    for k, inner in enumerate(left[0].inner):
        if len(inner) == 1 and isinstance(inner[0], Leaf):  # nothing to choose within a cell
            own, other = ([leaf for cell in side for leaf in _leaves(cell.inner[k])] for side in (left, right))
            table += gains.between(own, other)
            continue
        for i, one in enumerate(left):
            for j, other in enumerate(right):
                table[i, j] += pair(one.inner[k], other.inner[k], gains)[0]
    pairs: Pairs = []
    order = assign(table).tolist()
    for i, j in enumerate(order):
        for k, inner in enumerate(left[i].inner):
            pairs += pair(inner, right[j].inner[k], gains)[1]
    return float(table[torch.arange(len(order)), order].sum()), pairs


def _leaves(members: Sequence[Member]) -> list[Leaf]:
    return [m for m in members if isinstance(m, Leaf)]


def _branches(members: Sequence[Member]) -> list[Branch]:
    return [m for m in members if isinstance(m, Branch)]


# ---------------------------------------------------------------- linear assignment


def assign(gain: Tensor) -> Tensor:
    """(n,) `π` with the largest `Σ gain[i, π(i)]`, for a square matrix."""
    best = gain.argmax(1)
    if len(torch.unique(best)) == len(best):  # no two rows want the same column: each gets its largest entry
        return best
    return torch.from_numpy(_shortest_paths(-gain.double().cpu().numpy()))


def _shortest_paths(cost: np.ndarray) -> np.ndarray:
    """Shortest augmenting paths (Jonker and Volgenant): rows enter one by one, prices keep reduced costs >= 0."""
    n = len(cost)
    row_price, column_price = np.zeros(n), cost.min(0)
    owner = np.full(n, -1)  # of each column
    for row in range(n):
        length, before, done = np.full(n, np.inf), np.full(n, -1), np.zeros(n, bool)
        current, reached, sink = row, 0.0, -1
        while sink < 0:
            ahead = reached + cost[current] - row_price[current] - column_price
            shorter = ~done & (ahead < length)
            length[shorter], before[shorter] = ahead[shorter], current
            column = int(np.where(done, np.inf, length).argmin())
            reached, done[column] = length[column], True
            if owner[column] < 0:
                sink = column
            else:
                current = int(owner[column])
        row_price[row] += reached
        seen = done & (owner >= 0)
        row_price[owner[seen]] += reached - length[seen]
        column_price[done] -= reached - length[done]
        _augment(owner, before, sink, row)
    partners = np.empty(n, dtype=np.int64)
    partners[owner] = np.arange(n)
    return partners


def _augment(owner: np.ndarray, before: np.ndarray, sink: int, row: int) -> None:
    """Flip the path that ends in a free column: every row on it takes the next column."""
    column = sink
    while True:
        current = int(before[column])
        taken = np.flatnonzero(owner == current)
        owner[column] = current
        if current == row:
            return
        column = int(taken[0])
