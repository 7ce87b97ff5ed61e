"""Every method that fits runs on each bundled network (app:baseline-methods)."""

import functools

import pytest
import torch

import backplay as bp
from backplay import zoo
from closeness import l1_relative

QUICK = {"n": 4, "steps": 4}
SUPERPIXELS = {"n": 20, "segments": 10}  # fewer draws than segments would leave the regression open


@functools.cache
def network(name):
    return bp.capture(zoo.load(name), zoo.images(2, seed=5).x)


def settings(info):
    if info.family == "perturbation":
        return SUPERPIXELS
    return {name: value for name, value in QUICK.items() if name in info.params}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg", "resnet", "vit"])
def test_every_method(name):
    """Finite, in shape, not empty; a batch is its samples one by one."""
    net, batch = network(name), zoo.images(2, seed=5)
    fitting = [info for info in bp.methods().values() if info.fits(net)]
    assert len(fitting) >= 19
    for info in fitting:
        ask = functools.partial(bp.explain, net, method=info.name, **settings(info))
        found = ask(batch.x, batch.target)
        assert found.shape in (batch.x.shape, (2, 1, *batch.x.shape[2:])), info.name
        assert torch.isfinite(found).all(), info.name
        assert found.abs().amax((1, 2, 3)).min() > 0, info.name
        alone = torch.cat([ask(x[None], int(t)) for x, t in zip(batch.x, batch.target, strict=True)])
        assert l1_relative(alone, found) < 1e-3, info.name
