"""The captured program run again: as a whole, or from one node on for what a change there does to the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backplay.network import Network, Node
from backplay.network.nodes import Input, Overlay
from backplay.values.forward import Values


def run(network: Network, inputs: Mapping[Any, Any]) -> Tensor:
    """Logits of the captured program; each value is freed after its last use."""
    scope = network.scope(inputs, network.weights())
    waiting = dict(network.consumers)
    for node in network.nodes:
        if not isinstance(node, Input):
            scope[node] = node.run(scope)
        for operand in node.inputs:
            waiting[operand] -= 1
            if waiting[operand] == 0 and operand is not network.output:
                scope[operand] = None
    return scope[network.output]


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
