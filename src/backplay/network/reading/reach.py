"""What of a program counts: what the output depends on, what mass can reach, and why a network is refused.

A refusal says what stands in the way, where, and what to do, in two lines at most.
"""

from __future__ import annotations

from backplay.entry import place
from backplay.errors import CaptureError
from backplay.network import operators
from backplay.network.attention import Attention
from backplay.network.nodes import Halves, Input, Node, Oracle
from backplay.network.reading.builder import Builder


def played_on(builder: Builder, output: Node) -> tuple[list[Node], set[Node]]:
    """The nodes that the output depends on, each with its name, and those among them that mass can reach."""
    nodes = _reachable(builder.nodes, output)
    reached = _reached_by_mass(nodes, output, builder)
    for node in nodes:  # a contraction that no mass crosses, such as queries times keys, is computed once
        if isinstance(node, Halves) and node not in reached:
            node.keep(node.inputs[0])
    nodes = _reachable(nodes, output)
    _mark_oracles(nodes, output)
    _name_all(nodes)
    return nodes, reached


def _reachable(nodes: list[Node], output: Node) -> list[Node]:
    """What the output depends on, in the order of the program."""
    seen: set[Node] = {output}
    for node in reversed(nodes):
        if node in seen:
            seen.update(node.inputs, node.detached_inputs)
    return [n for n in nodes if n in seen or isinstance(n, Input)]


def _reached_by_mass(nodes: list[Node], output: Node, builder: Builder) -> set[Node]:
    """The nodes that mass can reach; each of them must have a kind."""
    reached: set[Node] = {output}
    for node in reversed(nodes):
        if node not in reached:
            continue
        if isinstance(node, Oracle):
            raise CaptureError(_no_kind(node, builder))
        reached.update(node.carriers)
    return reached


def _mark_oracles(nodes: list[Node], output: Node) -> None:
    """What reaches the output only through softmax weights is of kind oracle (S3)."""
    outside: set[Node] = {output}
    for node in reversed(nodes):
        if node in outside and not isinstance(node, Oracle):
            outside.update(node.carriers if isinstance(node, Attention) else node.inputs)
    for node in nodes:
        if node not in outside and not isinstance(node, Input):
            node.in_oracle = True


def _name_all(nodes: list[Node]) -> None:
    """The module path; a second call or operation of it is `path#2`."""
    counts: dict[str, int] = {}
    for node in nodes:
        base = node.name if isinstance(node, Input) else node.path or node.operator
        base = f"{base}:{node.operator}" if node.helper else base
        counts[base] = counts.get(base, 0) + 1
        node.name = base if counts[base] == 1 else f"{base}#{counts[base]}"


# ---------------------------------------------------------------- refusals


def _no_kind(node: Oracle, builder: Builder) -> str:
    """An operator that mass would have to cross, and that has no kind there."""
    facts = node.facts
    advice = "Explain the part of the model behind it, or rewrite that module"
    if all(isinstance(size, int) for size in builder.traced[node]) and not facts.random:
        return f"{place(node)} mixes the samples of a batch, which no game can follow.\n{advice} sample by sample."
    if operators.is_recurrent(node.operator):
        return (
            f"{place(node)} is recurrent: its states gate each other step by step, and no walk follows that."
            f"\n{advice} with convolutions or attention."
        )
    if facts.reading in ("linear", "added_product", "product_of_two", "bilinear", "einsum"):
        return (
            f"{place(node)} multiplies values of one sample with those of another, which no game can follow.\n"
            "Explain the part of the model before it."
        )
    if facts.reading == "convolution":
        return (
            f"{place(node)} convolves with a weight that depends on the input, which no game can follow.\n"
            f"{advice} as unfold and a product."
        )
    if facts.random or facts.dropout:
        return random_forward(place(node))
    if facts.softmax or node.operator in operators.LOG_SOFTMAX:
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
    return f"{place(node)} mixes the samples of a batch, which no game can follow."


def rows_of_no_sample(shape: tuple[int, ...], batch: int) -> str:
    """Each sample has logits of its own, in its own row."""
    return (
        f"the model returns logits of shape {shape} for {batch} samples, whose first axis does not count the samples.\n"
        "Return a row of logits for each sample, such as out.view(x.shape[0], …)."
    )
