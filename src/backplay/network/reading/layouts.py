"""The example run once: concrete shapes, and where the samples of a batch lie in every node's tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.errors import CaptureError
from backplay.network.arguments import Arguments, Key
from backplay.network.attention import Attention
from backplay.network.layout import PLAIN, Layout
from backplay.network.nodes import Input, Node
from backplay.network.reading.builder import Builder
from backplay.network.reading.reach import mixes_samples, rows_of_no_sample
from backplay.network.signature import Signature
from backplay.network.wires import Wire

if TYPE_CHECKING:
    from backplay.network.graph import Network


def lay_out(network: Network, example: Arguments, builder: Builder) -> tuple[int, Tensor]:
    """Give every node its shape and layout; returns the most elements that one sample has in a value, and the logits.

    What the program needs to know of its arguments, which of them come by samples, is learnt on the way.
    """
    largest = 1
    scope = network.scope(example, network.weights())
    batch = example.batch
    for node in network.steps(scope, forgetful=True):
        value = scope[node]
        if isinstance(value, Tensor):
            largest = max(largest, _elements(node, scope) // batch)
            node.layout = _layout(node, scope, batch, builder.traced[node], network.signature)
            node.shape = tuple(-1 if d == node.layout.dim else s for d, s in enumerate(value.shape))
        elif node.inputs:  # several tensors, as their operand lies
            node.layout = node.inputs[0].layout
    logits = scope[network.output]
    if network.output.layout != PLAIN:
        raise CaptureError(rows_of_no_sample(tuple(logits.shape), batch))
    _find_samples(network, example, builder)
    return largest, logits


def _elements(node: Node, scope: Mapping[Any, Any]) -> int:
    """Elements of a node's value, or of the weights that a fused attention keeps to itself."""
    value: Tensor = scope[node]
    if isinstance(node, Attention) and node.weights_node is None:
        return max(value.numel(), value[..., 0].numel() * scope[node.operand].shape[-2])
    return value.numel()


def _layout(node: Node, scope: Mapping[Any, Any], batch: int, traced: torch.Size, signature: Signature) -> Layout:
    """Where the samples lie in a node's tensor: dimensions that grow with the batch tell, and what wires move."""
    if isinstance(node, Input):
        return PLAIN
    if isinstance(node, Wire):
        if scope[node].numel() == 0:
            raise CaptureError(
                f"{node.operator} in module {node.path!r} leaves nothing of its input: a tensor of shape "
                f"{tuple(scope[node].shape)}; take it out of the model."
            )
        owners = node.move([n.layout.owners(batch, tuple(scope[n].shape)) for n in node.inputs], scope)
        layout = Layout.of(_fill_constants(owners), batch)
        if layout is not None:
            signature.learn(traced[layout.dim] if layout.dim < len(traced) else 0)
            return layout
        if node.kind != "oracle":
            raise CaptureError(mixes_samples(node))
    source = (*node.carriers, *node.inputs, *node.detached_inputs)[0].layout
    dims = [d for d, size in enumerate(traced) if signature.counts(size)]
    if scope[node].ndim == 0 or (node.kind != "oracle" and not dims):
        raise CaptureError(mixes_samples(node))
    return Layout(dims[0] if dims else source.dim, source.outer, source.inner)


def _fill_constants(owners: Tensor) -> Tensor:
    """Constant and padded elements, which have no number, belong to the sample of their neighbours along the batch."""
    if bool((owners > 0).all()):
        return owners
    for dim in range(owners.ndim):
        line = owners.movedim(dim, 0).flatten(1).amax(1) if owners.ndim > 1 else owners
        filled = line.view([-1 if d == dim else 1 for d in range(owners.ndim)]).expand(owners.shape)
        if bool((line > 0).all()) and torch.equal(torch.where(owners == 0, filled, owners), filled):
            return filled
    return owners


def _find_samples(network: Network, example: Arguments, builder: Builder) -> None:
    """Whether fixed tensors with as many entries as samples, and a size of their own, hold one for each of these.

    A size that is an axis of some value beside the samples' counts something else, such as prompts. Else the
    program tells: an entry for each sample is missed where there are twice as many samples.
    """
    axes = {s for n in network.nodes for size in builder.traced[n] for s in network.signature.symbols_of(size)}
    for key in network.signature.uncertain(example):
        size = network.signature.shapes[key][0]
        if size not in axes and (example.x.device.type != "cpu" or not _does_without(network, key, example)):
            network.signature.batch |= {size}


def _does_without(network: Network, key: Key, example: Arguments) -> bool:
    twice = {k: torch.cat([example[k], example[k]]) for k in network.signature.by_samples(example) if k != key}
    try:
        network.run(example.with_values(twice))
    except Exception:  # whatever an operator says to arguments that do not go together
        return False
    return True
