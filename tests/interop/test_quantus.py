"""Every method as an `explain_func` of Quantus."""

import numpy as np
import pytest
import torch

import backplay as bp
from backplay import zoo
from backplay.bench.metrics import quantus
from backplay.interop.quantus import explain


@pytest.fixture(scope="module")
def scene():
    x, target, mask = zoo.images(2)
    return zoo.load("vgg"), x.numpy(), target.numpy(), mask.numpy()


def test_it_is_the_map_with_its_channels_summed(scene):
    model, x, y, _ = scene
    maps = explain(model, x, y, method="rg", tau=0.5)
    expected = bp.explain(model, torch.tensor(x), torch.tensor(y), method="rg", tau=0.5).double().sum(1, keepdim=True)
    assert maps.shape == (2, 1, 96, 96) and maps.dtype == np.float64
    assert np.array_equal(maps, expected.numpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_quantus_takes_it(scene):
    model, x, y, mask = scene
    q = quantus()
    common = {"model": model, "x_batch": x, "y_batch": y, "explain_func": explain, "device": "cpu"}
    score = q.AttributionLocalisation(abs=True, normalise=False, disable_warnings=True)(
        **common, s_batch=mask[:, None], explain_func_kwargs={"method": "gradient"}
    )
    heat = np.abs(explain(model, x, y, method="gradient"))[:, 0]
    assert score == pytest.approx((heat * mask).sum((1, 2)) / heat.sum((1, 2)), rel=1e-6)


def test_inputs_of_float64_are_computed_in_the_models_type(scene):
    model, x, y, _ = scene
    assert np.array_equal(explain(model, x.astype(np.float64), y), explain(model, x, y))


def test_bad_inputs(scene):
    with pytest.raises(bp.BackplayError, match=r"\(B, C, H, W\), got \(3, 96, 96\)"):
        explain(scene[0], scene[1][0], scene[2])
    with pytest.raises(bp.BackplayError, match="no method named"):
        explain(scene[0], scene[1], scene[2], method="rgg")
