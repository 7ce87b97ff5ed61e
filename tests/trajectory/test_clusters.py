"""Neighbours, medoids, a plane and a tree from distances between walk laws (sec:discussion)."""

import itertools

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

import backplay as bp
from backplay.trajectory import clusters
from backplay.trajectory.clusters import dendrogram, embedding, medoids, neighbours


def hellinger_of(laws):
    """The distances of laws written out as rows of probabilities."""
    roots = laws.sqrt()
    return (1 - roots @ roots.T).clamp(min=0).sqrt()


def laws(n=9, states=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand(n, states, dtype=torch.float64, generator=generator) ** 3
    return found / found.sum(1, keepdim=True)


def test_nearest():
    distance = hellinger_of(laws())
    index, far = neighbours(distance, 4, 3)
    order = [i for i in distance[4].argsort().tolist() if i != 4][:3]
    assert index.tolist() == order and torch.equal(far, distance[4, order])


@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("seed", range(4))
def test_medoids_of_least_cost(k, seed):
    """Exchanges come to the least cost of all choices on these sizes."""
    distance = hellinger_of(laws(seed=seed))
    found = medoids(distance, k)
    best = min(float(distance[:, list(c)].amin(1).sum()) for c in itertools.combinations(range(9), k))
    assert found.cost == pytest.approx(best, abs=1e-6)
    assert torch.equal(found.labels, distance[:, found.centres].argmin(1)) and len(found.centres) == k


def test_embedding_is_euclidean():
    """`√2·H` is the distance of square-root laws, so that all dimensions together give it back (eq:hellinger-def)."""
    law = laws()
    distance = hellinger_of(law)
    whole = embedding(distance, 9)
    assert whole.explained == pytest.approx(1)
    assert torch.allclose(torch.cdist(whole.points, whole.points), 2**0.5 * distance, atol=1e-7)
    plane = embedding(distance, 2)
    roots = law.sqrt() - law.sqrt().mean(0)
    values = torch.linalg.svdvals(roots).square()
    assert plane.explained == pytest.approx(float(values[:2].sum() / values.sum()))
    assert torch.allclose(plane.points.square().sum(0), values[:2])


@pytest.mark.parametrize("seed", range(4))
def test_dendrogram_is_scipys(seed):
    distance = hellinger_of(laws(seed=seed))
    expected = hierarchy.linkage(squareform(distance.numpy(), checks=False), "average")
    assert np.allclose(dendrogram(distance).numpy(), expected)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda d: neighbours(d, 9, 2), "9 items"),
        (lambda d: neighbours(d, 0, 9), "between 1 and 8"),
        (lambda d: medoids(d, 0), "between 1 and 9"),
        (lambda d: embedding(d, 10), "between 1 and 9"),
        (lambda d: medoids(d[:, :4], 2), r"\(9, 4\)"),
        (lambda d: dendrogram(d.clone().fill_(torch.nan)), "NaN"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(bp.BackplayError, match=said):
        call(hellinger_of(laws()))


def test_refusal_is_short():
    with pytest.raises(bp.BackplayError) as caught:
        clusters.check_square(torch.zeros(2, 3), "medoids")
    assert len(str(caught.value).splitlines()) <= 2
