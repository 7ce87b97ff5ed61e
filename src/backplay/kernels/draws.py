"""Ancestral sampling at one node: where walks that stand on given states go next (S32)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.kernels.attention import ValueRouting
from backplay.kernels.kernel import Duel, Kernel, PassThrough, Relabelling, Scaling, Split, Stopping, Winner
from backplay.kernels.linear import RoutingLinear, Sharing, StoppingLinear
from backplay.kernels.rows import at, choose
from backplay.kernels.streams import Contributions, part
from backplay.network.nodes import Affine, Node

CEMETERY, CONSTANT = -1, -2


@dataclass
class Draw:
    """For each walk: the carrier that it moves to or an end, the flat index there, turn (±1), stream (±1, 0: none)."""

    carrier: Tensor
    element: Tensor
    turn: Tensor
    stream: Tensor

    @staticmethod
    def to(element: Tensor, carrier: Tensor | int = 0, turn: Tensor | int = 1, stream: Tensor | int = 0) -> Draw:
        full = torch.full_like(element, 0)
        return Draw(full + carrier, element, full + turn, full + stream)


def draw(kernel: Kernel, node: Node, states: Tensor, shape: torch.Size, generator: torch.Generator) -> Draw:
    """One step of every walk from a node; `states` are flat indices into its output of the given shape."""
    match kernel:
        case PassThrough():
            return Draw.to(states)
        case Scaling():
            sign = kernel.scale.expand(shape).flatten()[states].sign().long()
            return Draw.to(states, torch.where(sign == 0, CEMETERY, 0), torch.where(sign < 0, -1, 1))
        case Stopping():
            slope = kernel.slope.expand(shape).flatten()[states]
            goes = _uniform(states, generator) < slope.abs()
            return Draw.to(states, torch.where(goes, 0, CEMETERY), torch.where(slope < 0, -1, 1))
        case Split():
            return _split(kernel, states, shape, generator)
        case Winner():
            return Draw.to(kernel.index.flatten()[states])
        case Duel():
            return _chosen(kernel, states, shape)
        case Relabelling():
            return _relabelled(kernel, states)
        case StoppingLinear() if isinstance(node, Affine):
            return _weighted(kernel, node, states, shape, generator)
        case Sharing() if isinstance(node, Affine):
            return _shared(kernel, node, states, shape, generator)
        case RoutingLinear() | ValueRouting() if isinstance(node, Affine):
            return _streamed(kernel, node, states, shape, generator)
        case _:
            raise UnsupportedError(f"{type(kernel).__name__} is no walk that could be sampled.")


def _uniform(states: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(states.shape, dtype=torch.float64, device=states.device, generator=generator)


def _split(kernel: Split, states: Tensor, shape: torch.Size, generator: torch.Generator) -> Draw:
    first = kernel.shares[0]
    share = first.expand(shape).flatten()[states] if isinstance(first, Tensor) else first
    carrier = (_uniform(states, generator) >= share).long()
    turn = torch.ones_like(states)
    for k, d in enumerate(kernel.discounts or ()):
        if isinstance(d, Tensor):
            sign = d.expand(shape).flatten()[states].sign().long()
            turn = torch.where(carrier == k, torch.where(sign < 0, -1, 1), turn)
            carrier = torch.where((carrier == k) & (sign == 0), CEMETERY, carrier)
    return Draw.to(states, carrier, turn)


def _chosen(kernel: Duel, states: Tensor, shape: torch.Size) -> Draw:
    first = kernel.chosen[0].expand(shape).flatten()[states]
    places = [k if live else CONSTANT for k, live in zip((0, kernel.carries[0] * 1), kernel.carries, strict=True)]
    return Draw.to(states, torch.where(first, places[0], places[1]))


def _relabelled(kernel: Relabelling, states: Tensor) -> Draw:
    """Numbers carried through the wire tell where each element comes from; what it fills in comes from nowhere."""
    source = kernel.sources().flatten()[states]
    carrier, element = torch.full_like(source, CONSTANT), source.clamp(min=0)
    start = 0
    for k, shape in enumerate(kernel.shapes):
        here = (source >= start) & (source < start + shape.numel())
        carrier, element = torch.where(here, k, carrier), torch.where(here, source - start, element)
        start += shape.numel()
    return Draw.to(element, carrier)


def _weighted(
    kernel: StoppingLinear, node: Affine, states: Tensor, shape: torch.Size, generator: torch.Generator
) -> Draw:
    real = None if kernel.real is None else kernel.real.expand(kernel.shape).flatten()

    def score(row: Tensor, index: Tensor) -> Tensor:
        return row.abs() if real is None else row.abs() * real[index]

    element, towards = choose(node, kernel.weight, states, (kernel.shape, shape), score, generator)
    empty = (kernel.total.expand(shape) == 0).flatten()[states]
    return Draw.to(element, torch.where(empty, CEMETERY, 0), torch.where(towards < 0, -1, 1))


def _shared(kernel: Sharing, node: Affine, states: Tensor, shape: torch.Size, generator: torch.Generator) -> Draw:
    value = kernel.value.flatten()
    shapes = kernel.value.shape, shape
    element, _ = choose(node, kernel.weight, states, shapes, lambda w, i: w * value[i], generator)
    empty = (kernel.inverse.expand(shape) == 0).flatten()[states]
    return Draw.to(element, torch.where(empty, CEMETERY, 0))


def _streamed(
    kernel: RoutingLinear | ValueRouting, node: Affine, states: Tensor, shape: torch.Size, generator: torch.Generator
) -> Draw:
    """The sign oracle, the outside option, then a predecessor on each stream."""
    plus = at(kernel.stream(1).entry, states, shape)
    sign = torch.where(_uniform(states, generator) < plus, 1, -1)
    element, turn, out = torch.zeros_like(states), torch.ones_like(states), torch.zeros_like(states, dtype=torch.bool)
    for side in (1, -1):
        stream, on = kernel.stream(side), (sign == side).nonzero()[:, 0]
        if not len(on):
            continue
        entry, outside = at(stream.entry, states[on], shape), at(stream.outside(), states[on], shape)
        out[on] = _uniform(on, generator) * entry < outside
        turn[on] = at(stream.turn, states[on], shape).long()
        walks = on[~out[on]]
        if len(walks):
            element[walks] = _predecessor(kernel, node, side, states[walks], shape, generator)
    return Draw.to(element, torch.where(out, CEMETERY, 0), turn, sign)


def _predecessor(
    kernel: RoutingLinear | ValueRouting,
    node: Affine,
    side: int,
    states: Tensor,
    shape: torch.Size,
    generator: torch.Generator,
) -> Tensor:
    if isinstance(kernel, RoutingLinear):
        return _contributor(kernel.contributions, node, side, states, shape, generator)
    assert kernel.node.projection is not None
    value, total = (pair[0 if side > 0 else 1] for pair in (kernel.values, kernel.totals))
    flat = value.flatten()
    shapes = value.shape, shape
    keys, _ = choose(node, kernel.weight, states, shapes, lambda w, i: w * flat[i], generator)
    names = torch.arange(total.numel(), dtype=torch.float64, device=states.device).view(total.shape)
    projected = kernel.node.through(names, kernel.scope).flatten()[keys].long()
    return _contributor(kernel.projection, kernel.node.projection, side, projected, total.shape, generator)


def _contributor(
    given: Contributions, node: Affine, side: int, states: Tensor, shape: torch.Size, generator: torch.Generator
) -> Tensor:
    _, weight, value, sign = part(given, side)
    flat = value.flatten()
    score = lambda w, i: (sign * w * flat[i]).clamp(min=0)  # noqa: E731
    return choose(node, weight, states, (value.shape, shape), score, generator)[0]
