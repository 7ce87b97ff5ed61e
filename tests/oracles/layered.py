"""The layered Markov process of the paper's appendix (sec:lmp, sec:games-fit) on a ReLU network, as plain matrices.

Layer `L` holds the logits, layer 0 the pixels. A state of layer `l` has the number `2 · unit + tag`, the tag being the
player in turn (0 for +, 1 for −) or, at the pixels of the Routing Game, the stream; the last number is the cemetery.
`kernels[k]` is the matrix `T` from layer `L − k` to the layer below.
"""

import itertools

import numpy as np


def forward(weights, biases, x):
    """Values that each layer reads, the input first, and every pre-activation."""
    read, before = [np.asarray(x, float)], []
    for weight, bias in zip(weights, biases, strict=True):
        before.append(weight @ read[-1] + bias)
        read.append(np.maximum(before[-1], 0.0))
    return read, before


def shares(scores, outside):
    """A distribution over scores with an outside option; all outside where there is nothing."""
    total = scores.sum() + outside
    return scores / total if total > 0 else scores


def row(weight, below, game, tau, epsilon):
    """Probabilities of every predecessor on the kept and on the switched side (eq:adf-T, eq:rg-T-act, eq:rg-T)."""
    if game == "stopping":
        size = np.abs(weight).sum()
        return np.maximum(weight, 0) / size, np.maximum(-weight, 0) / size
    outside = epsilon ** (1 / tau) if epsilon else 0.0
    return tuple(0.5 * shares(np.maximum(s * weight * below, 0) ** (1 / tau), outside) for s in (1, -1))


def kernels(weights, biases, x, game, tau=1.0, epsilon=0.0):
    """The matrices from the logits down to the pixels; there is no gate at the logits."""
    read, before = forward(weights, biases, x)
    found = []
    for k in reversed(range(len(weights))):
        outputs, inputs = weights[k].shape
        matrix = np.zeros((2 * outputs + 1, 2 * inputs + 1))
        matrix[-1, -1] = 1.0  # eq:cemetery-absorbing
        for j, player in itertools.product(range(outputs), (0, 1)):
            if k == len(weights) - 1 or before[k][j] > 0:
                kept, switched = row(weights[k][j], read[k], game, tau, epsilon)
                tag = 0 if k == 0 and game == "routing" else player  # there a pixel is told apart by the stream
                matrix[2 * j + player, tag:-1:2] = kept
                matrix[2 * j + player, 1 - tag : -1 : 2] = switched
            matrix[2 * j + player, -1] = max(0.0, 1.0 - matrix[2 * j + player, :-1].sum())
        found.append(matrix)
    return found


def law(matrices, start):
    """`{states from the top down: probability}`, every trajectory by itself (eq:path-measure)."""
    found = {(start,): 1.0}
    for matrix in matrices:
        found = {
            (*path, int(to)): p * matrix[path[-1], to]
            for path, p in found.items()
            for to in np.flatnonzero(matrix[path[-1]])
        }
    return found


def marginals(matrices, start):
    """`α` of every layer, the start first (eq:lmp-alpha-boundary, eq:lmp-alpha-recursion)."""
    found = [np.zeros(len(matrices[0]))]
    found[0][start] = 1.0
    for matrix in matrices:
        found.append(found[-1] @ matrix)
    return found


def expectations(matrices, last):
    """What every state of every layer may expect of `last` at the pixels, the top layer first."""
    found = [np.asarray(last, float)]
    for matrix in reversed(matrices):
        found.insert(0, matrix @ found[0])
    return found


def given_survival(matrices):
    """Kernels on ordinary states given that the walk survives, and `h` of every layer (eq:conditioned-kernel)."""
    ones = np.ones(matrices[-1].shape[1])
    ones[-1] = 0.0  # eq:survival-boundary
    h = expectations(matrices, ones)
    found = []
    for k, matrix in enumerate(matrices):
        size = np.where(h[k] > 0, h[k], 1.0)
        found.append(matrix * h[k + 1] / size[:, None])
    return found, h
