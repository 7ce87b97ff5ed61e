"""Images in a plane and on a tree, by distances that are given."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from scipy.cluster import hierarchy

import backplay as bp
from backplay import zoo
from backplay.trajectory.clusters import dendrogram, embedding, medoids
from backplay.trajectory.matrix import HellingerMatrix
from backplay.view.clusters import COLOURS, _apart, _leaves
from legible import assert_legible, images, texts


def matrix(n=9, seed=0):
    """Distances of laws written out; those of arriving walks are others."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        law = torch.rand(n, 6, dtype=torch.float64, generator=generator) ** 3
        roots = (law / law.sum(1, keepdim=True)).sqrt()
        found.append((1 - roots @ roots.T).clamp(min=0).sqrt().fill_diagonal_(0))
    return HellingerMatrix(found[0], 1 - found[0] ** 2, found[1], torch.zeros(n, n))


def branches(figure):
    """(x, y) of each join of the tree, the first one first."""
    (axes,) = [a for a in figure.axes if a.get_ylabel() == "distance"]
    return [(line.get_xdata(), line.get_ydata(), to_hex(line.get_color())) for line in axes.lines]


@pytest.mark.parametrize("surviving", [False, True])
def test_tree_is_the_linkage(surviving):
    """Branches meet at the heights of the joins, leaves stand in an order without crossings, groups have colours."""
    given = matrix()
    distance = given.surviving if surviving else given.distance
    joins, labels = dendrogram(distance), medoids(distance, 2).labels
    drawn = branches(bp.view.clusters(given, surviving=surviving))
    assert np.allclose([max(y) for _, y, _ in drawn], joins[:, 2])
    order = _leaves(joins)
    assert sorted(order) == list(range(9)) and order == hierarchy.dendrogram(joins.numpy(), no_plot=True)["leaves"]
    place = {item: float(k) for k, item in enumerate(order)}
    group = {item: COLOURS[int(labels[item])] for item in order}
    for step, (x, _, colour) in enumerate(drawn):
        one, other = (int(v) for v in joins[step, :2])
        assert (x[0], x[-1]) == (place[one], place[other])
        place[9 + step] = (x[0] + x[-1]) / 2
        group[9 + step] = group[one] if group[one] == group[other] else "mixed"
        assert (colour in COLOURS) == (group[9 + step] != "mixed")


@pytest.mark.slow
@pytest.mark.parametrize("width", [3.3, 8])
@pytest.mark.parametrize("groups", [1, 3])
def test_images_stand_where_they_belong(width, groups):
    """Each picture twice, in the colour of its group; far ones keep their places in the plane."""
    given, batch = matrix(5), zoo.images(5)
    figure = bp.view.clusters(given, batch.x, groups=groups, width=width, model=zoo.load("vgg"))
    expected = [np.asarray(zoo.picture(x).movedim(0, -1)) for x in batch.x]
    shown = [a for a in figure.axes if a.images]
    found = [next(k for k, e in enumerate(expected) if np.allclose(e, a.images[0].get_array())) for a in shown]
    assert found[:5] == [0, 1, 2, 3, 4] and found[5:] == _leaves(dendrogram(given.distance))
    labels = medoids(given.distance, groups).labels
    for axes, item in zip(shown, found, strict=True):
        assert to_hex(axes.spines["left"].get_edgecolor()) == COLOURS[int(labels[item])]
    centres = np.array([[a.get_position().x0, a.get_position().y0] for a in shown[:5]]) * figure.get_size_inches()
    points = embedding(given.distance, 2).points.numpy()
    for axis in (0, 1):
        assert np.corrcoef(centres[:, axis], points[:, axis])[0, 1] > 0.9
    share = embedding(given.distance, 2).explained
    assert f"this plane shows {100 * share:.0f}\N{NO-BREAK SPACE}% of the spread" in texts(figure)
    assert len(images(figure)) == 10
    assert_legible(figure)


def test_nobody_is_hidden():
    """Items at one place are moved apart, no farther than the frame, and those that are alone stay."""
    places = np.array([[1.0, 1.0], [1.0, 1.0], [1.05, 1.0], [2.5, 2.5], [0.2, 0.2], [0.2, 0.2]])
    found = _apart(places, 0.4, 3.0)
    gaps = np.abs(found[:, None] - found[None]).max(2) + 9 * np.eye(6)
    assert gaps.min() > 0.4 - 1e-2 and (found >= 0.2 - 1e-9).all() and (found <= 2.8 + 1e-9).all()
    assert np.allclose(found[3], places[3], atol=1e-3) and np.abs(found - places).max() < 0.8


def test_numbers_and_the_object_itself():
    """Without images items are numbers; a matrix draws itself and says what it is in a line."""
    given = matrix(12)
    figure = given.plot()
    assert {str(k) for k in range(12)} <= set(texts(figure)) and texts(figure).count("7") == 2
    assert_legible(figure)
    assert repr(given).startswith("HellingerMatrix(12 × 12, distance 0.000 to 0.") and "\n" not in repr(given)
    assert_legible(bp.view.clusters(matrix(40)))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda m: bp.view.clusters(m.distance), "got Tensor"),
        (lambda m: bp.view.clusters(m, groups=0), "groups=0"),
        (lambda m: bp.view.clusters(m, groups=9), "from 1 to 8"),
        (lambda m: bp.view.clusters(m, torch.rand(4, 3, 8, 8)), "4 images for 9 plays"),
        (lambda m: bp.view.clusters(HellingerMatrix(*(v[:, :4] for v in vars(m).values()))), r"\(9, 4\)"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(bp.BackplayError, match=said) as error:
        call(matrix())
    assert len(str(error.value).splitlines()) <= 2
