"""Why A rather than B: weights over the logits as the target of every method that has one (S26b)."""

import functools

import pytest
import torch

import backplay as bp
from closeness import array, assert_near
from networks import photo, small
from toys import picture, tiny_vit

F64 = torch.float64
FEW = {
    "smoothgrad": {"n": 3},
    "integrated_gradients": {"steps": 4},
    "rg_eq": {"n": 2},
    "dave": {"n": 2, "noise": 0.2},
    "lime": {"n": 20, "segments": 6},
    "kernel_shap": {"n": 40, "segments": 5},
}
TARGETLESS = {"raw_attention", "rollout"}
RECTIFIED = {"gradcam_pp", "layercam", "gae", "tibav"}  # a ReLU stands between the target and the map


@functools.cache
def network(kind):
    """A small network, captured once, and two images."""
    torch.manual_seed(0)
    model, x = (small(), photo(2, 12)) if kind == "cnn" else (tiny_vit(), picture())
    return bp.capture(model, x), x


@functools.cache
def cases():
    """Every method with a network that it fits."""
    found = []
    for name, info in bp.methods().items():
        kinds = [kind for kind in ("cnn", "vit") if info.refusal(network(kind)[0]) is None]
        assert kinds, name
        found += [(name, kind) for kind in kinds]
    return found


def explain(method, kind, target):
    net, x = network(kind)
    return bp.explain(net, x, target, method=method, **FEW.get(method, {}))


def weights(kind, **classes):
    """The same weights for both samples, by class: `_0=1.0`."""
    net, x = network(kind)
    found = torch.zeros(len(x), net.output.shape[-1], dtype=F64)
    for name, value in classes.items():
        found[:, int(name[1:])] = value
    return found


@pytest.mark.parametrize("method, kind", cases())
def test_rather(method, kind):
    """One-hot weights are the class; weights add up over classes, but for methods that rectify on the way."""
    one, other = explain(method, kind, 0), explain(method, kind, 1)
    assert_near(explain(method, kind, weights(kind, _0=1.0)), array(one), 1e-9, what="one-hot")
    rather = explain(method, kind, weights(kind, _0=1.0, _1=-1.0))
    assert rather.shape == one.shape and torch.isfinite(rather).all()
    if method in TARGETLESS:
        assert_near(rather, array(one), what="no target")
        return
    assert (rather - one).abs().max() > 1e-6 * one.abs().max()
    if method not in RECTIFIED:
        size = max(float(one.abs().max()), float(other.abs().max()))
        assert_near(rather, array(one - other), 1e-9, scale=size, what="A rather than B")


@pytest.mark.parametrize("method, kind", [c for c in cases() if c[0] not in TARGETLESS | {"lime", "kernel_shap"}])
def test_each_sample_has_its_own(method, kind):
    """A batch is its samples one by one, weights too; one set of weights is for all samples."""
    net, x = network(kind)
    own = weights(kind, _0=1.0)
    own[1] = 0.0
    own[1, 2], own[1, 1] = 0.5, -2.0
    together = explain(method, kind, own)
    for k in range(2):
        alone = bp.explain(net, x[k : k + 1], own[k : k + 1], method=method, **FEW.get(method, {}))
        assert_near(together[k : k + 1], array(alone), 1e-9, what=f"sample {k}")
    for_all = bp.explain(net, x[:1], own[1], method=method, **FEW.get(method, {}))
    assert_near(for_all, array(bp.explain(net, x[:1], own[1:], method=method, **FEW.get(method, {}))), what="for all")


@pytest.mark.parametrize("method", ["rg", "gradcam", "lrp", "lime"])
def test_bad_weights(method):
    """All 0, not finite, of another shape: refused by name."""
    net, x = network("cnn")
    for bad, words in (
        (torch.zeros(2, 5), "weights of sample 0 are all 0"),
        (torch.full((2, 5), float("nan")), "10 NaN or infinite weights"),
        (torch.ones(2, 4), "neither integers nor weights like the logits"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            bp.explain(net, x, bad.double(), method=method)
        assert isinstance(refused.value, bp.BackplayError)


def test_reynolds_and_sweeps():
    """Averages over moved images and grids of modes take weights too."""
    net, x = network("cnn")
    game = bp.RoutingGame(net)
    rather = weights("cnn", _0=1.0, _1=-1.0)
    maps = [bp.Reynolds(game, n=2, progress=False).attribute(x, target) for target in (rather, 0, 1)]
    assert_near(maps[0], array(maps[1] - maps[2]), 1e-9, what="averaged")
    found = [bp.sweep(game, x, target, tau=[0.5, 1.0]) for target in (rather, 0, 1)]
    for point in found[0]:
        assert_near(found[0][point], array(found[1][point] - found[2][point]), 1e-9, what=f"{point}")
