"""The captured program run again from one node on: what a change there does to the logits."""

from __future__ import annotations

import torch
from torch import Tensor

from backplay.network import Node
from backplay.network.nodes import Overlay
from backplay.values.forward import Values


def replay(values: Values, start: Node, leaf: Tensor) -> Tensor:
    """Logits with another value at a node; nothing in front of it is run, or differentiated, again."""
    network = values.network
    again = {start: leaf}
    scope = Overlay(again, values)
    for node in network.nodes[network.nodes.index(start) + 1 :]:
        if any(operand in again for operand in node.inputs):
            again[node] = node.run(scope)
    return again[network.output]


def differentiated(values: Values, start: Node, weights: Tensor) -> Tensor:
    """Gradient at a node of the logits, weighed by `weights` of their shape; no hooks."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = values[start].detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(replay(values, start, leaf), leaf, weights.clone())
    return gradient
