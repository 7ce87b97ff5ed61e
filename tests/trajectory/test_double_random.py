"""VGG-16 against VGG-16, both random: the paper's row of tab:double-random-hellinger, and what it costs."""

import time

import pytest
import torch
from torch import nn

import backplay as bp

pytestmark = pytest.mark.slow

ROUNDS = 5
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cat():
    """scikit-image's cat at 224×224 with ImageNet normalisation."""
    data = pytest.importorskip("skimage.data")
    image = torch.as_tensor(data.chelsea()).permute(2, 0, 1)[None].float() / 255
    image = nn.functional.interpolate(image, size=(256, 384), mode="bilinear", antialias=True)[..., 16:240, 80:304]
    return (image - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(SPREAD).view(3, 1, 1)


def fresh(seed):
    """Kaiming-normal weights, zero biases."""
    import torchvision.models as models

    torch.manual_seed(seed)
    model = models.vgg16(weights=None, init_weights=False)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return model.eval()


def compare(game, options, x):
    found = []
    for k in range(ROUNDS):
        a, b = (game(fresh(2 * k + side), **options).play(x, k) for side in (0, 1))
        h = bp.hellinger(a, b)
        found.append((float(h.distance), float(h.surviving), float(h.cemetery_overlap)))
    return torch.tensor(found, dtype=torch.float64).mean(0)


def test_stopping():
    """H = 0.939 ± 0.006, H_surv above 0.9999; cemetery overlap near 0.117."""
    distance, surviving, overlap = compare(bp.StoppingGame, {}, cat())
    assert abs(distance - 0.939) <= 0.006
    assert surviving > 0.9999
    assert 0.10 < overlap < 0.13


def test_routing():
    distance, surviving, _ = compare(bp.RoutingGame, {"epsilon": 0.0}, cat())
    assert distance > 0.9999 and surviving > 0.9999


def test_cost():
    """The distance of two plays with its maps takes at most six times as long as one Routing map."""
    x, (first, second) = cat(), (bp.RoutingGame(fresh(k), epsilon=0.0) for k in (0, 1))
    for game in (first, second):
        game.attribute(x)  # capture and prepare
    ratios = []
    for _ in range(3):
        start = time.perf_counter()
        first.attribute(x)
        single = time.perf_counter() - start
        a, b = first.play(x, 0), second.play(x, 0)
        start = time.perf_counter()
        h = bp.hellinger(a, b)
        h.map(), h.map("fraction"), h.map(conditioned=True)
        ratios.append((time.perf_counter() - start) / single)
    assert sorted(ratios)[1] <= 6, ratios


@pytest.mark.parametrize("game, options", [(bp.StoppingGame, {}), (bp.RoutingGame, {"epsilon": 0.0})])
def test_ten_thousand_trajectories(game, options):
    """Drawn in under a minute; visits agree with the marginals at every node (χ²)."""
    play = game(fresh(0), **options).play(cat(), 5)
    start = time.perf_counter()
    drawn = play.sample(10_000)
    assert time.perf_counter() - start < 60
    p = [float(drawn.check(name)) for name in drawn.states]
    assert min(p) > 1e-4 and sum(p) / len(p) > 0.2
