"""Distances, moments and certificates as pictures."""

import numpy as np
import pytest
import torch

import backplay as bp
from backplay import zoo
from legible import assert_legible, images, texts


@pytest.fixture(scope="module")
def apart(play, batch):
    return bp.hellinger(play, bp.RoutingGame(zoo.load("vgg", spurious=True)).play(batch.x, batch.target))


@pytest.mark.parametrize("width", [3.3, 9])
def test_distance_draws_its_map_and_its_growth(apart, batch, width):
    figure = apart.plot(sample=1, width=width)
    image, disagreement, *_ = images(figure)
    assert np.allclose(image, zoo.picture(batch.x[1]).double().movedim(0, -1))
    assert np.allclose(disagreement, apart.disagreement[1].sum(0))
    curve = figure.axes[-1].lines[0].get_ydata()
    assert np.allclose(curve, [float((1 - bc[1]).sqrt()) for _, bc in apart.by_layer])
    assert curve[-1] == pytest.approx(float(apart.distance[1]), rel=1e-6)
    assert any(f"{float(apart.distance[1]):.3f}" in word for word in texts(figure))
    assert figure.axes[1].images[0].get_clim()[0] == 0
    assert_legible(figure)


def test_kinds_of_maps(apart):
    for kind in ("trajectory", "marginal", "fraction"):
        drawn = images(bp.view.distance(apart, kind=kind, conditioned=True))[1]
        expected = apart.map(kind, conditioned=True)[0].sum(0) / (3 if kind == "fraction" else 1)
        assert np.allclose(drawn, expected)


def test_two_images_are_both_shown(play, batch):
    h = bp.hellinger(play.game.play(batch.x[:1], 0), play.game.play(batch.x[1:2], 0))
    figure = h.plot()
    assert {"image A", "image B", "where they differ"} <= set(texts(figure))
    for drawn, k in zip(images(figure), (0, 1), strict=False):
        assert np.allclose(drawn, zoo.picture(batch.x[k]).double().movedim(0, -1))
    assert_legible(figure)


@pytest.mark.parametrize("width", [3.3, 8])
def test_distances_of_vectors_and_deep_networks(table, vit, width):
    figure = bp.hellinger(table, table).plot(width=width)
    assert not images(figure) and float(figure.axes[-1].lines[0].get_ydata()[-1]) == 0
    assert figure.axes[-1].get_ylim() == (0, 1.02)
    assert_legible(figure)
    assert_legible(bp.hellinger(vit, vit).plot(width=width))


@pytest.mark.parametrize("width", [3.3, 8])
def test_moments(model, batch, width):
    found = bp.moments(model, batch.x, 0.1)
    figure = found.plot(sample=1, width=width)
    signal, noise = (line.get_ydata() for line in figure.axes[0].lines)
    assert noise[0] == pytest.approx(np.sqrt(0.1))
    assert signal[-1] == pytest.approx(float(found["head.2"].mean[1].double().square().mean().sqrt()))
    assert noise[-1] == pytest.approx(float(found["head.2"].variance[1].double().mean().sqrt()))
    logits = found["head.2"].mean[1].double().sort(descending=True)
    assert np.allclose([bar.get_width() for bar in figure.axes[1].containers[0]], logits.values)
    deviations = found["head.2"].variance[1].double().sqrt()[logits.indices]
    segments = figure.axes[1].containers[1].lines[2][0].get_segments()
    assert np.allclose([(s[1][0] - s[0][0]) / 2 for s in segments], deviations, rtol=1e-5)
    assert next(t.get_text() for t in figure.axes[1].get_yticklabels()) == model.classes[int(logits.indices[0])]
    assert_legible(figure)


@pytest.mark.parametrize("width", [3.3, 8])
def test_certificate(play, width):
    found = bp.certify(play)
    figure = found.plot(width=width)
    bars = [bar.get_width() for bar in figure.axes[0].containers[0]]
    assert bars == [count for _, count in sorted(found.kinds.items())]
    assert any("nobody gains" in word for word in texts(figure))
    assert_legible(figure)


def test_nothing_to_certify():
    net = torch.nn.Linear(3, 2).eval()
    found = bp.certify(bp.StoppingGame(net).play(torch.randn(1, 3)))
    assert found.checked == 0
    assert any("nothing to certify" in word for word in texts(found.plot()))


def test_bad_input(play, apart):
    for call, says in (
        (lambda: bp.view.distance(play), "what bp.hellinger"),
        (lambda: apart.plot(sample=3), "sample 3"),
        (lambda: apart.plot(kind="pixel"), "kind='pixel'"),
        (lambda: bp.view.distance(apart, torch.rand(3, 10, 20)), "10 × 20"),
        (lambda: bp.view.moments(play), "what bp.moments"),
        (lambda: bp.view.certificate(0.0), "what bp.certify"),
        (lambda: bp.view.plot(3), "no picture of a int"),
        (lambda: bp.certify(play).plot(width="wide"), "width='wide'"),
    ):
        with pytest.raises(bp.BackplayError, match=says) as error:
            call()
        assert not isinstance(error.value, bp.errors.UnforeseenError) and str(error.value).count("\n") <= 1


@pytest.mark.parametrize("width", [3.3, 8])
def test_robustness(width):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).double().eval()
    x = torch.randn(2, 5, dtype=torch.float64)
    found = bp.robustness(net, x, 1, thetas=[0.0, 0.1, 1.0], n=4)
    figure = found.plot(sample=1, width=width)
    walk, share, bend = figure.axes
    for axes, values in ((walk, found.distance), (share, found.relative)):
        assert np.allclose(axes.lines[0].get_ydata(), np.median(values[:, 1].numpy(), 1))
    floor = bend.get_ylim()[0]
    assert np.allclose(bend.lines[0].get_ydata(), np.median(np.maximum(found.measured[:, 1].numpy(), floor), 1))
    assert np.allclose(bend.lines[-1].get_ydata(), found.curvature[1:, 1])
    assert {"ReLU", "0.1", "1", "dashed: bound for all inputs"} <= set(texts(figure))
    assert_legible(figure)
    pooled = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.MaxPool1d(2), torch.nn.Linear(3, 2))
    unknown = bp.view.robustness(bp.robustness(pooled.double().eval(), x, 1, thetas=[0.5], n=1), width=width)
    assert "no bound known" in texts(unknown)
    assert_legible(unknown)
    with pytest.raises(TypeError, match=r"bp\.robustness"):
        bp.view.robustness(x)
