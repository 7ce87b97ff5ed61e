"""Weights as kernels need them: copies made once for each state of the model, never views of its tensors (S1)."""

from __future__ import annotations

import torch
from torch import Tensor

from backplay.network.nodes import Affine, Mix, Node
from backplay.network.wires import Wire
from backplay.values.forward import Values
from backplay.values.powers import BLOCK, raised_


def split_weight(node: Affine, values: Values, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """What the streams of a node need to the power `1/τ`, and the scale of each output row.

    Behind a non-negative operand these are `W⁺, W⁻`, else `W, |W|` (S12). At another temperature than 1 the rows are
    divided by their largest entry first, which leaves every policy as it is and keeps small weights in range; the
    outside option is divided alike.
    """

    def make() -> tuple[Tensor, Tensor, Tensor]:
        weight = node.weight(values)
        scale = torch.ones((), dtype=weight.dtype, device=weight.device)
        if node.operand.nonnegative:
            positive = weight.clamp(min=0)
            return positive, positive - weight, scale
        return values.weights.copied(weight), weight.abs(), scale

    def powers(old: tuple[Tensor, Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        if node.map.even:
            # all weights of a row are one `w`: `Σ w a^{1/τ}` serves instead of `Σ (w a)^{1/τ}`, in another unit
            return *make()[:2], node.map.row_weight(values[node.operand]).pow(1 - tau)
        weight = node.weight(values)
        scale = values.weights.prepared(node, "rows", lambda: node.map.row_scale(weight))
        first, second = (torch.empty_like(weight) for _ in range(2)) if old is None else old[:2]
        _tempered(weight, node.map.along_weight(scale, weight), tau, first, second, node.operand.nonnegative)
        return first, second, scale

    if tau == 1:
        return values.weights.prepared(node, "split", make)
    return values.weights.latest(node, "split", (tau, values.batch if node.map.even else None), powers)


def _tempered(weight: Tensor, rows: Tensor, tau: float, first: Tensor, second: Tensor, parts: bool) -> None:
    """`|W|^{1/τ}` in units of the rows: its two parts by the sign of `W`, or with the sign and without."""
    at_once = max(1, 2 * BLOCK * len(weight) // max(1, weight.numel())) if weight.device.type == "cpu" else len(weight)
    for k in range(0, len(weight), at_once):
        some = slice(k, k + at_once)
        given, unit = weight[some], rows[some] if rows.ndim else rows
        size = raised_(torch.abs(given, out=second[some]).div_(unit), 1 / tau)
        signed = torch.copysign(size, given, out=first[some])
        if parts:
            size.sub_(signed.clamp_(min=0))


def stopping_total(node: Affine, values: Values, given: Tensor) -> Tensor:
    """`γ_j`: the sum of `|W_ij|` over real predecessors, for the `W` given; zero padding has none (S6)."""
    # samples have the same total, so that one serves all, unless weights or places differ from one to the next
    shared = not node.fleeting and (not isinstance(node, Mix) or node.map.even)
    alike = node.operand.layout.dim == 0 and shared

    def make() -> Tensor:
        weight, mask = given.abs(), reality(node.operand, values)
        if mask is not None:
            return node.map.apply(mask, weight)
        shape = values.shape(node.operand)
        return node.map.row_sums(weight, torch.Size((1, *shape[1:])) if alike else shape, values.logits)

    always = alike and _always_real(node.operand) and not isinstance(node, Mix)
    return values.weights.prepared(node, ("total", None if always else values.batch), make)


def reality(node: Node, values: Values) -> Tensor | None:
    """1 on elements, 0 on zero padding, seen through wires; None where all are real."""
    if _always_real(node):
        return None
    assert isinstance(node, Wire)
    masks: list[Tensor] = []
    for operand in node.inputs:
        mask = reality(operand, values)
        one = torch.ones((), dtype=values.dtype, device=values.device)
        masks.append(one.expand(values.shape(operand)) if mask is None else mask)
    # zero padding is no element; any other fill is a constant one (S3e)
    return node.move(masks, values, constant=0.0 if node.pads else 1.0)


def _always_real(node: Node) -> bool:
    return not isinstance(node, Wire) or not (node.pads or not all(_always_real(n) for n in node.inputs))
