"""How attention is read (S23): a product of values with softmax weights, or the fused operator.

Nothing goes through queries and keys: they are an oracle (app:attention-grad-detach).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from backplay.network.attention import Attention, Scores
from backplay.network.contraction import Contraction, Equation
from backplay.network.nodes import Affine, Diagonal, Halves, Held, Mix, Node, Norm, Oracle, Product, Scope, Sum, resolve
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Call, constant, reading
from backplay.network.wires import Wire


def find_projection(value: Node) -> tuple[Affine | None, tuple[Wire, ...]]:
    """The affine node that the values come from, if only wires lie between."""
    path: list[Wire] = []
    while isinstance(value, Wire) and len(value.inputs) == 1 and not value.constants:
        path.append(value)
        value = value.inputs[0]
    if isinstance(value, Affine) and not isinstance(value, Mix):
        return value, tuple(reversed(path))
    return None, ()


def find_scores(weights: Node) -> Scores | None:
    """The product of two live operands that a softmax reads, through masks, biases, scales and wires."""
    softmax = weights
    while not (isinstance(softmax, Oracle) and softmax.facts.softmax):
        softmax = softmax.carriers[0]
    node = softmax.inputs[0]
    scales: list[Callable[[Scope], Tensor]] = []
    while True:
        if isinstance(node, (Halves, Held)):
            held = node.args[0] if isinstance(node, Halves) else node
            query, key = held.inputs
            assert isinstance(held.map, Contraction)
            equation = held.map.equation
            return Scores(query, key, equation if held.operand is query else equation.swapped, tuple(scales), node)
        if isinstance(node, Diagonal) and node.scale is not None:
            scales.append(node.scale)
        live = node.carriers if node.carriers else node.inputs
        if len(live) != 1:
            return None
        node = live[0]


def comes_from_softmax(node: Node) -> bool:
    """Whether a node is a softmax, or linear in softmaxes (talking heads) but for a detached sum or statistic."""
    if isinstance(node, Oracle):
        return node.facts.softmax
    if isinstance(node, Sum):
        return all(comes_from_softmax(n) for n in node.inputs)
    linear = isinstance(node, (Wire, Diagonal, Affine, Norm, Product))
    return linear and len(node.carriers) == 1 and comes_from_softmax(node.carriers[0])


def read_mixing(
    builder: Builder,
    call: Call,
    pair: tuple[Node, Node],
    linear: Contraction,
    weight: Callable[[Scope], Tensor],
    run: Callable[..., Tensor],
    operands: tuple[Node, Node],
    shape: torch.Size,
) -> Node:
    """A pair of softmax weights and values, multiplied in any spelling."""
    weights, value = pair
    projection, wires = find_projection(value) if weights.nonnegative else (None, ())
    node = Attention(
        run,
        operands,
        call.operator,
        operand=value,
        map=linear,
        weight=weight,
        weights_node=weights,
        scores=find_scores(weights),
        projection=projection,
        wires=wires,
        signed_weights=not weights.nonnegative,
        nonnegative=weights.nonnegative and value.nonnegative,
        fleeting=True,
    )
    return builder.add(node, shape)


@reading
def fused_attention(builder: Builder, call: Call) -> Node | None:
    """The fused operator hides its weights; they are recomputed from queries and keys when they are needed."""
    query, key, value = call["query"], call["key"], call["value"]
    if not isinstance(value, Node):
        return None
    grouped = bool(call.get("enable_gqa", False))
    operand = _repeated(builder, value, query) if grouped else value
    mask, causal, scale = call.get("attn_mask"), bool(call.get("is_causal", False)), call.get("scale")

    def logits(scope: Scope) -> Tensor:
        q, k = (resolve(t, scope) for t in (query, key))
        if grouped:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        scores = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        if causal:
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~keep, -math.inf)
        if mask is None:
            return scores
        bias = resolve(mask, scope)
        return scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias

    scores = None
    if isinstance(query, Node) and isinstance(key, Node):
        repeats = int(builder.traced[query][-3]) // int(builder.traced[key][-3]) if grouped else 1
        factor = constant(1 / math.sqrt(int(builder.traced[query][-1])) if scale is None else scale)
        equation = Equation.scores(builder.rank(query), builder.rank(key))
        scores = Scores(query, key, equation, (factor,), None, repeats)
    projection, wires = find_projection(operand)
    node = Attention(
        *call.itself,
        operand=operand,
        map=Contraction(Equation.matmul(len(call.shape), builder.rank(operand)).swapped),
        weight=lambda scope: torch.softmax(logits(scope), -1).nan_to_num(0.0),
        logits=logits,
        scores=scores,
        projection=projection,
        wires=wires,
        nonnegative=value.nonnegative,
        fleeting=True,
    )
    return builder.add(node)


def _repeated(builder: Builder, value: Node, query: Any) -> Node:
    """Grouped heads: each value head serves several query heads, which is a wire."""
    heads, groups = builder.traced_shape(query)[-3], builder.traced[value][-3]
    wire = Wire(
        lambda v: v.repeat_interleave(heads // groups, -3),
        (value,),
        "repeat_interleave",
        nonnegative=value.nonnegative,
        helper=True,
    )
    shape = list(builder.traced[value])
    shape[-3] = heads
    return builder.add(wire, torch.Size(shape))
