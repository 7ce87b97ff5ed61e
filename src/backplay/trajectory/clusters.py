"""Images grouped by how a network calculates them (sec:discussion): neighbours, medoids, a plane and a tree.

`H` is a distance between walk laws, and `√2·H` is the Euclidean distance of their square roots (eq:hellinger-def). So
a matrix of distances can be drawn in a plane, cut into groups and grown into a tree like any other, without a pixel
being compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import InputError, KeywordError


@dataclass(frozen=True, kw_only=True)
class Medoids:
    """Groups around `k` of the items themselves, which have the least sum of distances to the rest of their group."""

    centres: Tensor  # (k,) the item in the middle of each group, in increasing order
    labels: Tensor  # (n,) the group of each item, an index into `centres`
    cost: float  # sum over all items of the distance to the centre of their group


@dataclass(frozen=True, kw_only=True)
class Points:
    """Items as points whose straight-line distances come as near to the given ones as the dimension allows."""

    points: Tensor  # (n, dimensions) around the origin, along the directions in which they spread most
    explained: float  # share of the whole spread (squared distances) that these dimensions show, between 0 and 1


def check_square(distance: Tensor, purpose: str) -> Tensor:
    """(n, n) float64: distances of one list of items from itself."""
    if not bool(torch.isfinite(distance).all()):
        raise InputError(f"{purpose} needs finite distances; where no walk survives, `surviving` is NaN.")
    square = distance.ndim == 2 and distance.shape[0] == distance.shape[1]
    if not square or not torch.allclose(distance, distance.T, atol=1e-6):
        raise InputError(
            f"{purpose} needs the distances of one list of items from itself, a symmetric (n, n) matrix; got "
            f"{tuple(distance.shape)}.\nGive hellinger_matrix one list of plays, each of one sample."
        )
    return (distance.double() + distance.double().T) / 2


def neighbours(distance: Tensor, item: int, k: int | None = None) -> tuple[Tensor, Tensor]:
    """(k,) the items nearest to one of them, itself left out, and (k,) their distances, in increasing order.

    Without `k` the nearest five, or all others where there are fewer.
    """
    square = check_square(distance, "neighbours")
    n = len(square)
    if n < 2:
        raise InputError("neighbours need two items or more; there is one: give hellinger_matrix more plays.")
    k = min(5, n - 1) if k is None else k
    if not -n <= item < n:
        raise KeywordError(f"item={item!r} is out of range: there are {n} items, 0 to {n - 1}.")
    if not 1 <= k < n:
        raise KeywordError(f"k={k!r} is out of range: of {n} items between 1 and {n - 1} are neighbours of another.")
    row = square[item].clone()
    row[item] = torch.inf
    ordered = row.sort(stable=True)
    return ordered.indices[:k], ordered.values[:k]


def medoids(distance: Tensor, k: int) -> Medoids:
    """Groups of least cost: from every item as first centre the others one by one, then exchanges while they help."""
    square = check_square(distance, "medoids")
    n = len(square)
    if not 1 <= k <= n:
        raise KeywordError(f"k={k!r} is out of range: {n} items form between 1 and {n} groups.")
    centres, cost = min((_grown(square, [first], k) for first in range(n)), key=lambda found: found[1])
    centres.sort()
    labels = square[:, centres].argmin(1)
    labels[centres] = torch.arange(k)  # a centre at distance 0 from another is in its own group all the same
    return Medoids(centres=torch.tensor(centres), labels=labels, cost=cost)


def _grown(square: Tensor, centres: list[int], k: int) -> tuple[list[int], float]:
    """`k` centres of which no single exchange lowers the cost, and that cost."""
    while len(centres) < k:
        gain = (square[:, centres].amin(1, keepdim=True) - square).clamp(min=0).sum(0)
        gain[centres] = -1
        centres.append(int(gain.argmax()))
    cost = float(square[:, centres].amin(1).sum())
    while (better := _exchange(square, centres, cost)) is not None:
        centres, cost = better
    return centres, cost


def _exchange(square: Tensor, centres: list[int], cost: float) -> tuple[list[int], float] | None:
    """The exchange of one centre for another item that lowers the cost most, or None."""
    best, better = cost * (1 - 1e-12), None
    for place in range(len(centres)):
        others = [c for c in centres if c != centres[place]]
        kept = square[:, others].amin(1, keepdim=True) if others else torch.full_like(square[:, :1], torch.inf)
        costs = torch.minimum(kept, square).sum(0)
        item = int(costs.argmin())
        if float(costs[item]) < best:
            best, better = float(costs[item]), [*others, item]
    return None if better is None else (better, best)


def embedding(distance: Tensor, dimensions: int = 2) -> Points:
    """Classical scaling of `√2·H`: the principal directions of the square-root laws, which nobody has to write down.

    In all `n − 1` dimensions the distances come out exactly, because `H` is a Euclidean distance (eq:hellinger-def).
    """
    square = check_square(distance, "embedding")
    n = len(square)
    if not 1 <= dimensions <= n:
        raise KeywordError(f"dimensions={dimensions!r} is out of range: {n} items span between 1 and {n}.")
    centring = torch.eye(n, dtype=square.dtype, device=square.device) - 1 / n
    gram = -centring @ square.square() @ centring  # of 2·H², one half of it, centred
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    sign = vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()  # an axis may point either way: fix it
    points = (vectors * sign * values.sqrt())[:, :dimensions]
    whole = float(values.sum())
    return Points(points=points, explained=float(values[:dimensions].sum()) / whole if whole > 0 else 1.0)


def dendrogram(distance: Tensor) -> Tensor:
    """(n − 1, 4) the tree of average linkage in scipy's layout: two branches, their distance, how many items below.

    `scipy.cluster.hierarchy.dendrogram` and `fcluster` read it as it is.
    """
    square = check_square(distance, "dendrogram")
    n = len(square)
    if n < 2:
        raise InputError("a dendrogram needs at least two items.")
    between = square.clone().fill_diagonal_(torch.inf)
    names, sizes, joins = list(range(n)), [1] * n, torch.empty(n - 1, 4, dtype=torch.float64)
    for step in range(n - 1):
        flat = int(between.argmin())
        i, j = sorted((flat // n, flat % n))
        size = sizes[i] + sizes[j]
        joins[step] = torch.tensor([*sorted((names[i], names[j])), float(between[i, j]), size])
        row = (sizes[i] * between[i] + sizes[j] * between[j]) / size
        between[i], between[:, i] = row, row
        between[j], between[:, j] = torch.inf, torch.inf
        between[i, i] = torch.inf
        names[i], sizes[i] = n + step, size
    return joins
