"""What a play explains, in words: a class, a neuron, or one class rather than another."""

from __future__ import annotations

from backplay.games.neurons import Neuron
from backplay.inputs import Aim
from backplay.view.images import Looks


def aim_words(aim: Aim, sample: int, looks: Looks) -> str:
    """`cross`, `a neuron of layer3.1` or `cross rather than square`; nothing for other weights over the logits."""
    if isinstance(aim, Neuron):
        return f"a neuron of {aim.node.name}"
    if aim.index is not None:
        return looks.class_name(int(aim.index[sample]) % aim.shape[-1]) if len(aim.shape) <= 3 else ""
    assert aim.weights is not None
    weights = aim.weights[sample]
    if weights.ndim != 1:
        return ""
    chosen = {float(weights[k]): looks.class_name(int(k)) for k in weights.nonzero()[:, 0]}
    if len(chosen) != int((weights != 0).sum()):  # classes that weigh alike
        return ""
    sizes = sorted(chosen)
    if len(sizes) == 1 and sizes[0] > 0:
        return chosen[sizes[0]]
    if len(sizes) == 2 and sizes[0] == -sizes[1]:
        return f"{chosen[sizes[1]]} rather than {chosen[sizes[0]]}"
    return ""
