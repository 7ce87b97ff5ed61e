"""A cascade compares maps and walks of a model with those of copies that have forgotten more and more.

app:sanity-heatmap, sec:hellinger-cascading.
"""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from skimage.feature import hog as skimage_hog
from torch import nn

import backplay as bp
from backplay import zoo
from backplay.sanity import cascade, randomise
from backplay.sanity.similarity import describe


def test_similarities_are_the_libraries():
    torch.manual_seed(0)
    a, b = torch.randn(3, 3, 96, 96).double(), torch.randn(3, 3, 96, 96).double()
    b[1] = a[1] + 0.3 * b[1]
    left, right = (m.sum(1).abs().numpy() for m in (a, b))
    one, two = describe(a), describe(b)
    for k in range(3):
        assert float(one.spearman(two)[k]) == pytest.approx(spearmanr(left[k].ravel(), right[k].ravel()).statistic)
        descriptors = [skimage_hog(m[k] / m[k].max(), pixels_per_cell=(16, 16)) for m in (left, right)]
        assert float(one.hog(two)[k]) == pytest.approx(np.corrcoef(*descriptors)[0, 1])
    ones = torch.ones(3).double()
    assert torch.allclose(one.spearman(describe(-a)), ones) and torch.allclose(one.hog(one), ones)
    flat = describe(torch.zeros_like(a))
    assert not one.spearman(flat).any() and not one.hog(flat).any()
    for wrong in (a[:2], a[:, :, :50]):
        with pytest.raises(bp.BackplayError, match="of one shape are compared"):
            one.spearman(describe(wrong))
    with pytest.raises(bp.BackplayError, match=r"pictures \(B, C, H, W\); got \(3, 96, 96\)"):
        describe(a[:, 0])


def small():
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(54, 8), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(8, 3)).eval()


def test_steps():
    model, x = small(), torch.randn(2, 3, 12, 12)
    steps = list(cascade(model, x, method=["rg", "gradient"], seed=5))
    assert [s.layer and s.layer.name for s in steps] == [None, "6", "4", "0"]
    first = steps[0]
    for game in ("sg", "rg"):
        assert not first.distance[game].any()
    for method in ("rg", "gradient"):
        assert torch.allclose(first.spearman[method], torch.ones(2)) and torch.allclose(
            first.hog[method], torch.ones(2)
        )
    # the last step is the model that `randomise` gives, explained and walked by hand
    twin, target = randomise(bp.capture(model, x), seed=5), model(x).argmax(1)
    for name, game in (("sg", bp.StoppingGame), ("rg", lambda m: bp.RoutingGame(m, epsilon=0.0))):
        plays = [game(m).play(x, target) for m in (model, twin)]
        assert torch.allclose(steps[-1].distance[name], bp.hellinger(*plays).distance)
    maps = [bp.explain(m, x, target, method="gradient") for m in (model, twin)]
    assert torch.allclose(steps[-1].spearman["gradient"], describe(maps[0]).spearman(describe(maps[1])))


def test_each_step_draws_its_own_layer_and_no_other():
    model = small()
    before = {name: value.clone() for name, value in model.named_parameters()}
    reached = []
    for step in cascade(model, torch.randn(1, 3, 12, 12), method=[], games="sg"):
        now = {name: value.clone() for name, value in step.model.named_parameters()}
        drawn = step.layer.parameters if step.layer else ()
        assert {name for name in now if not torch.equal(now[name], before[name])} == set(drawn), step.number
        reached += drawn
        before = now
    assert sorted(reached) == sorted(before)


def test_seeds_give_the_same_curve():
    model, x = small(), torch.randn(1, 3, 12, 12)
    one, two, other = ([float(s.distance["sg"]) for s in cascade(model, x, seed=seed, method=[])] for seed in (0, 0, 1))
    assert one == pytest.approx(two) and one != pytest.approx(other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg", "resnet", "vit"])
def test_zoo_curves_rise_and_end_at_the_double_random_value(name):
    """fig:hellinger-sanity: both games leave 0 at the first layer and end near the distance of two random networks."""
    model, batch = zoo.load(name), zoo.images(2)
    steps = list(cascade(model, batch.x, batch.target, method=[]))
    network = bp.capture(model, batch.x)
    twins = [network.on(randomise(model, seed=s)) for s in (11, 12)]
    for game, kind, options in (("sg", bp.StoppingGame, {}), ("rg", bp.RoutingGame, {"epsilon": 0.0})):
        curve = [float(s.distance[game].mean()) for s in steps]
        random = bp.hellinger(*(kind(t, **options).play(batch.x, batch.target) for t in twins)).distance.mean()
        assert curve[1] > 0.3 and curve[-1] == pytest.approx(float(random), abs=0.03), (game, curve, random)


def test_refusals():
    with pytest.raises(bp.BackplayError, match="did you mean sg"):
        cascade(small(), torch.randn(1, 3, 12, 12), games=["sgg"])
    for wrong, said in (
        ({"target": 99}, "99"),
        ({"seed": "a"}, "seed='a' is out of range"),
        ({"method": 5}, "method=5 is out of range"),
        ({"method": {"own": "rg"}}, "method\\['own'\\] is no explainer"),
        ({"which": "biases"}, "which='biases' is out of range"),
    ):
        with pytest.raises(bp.BackplayError, match=said) as caught:  # at the call, before any step
            cascade(small(), torch.randn(1, 3, 12, 12), **wrong)
        assert not isinstance(caught.value, bp.errors.UnforeseenError)
