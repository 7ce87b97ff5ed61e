"""Every temperature on whole networks against policies computed in log space (S13, S18, S23, S37)."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import references
from closeness import l1_relative, unscaled
from families import prepared, torchvision_vit
from networks import photo, steady, twin
from oracles import logspace
from references import TEMPERATURES

pytestmark = pytest.mark.usefixtures("without_gradients")

ENDS = [0.3, 1.0, 5.0]


def small_vgg():
    """torchvision's VGG with two convolutions and five classes; its average pooling makes 7 × 7 of 4 × 4 values."""
    from torchvision.models import VGG

    features = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),
        nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),
    )  # fmt: skip
    model = VGG(features)
    model.classifier = nn.Sequential(nn.Linear(8 * 49, 20), nn.ReLU(True), nn.Dropout(), nn.Linear(20, 5))
    return prepared(steady(model), torch.float32), photo(1, 18, torch.float32)


def small_vit():
    """torchvision's VisionTransformer with two blocks and 17 tokens."""
    return prepared(torchvision_vit(patch_size=8), torch.float32), photo(1, 32, torch.float32)


def check(single, x, expected, bound, in_double=TEMPERATURES):
    """Maps of both precisions are finite and near those expected for each ε and τ.

    `bound` and the τ `in_double` are for float64.
    """
    double = twin(single, torch.float64)
    for model, given, taus, allowed in ((single, x, TEMPERATURES, 1e-4), (double, x.double(), in_double, bound)):
        game = bp.RoutingGame(model)
        for epsilon, maps in expected.items():
            for tau in taus:
                found = game.replace(epsilon=epsilon, tau=tau).attribute(given, 1)
                assert found.dtype == given.dtype and torch.isfinite(found).all()
                error = l1_relative(found[0], maps[TEMPERATURES.index(tau)])
                assert error < allowed, f"{given.dtype}, τ = {tau}, ε = {epsilon}: L1 relative error {error:.2e}"


@pytest.mark.slow
@pytest.mark.parametrize("build", [small_vgg, small_vit])
def test_small_networks(build):
    """The same classes as below, small: float64 to 1e-10, and float32 to 1e-4."""
    single, x = build()
    double = twin(single, torch.float64)
    expected = {e: logspace.attribution(double, x.double(), 1, TEMPERATURES, epsilon=e) for e in (0.0, 1e-6, 0.5)}
    check(single, x, expected, 1e-10)


def test_maps_below_float32():
    """S11, S13: an ε that ends nearly every walk leaves a map of 1e-86; the occupation keeps its digits in float32."""
    single, x = small_vgg()
    double = twin(single, torch.float64)
    (expected,) = logspace.attribution(double, x.double(), 1, [0.3], epsilon=1e6)
    assert 0 < expected.abs().max() < torch.finfo(torch.float32).tiny * 1e-30
    play = bp.RoutingGame(single, tau=0.3, epsilon=1e6).play(x, 1)
    assert torch.isfinite(play.attribution()).all()
    occupation = play.occupation("input")
    difference = unscaled(occupation.difference, occupation.difference_log_scale)
    assert l1_relative(difference[0] * float(play.value[0]), expected) < 1e-4


def test_outside_option_beyond_float32():
    """S13: at a tiny τ the outside option outweighs all else beyond any number; walks end there, none is lost."""
    single, x = small_vgg()
    health = bp.RoutingGame(single, tau=0.01, epsilon=1e3).play(x, 1).health()
    assert health.ok and health.mass_error < 1e-6, health


@pytest.mark.slow
@pytest.mark.large
@pytest.mark.parametrize("name", ["vgg16", "vit_b_16"])
def test_whole_networks(name):
    """S37: VGG-16 and ViT-B/16 at every τ in float32 to 1e-4, and at three in float64 to 1e-8."""
    single, x = getattr(references, name)()
    check(single, x, {references.EPSILON: references.reference(name, single, x)}, 1e-8, ENDS)


@pytest.mark.parametrize("name", ["vgg16", "vit_b_16"])
def test_kept_references(name):
    """What is kept was made by the source that stands here; else `make references`, or every run takes minutes more."""
    with np.load(references.KEPT / f"{name}.npz") as kept:
        assert kept["made_from"][0] == references.source()
        assert kept["maps"].shape[0] == len(TEMPERATURES) and np.abs(kept["maps"]).max() > 0
