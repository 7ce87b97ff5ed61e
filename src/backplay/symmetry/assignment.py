"""Linear assignment: which row goes with which column, so that the sum of the chosen entries is largest."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def assign(gain: Tensor) -> Tensor:
    """`π` with the largest `Σ gain[i, π(i)]`, for a square matrix."""
    best = gain.argmax(1)
    if len(torch.unique(best)) == len(best):  # everybody's favourite is free: nothing can be better
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
    found = np.empty(n, dtype=np.int64)
    found[owner] = np.arange(n)
    return found


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
