"""Why a network cannot be played: what stands in the way, where, and what to do, in two lines at most."""

from __future__ import annotations

from backplay.entry import place
from backplay.network import operators
from backplay.network.builder import Builder
from backplay.network.nodes import Node, Oracle


def no_kind(node: Oracle, builder: Builder) -> str:
    """An operator that mass would have to cross, and that has no kind there."""
    advice = "Explain the part of the model behind it, or rewrite that module"
    if all(isinstance(size, int) for size in builder.traced[node]) and node.operator not in operators.RANDOM:
        return f"{place(node)} mixes the samples of a batch, which no game can follow.\n{advice} sample by sample."
    if node.operator.startswith(("lstm", "gru", "rnn_", "_thnn", "quantized_")):
        return (
            f"{place(node)} is recurrent: its states gate each other step by step, and no walk follows that."
            f"\n{advice} with convolutions or attention."
        )
    if node.operator in operators.CONTRACTIONS:
        return (
            f"{place(node)} multiplies values of one sample with those of another, which no game can follow.\n"
            "Explain the part of the model before it."
        )
    if node.operator in operators.CONVOLUTIONS:
        return (
            f"{place(node)} convolves with a weight that depends on the input, which no game can follow.\n"
            f"{advice} as unfold and a product."
        )
    if node.operator in operators.RANDOM or node.operator in operators.DROPOUTS:
        return random_forward(place(node))
    if "softmax" in node.operator:
        return (
            f"the walk would have to cross {place(node)}, which only gives weights to other values.\n"
            "Explain the logits before the softmax."
        )
    if not node.unsupported:
        return (
            f"the walk would have to cross {place(node)}, which has no slope: it rounds, compares, or is detached.\n"
            f"{advice} without it."
        )
    return (
        f"{place(node)} has no kind in the game.\n{advice} with linear maps, activations, norms, pooling, attention, "
        "reshaping and arithmetic."
    )


def random_forward(where: str) -> str:
    """Two runs of such a model differ, and so would two maps."""
    return (
        f"{where} draws random numbers in eval mode, so that two runs of the model differ.\n"
        "Switch that off (dropout with training=self.training, no noise) and capture again."
    )


def mixes_samples(node: Node) -> str:
    """Samples never interact."""
    return f"{node.operator} in module {node.path!r} mixes the samples of a batch, which no game can follow."
