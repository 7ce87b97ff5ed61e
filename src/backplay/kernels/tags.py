"""Kernels taken apart: the mass of each player, and the rows of one state (S27, S29)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.kernels.geometric import Products
from backplay.kernels.kernel import WALK, WALK_DIFFERENCE, Kernel, Scaling, Split, Stopping
from backplay.kernels.linear import StoppingLinear
from backplay.kernels.streams import ByProduct, Contributions, Stream, StreamKernel


def pull_tagged(kernel: Kernel, plus: Tensor, minus: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Walk masses of both players carried back to each carrier; sums of non-negative terms only."""
    if isinstance(kernel, StreamKernel):
        return [_pull_streams(kernel, plus, minus)]
    if isinstance(kernel, StoppingLinear):
        return [_pull_weights(kernel, plus, minus)]
    if isinstance(kernel, (Scaling, Stopping, Split)):
        signed = kernel.pull(torch.ones_like(plus), WALK_DIFFERENCE)
        return [_exchange(s.clamp(min=0), (-s).clamp(min=0), plus, minus) for s in signed]
    return list(zip(kernel.pull(plus, WALK), kernel.pull(minus, WALK), strict=True))


def _exchange(kept: Tensor, switched: Tensor, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
    return kept * plus + switched * minus, kept * minus + switched * plus


def _pull_weights(kernel: StoppingLinear, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
    up, down = (torch.where(kernel.total > 0, mass / kernel.total, 0) for mass in (plus, minus))
    parts = kernel.weight.clamp(min=0), (-kernel.weight).clamp(min=0)
    kept, switched = (
        [kernel.linear.adjoint(mass, part, kernel.shape) for mass in masses]
        for part, masses in zip(parts, ((up, down), (down, up)), strict=True)
    )
    real = 1.0 if kernel.real is None else kernel.real
    return (kept[0] + switched[0]) * real, (kept[1] + switched[1]) * real


def _pull_streams(kernel: StreamKernel, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
    """On `−` the turn goes over, but for rerouted mass (S16)."""
    stays = _stays(kernel.minus, plus)
    u, v = kernel.plus.coefficient(WALK), kernel.minus.coefficient(WALK)
    exact = _exact(kernel.chosen)
    return (
        kernel.spread(plus * u, (stays * plus + (1 - stays) * minus) * v, exact),
        kernel.spread(minus * u, (stays * minus + (1 - stays) * plus) * v, exact),
    )


def _stays(minus: object, like: Tensor) -> Tensor:
    """1 where the minus stream keeps the player."""
    assert isinstance(minus, Stream)
    return (torch.as_tensor(minus.turn, device=like.device) > 0).to(like.dtype)


def _exact(contributions: Contributions) -> Contributions:
    """Contributions that take no differences."""
    if isinstance(contributions, ByProduct):
        return Products(contributions.linear, contributions.weight, contributions.value)
    return contributions


@dataclass
class Row:
    """One way of leaving a state that no other way can be mistaken for: a stream and a player, or the way to †."""

    moved: Sequence[Tensor]  # for each carrier
    ends: Tensor | None  # what goes to † on this way


def rows(kernel: Kernel, plus: Tensor, minus: Tensor) -> list[Row]:
    """Where the masses of both players at a root go, each way by itself."""
    if isinstance(kernel, StreamKernel):
        return _stream_rows(kernel, plus, minus)
    moved = pull_tagged(kernel, plus, minus)
    return [Row([p for p, _ in moved], kernel.lost(plus + minus)), Row([m for _, m in moved], None)]


def _stream_rows(kernel: StreamKernel, plus: Tensor, minus: Tensor) -> list[Row]:
    zero, exact = torch.zeros_like(plus), _exact(kernel.chosen)
    stays = _stays(kernel.minus, plus)
    u, v = kernel.plus.coefficient(WALK), kernel.minus.coefficient(WALK)
    found = [Row([kernel.spread(mass * u, zero, exact)], mass * kernel.plus.outside()) for mass in (plus, minus)]
    for mass in (stays * plus + (1 - stays) * minus, stays * minus + (1 - stays) * plus):
        found.append(Row([kernel.spread(zero, mass * v, exact)], mass * kernel.minus.outside()))
    return found
