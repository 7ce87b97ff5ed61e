"""Relevance at a layer: games, relevance propagation and gradients, against hooks, loops and occupations."""

import functools
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from closeness import array, assert_near, unscaled
from families import torchvision_vit
from networks import mlp_layers, photo, revive, small
from oracles import relevance as slow

F64 = torch.float64
PROPAGATION = ("lrp_epsilon", "lrp_gamma", "lrp_box", "lrp_abs", "rel_lrp", "cp_lrp", "lrp")
GRADIENTS = ("gradient", "gradient_x_input", "smoothgrad", "integrated_gradients", "deeplift")
EVERYWHERE = ("rg", "sg", *GRADIENTS, *PROPAGATION)
CAMS = ("gradcam", "gradcam_pp", "layercam", "hirescam")


class Gated(nn.Module):
    """Attention between embeddings, a squeeze-and-excite product, a norm that is spelled out, a residual sum."""

    def __init__(self):
        super().__init__()
        self.embed, self.block = nn.Linear(3, 4), nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)
        self.squeeze, self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.block(self.embed(x))
        h = h + self.inner(h) * torch.sigmoid(self.squeeze(h.mean(1, keepdim=True)))
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 0.1).sqrt()
        return self.head(h.mean(1))


@functools.cache
def gated():
    torch.manual_seed(0)
    return Gated().double().eval(), torch.randn(2, 5, 3, dtype=F64)


class Told(nn.Module):
    """Softmax values that are added and multiplied: in the games' eyes told, for the gradient as live as all else."""

    def __init__(self):
        super().__init__()
        self.first, self.scores, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        share = torch.softmax(3 * self.scores(h), -1)
        return self.head(torch.relu(h + share) * (1 + share.cumsum(-1)))


@functools.cache
def told():
    torch.manual_seed(0)
    return Told().double().eval(), torch.randn(2, 4, dtype=F64)


@functools.cache
def residual():
    torch.manual_seed(0)
    return small(), photo(2, 12)


def hooked(model, x, path, weights):
    """The output of a module and the gradient of `Σ w · logits` there, by hooks."""
    kept = []
    handle = model.get_submodule(path).register_forward_hook(
        lambda m, i, o: kept.append(o[0] if isinstance(o, tuple) else o)
    )
    with torch.enable_grad():
        logits = model(x.clone().requires_grad_())
        handle.remove()
        (gradient,) = torch.autograd.grad((logits * weights).sum(), kept[0])
    return kept[0].detach(), gradient


@pytest.mark.parametrize(
    "build, path",
    [
        *((gated, path) for path in ("embed", "block", "block.self_attn", "block.linear1", "squeeze", "inner", "head")),
        *((told, path) for path in ("first", "scores")),
        *((residual, path) for path in ("stem", "block", "block.1", "pool", "head")),
    ],
)
def test_gradients_by_hooks(build, path):
    """The whole gradient: through attention weights, norms and both factors of a product."""
    model, x = build()
    weights = torch.zeros_like(model(x)).detach()
    weights[0, 1], weights[1, 2] = 1.0, 1.0
    value, gradient = hooked(model, x, path, weights)
    assert gradient.abs().max() > 0
    found = bp.explain(model, x, [1, 2], method="gradient", layer=path)
    assert found.shape == gradient.shape
    assert_near(found, gradient, what="gradient")
    assert_near(bp.explain(model, x, [1, 2], method="gradient_x_input", layer=path), gradient * value, what="Gr×Inp")
    assert_near(bp.explain(model, x, [1, 2], method="rel_lrp", layer=path), gradient * value, what="RelLRP")
    half = bp.explain(model, x, [1, 2], method="rel_lrp", layer=path, max_norm=0.5)
    assert_near(half.flatten(1).abs().amax(1), [0.5, 0.5], what="largest of each sample")


@pytest.mark.parametrize("path", ["0", "1", "2", "3"])
def test_captum(path):
    """Integrated gradients and DeepLift in a layer's values, as captum has them on a chain of layers."""
    from captum.attr import LayerDeepLift, LayerIntegratedGradients

    torch.manual_seed(2)
    model, x = hand.mlp(6, 7, 5, 3), torch.randn(2, 6, dtype=F64)
    module, zero = model.get_submodule(path), torch.zeros_like(x)
    with torch.enable_grad():
        options = {"n_steps": 20, "method": "gausslegendre"}
        expected = LayerIntegratedGradients(model, module).attribute(x, zero, target=1, **options)
        lifted = LayerDeepLift(model, module).attribute(x, zero, target=1)
        behind, end, start = model[int(path) + 1 :], model[: int(path) + 1](x), model[: int(path) + 1](zero)
        total = 0.0
        for time, share in zip(*np.polynomial.legendre.leggauss(20), strict=True):
            point = (start + (time + 1) / 2 * (end - start)).detach().requires_grad_()
            total = total + share / 2 * torch.autograd.grad(behind(point)[:, 1].sum(), point)[0]
    found = bp.explain(model, x, 1, method="integrated_gradients", steps=20, layer=path)
    assert_near(found, array(((end - start) * total).detach()), what="IntGrad")
    assert_near(found, array(expected.detach()), 1e-7, what="captum, whose points are float32")
    assert_near(bp.explain(model, x, 1, method="deeplift", layer=path), array(lifted.detach()), 1e-8, what="DeepLift")


class Stepped(nn.Module):
    """Factors without a derivative that still move along the path."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.behind(self.first(x))

    def behind(self, h):
        return self.head(torch.tanh(h) * torch.floor(3 * h.abs() + 1) * h.detach())


def test_integrated_gradients_move_what_has_no_derivative():
    """All that follows from the layer's values follows them along the path."""
    torch.manual_seed(0)
    model, x = Stepped().double(), torch.randn(2, 4, dtype=F64)
    end, start, total = model.first(x).detach(), model.first(torch.zeros_like(x)).detach(), 0.0
    for time, share in zip(*np.polynomial.legendre.leggauss(9), strict=True):
        point = (start + (time + 1) / 2 * (end - start)).requires_grad_()
        total = total + share / 2 * torch.autograd.grad(model.behind(point)[:, 1].sum(), point)[0]
    found = bp.explain(model, x, 1, method="integrated_gradients", steps=9, layer="first")
    assert_near(found, array((end - start) * total), what="IntGrad")


@pytest.mark.parametrize("build, path", [(residual, "pool"), (gated, "block")])
def test_sums_at_a_layer_on_the_only_way(build, path):
    """What every path crosses: DeepLift sums to `f(x) − f(0)`, and integrated gradients tend to it."""
    model, x = build()
    rise = (model(x) - model(torch.zeros_like(x)))[:, 1].detach()
    lifted = bp.explain(model, x, 1, method="deeplift", layer=path).flatten(1).sum(1)
    assert_near(lifted, array(rise), 1e-8, what="DeepLift")
    summed = bp.explain(model, x, 1, method="integrated_gradients", steps=200, layer=path).flatten(1).sum(1)
    assert_near(summed, array(rise), 1e-3, what="IntGrad")


def test_smoothgrad_at_a_layer():
    """Mean and deviation of the gradient there over the same draws of noise at the input."""
    model, x = residual()
    weights = nn.functional.one_hot(torch.tensor([1, 1]), 5).double()
    generator = torch.Generator().manual_seed(3)
    scale = 0.2 * (x.flatten(1).amax(1) - x.flatten(1).amin(1)).view(-1, 1, 1, 1)
    draws = [x + scale * torch.randn(x.shape[1:], generator=generator, dtype=F64) for _ in range(4)]
    expected = torch.stack([hooked(model, draw, "stem", weights)[1] for draw in draws])
    for aggregate, wanted in (("mean", expected.mean(0)), ("std", expected.std(0, unbiased=False))):
        params = {"n": 4, "sigma": 0.2, "seed": 3, "aggregate": aggregate}
        assert_near(bp.explain(model, x, 1, method="smoothgrad", layer="stem", **params), wanted, 1e-9, what=aggregate)


def test_stopping_game_is_the_gradient_of_a_relu_network():
    """S9 at every layer."""
    model, x = residual()
    for path in ("stem", "block", "pool", "head"):
        weights = nn.functional.one_hot(torch.tensor([1, 2]), 5).double()
        value, gradient = hooked(model, x, path, weights)
        assert_near(bp.explain(model, x, [1, 2], method="sg", layer=path), gradient, what=path)
        times = bp.explain(model, x, [1, 2], method="sg", layer=path, multiply_by_input=True)
        assert_near(times, gradient * value, what=f"{path}, times the value")


@pytest.mark.parametrize("build, path", [(residual, "block"), (residual, "stem.2"), (gated, "block"), (gated, "inner")])
def test_routing_game_is_its_occupation(build, path):
    """`Γ₊ − Γ₋` there times the logit; in units of one with `output="one"`; weights add up over classes (S26b)."""
    model, x = build()
    keywords = {"tau": 0.7, "epsilon": 0.1}
    play = bp.RoutingGame(model, **keywords).play(x, [1, 2])
    known = play.occupation(path)
    expected = unscaled(known.difference, known.difference_log_scale)
    found = bp.explain(model, x, [1, 2], layer=path, output="one", **keywords)
    assert_near(found, expected, what="output one")
    logit = array(play.value).reshape(-1, *[1] * (found.ndim - 1))
    assert_near(bp.explain(model, x, [1, 2], layer=path, **keywords), expected * logit, what="in units of the logit")
    one, other = (bp.explain(model, x, k, layer=path, **keywords) for k in (0, 1))
    weights = torch.zeros_like(model(x)).detach()
    weights[:, 0], weights[:, 1] = 2.0, -1.0
    assert_near(bp.explain(model, x, weights, layer=path, **keywords), array(2 * one - other), what="weights")


def test_excitation_backprop_is_its_occupation():
    """From 1 at the target, as at the input."""
    model, x = residual()
    modes = {"alpha": 1.0, "beta": 0.0, "epsilon": 0.0, "output": "one", "residual": "proportional"}
    known = bp.RoutingGame(model, **modes).play(x, 1).occupation("pool")
    found = bp.explain(model, x, 1, method="excitation_backprop", layer="pool")
    assert_near(found, unscaled(known.difference, known.difference_log_scale), what="EB")
    assert found.abs().max() > 0


def test_value_projection():
    """At a V projection stands what crosses it within the composite (S23)."""
    model, x = hand.attention(), torch.randn(2, 3, 3, dtype=F64)
    play = bp.RoutingGame(model).play(x, 1)
    known = play.occupation("v")
    expected = unscaled(known.difference, known.difference_log_scale) * array(play.value).reshape(-1, 1, 1)
    assert np.abs(expected).max() > 0
    assert_near(bp.explain(model, x, 1, layer="v"), expected, what="V")


@pytest.mark.parametrize("method", ["lrp_epsilon", "lrp_gamma", "lrp_abs", "lrp"])
def test_propagation_by_loops(method):
    """A layer's relevance is the map of the network behind it; a gate passes it on."""
    torch.manual_seed(2)
    model, x = hand.mlp(6, 7, 5, 3), torch.randn(2, 6, dtype=F64)
    formulas = {
        "lrp_epsilon": lambda a, w, b, r: slow.epsilon(a, w, b, r, 0.1),
        "lrp_gamma": lambda a, w, b, r: slow.gamma(a, w, b, r, 0.1, 0.3),
        "lrp_abs": lambda a, w, b, r: slow.absolute(a, w, r),
        "lrp": lambda a, w, b, r: slow.alpha_beta(a, w, b, r, 2, 1, 0.1),
    }
    params = {
        "lrp_epsilon": {"epsilon": 0.1, "bias": "absorb"},
        "lrp_gamma": {"epsilon": 0.1, "gamma": 0.3, "bias": "absorb"},
        "lrp": {"rules": {"*": bp.lrp.AlphaBeta(2.0, 1.0, 0.1)}},
    }.get(method, {})
    layers = mlp_layers(model)
    for name, depth in (("0", 1), ("1", 1), ("2", 2), ("3", 2)):
        hidden = model[: 2 * depth](x).detach().numpy()
        expected = np.stack([slow.mlp(layers[depth:], row, 1, formulas[method]) for row in hidden])
        assert_near(bp.explain(model, x, 1, method=method, layer=name, **params), expected, what=f"{method} at {name}")


@pytest.mark.parametrize("method", EVERYWHERE)
def test_the_input_is_a_layer(method):
    """The name "input" gives the map itself; any other layer its own shape, in parts as in one."""
    model, x = residual()
    expected = bp.explain(model, x, 1, method=method)
    assert_near(bp.explain(model, x, 1, method=method, layer="input"), array(expected), what="input")
    whole = bp.explain(model, x, 1, method=method, layer="pool")
    assert whole.shape == (2, 6, 6, 6) and torch.isfinite(whole).all() and whole.abs().max() > 0
    parts = bp.explain(model, x, 1, method=method, layer="pool", internal_batch_size=1)
    assert_near(parts, array(whole), what="sample by sample")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rg", "sg", *GRADIENTS, "attn_lrp", "lrp"])
@pytest.mark.parametrize("node", ["encoder.layers.encoder_layer_0.self_attention#2", "encoder.layers.encoder_layer_0"])
def test_samples_that_do_not_come_first(method, node):
    """torchvision's attention has its tokens before its samples: parts are put together where the samples lie."""
    torch.manual_seed(0)
    model, x = revive(torchvision_vit()).double().eval(), photo(3, 32)
    network = bp.capture(model, x)
    whole = bp.explain(network, x, [0, 1, 2], method=method, layer=node)
    parts = bp.explain(network, x, [0, 1, 2], method=method, layer=node, internal_batch_size=2)
    assert whole.shape == parts.shape == tuple(3 if s == -1 else s for s in network.find(node).shape)
    assert whole.abs().max() > 0
    assert_near(parts, array(whole), what="in parts")


@pytest.mark.parametrize("outer, dim, inner", [(1, 0, 1), (1, 0, 3), (2, 0, 1), (2, 1, 3), (1, 2, 1)])
def test_layouts_are_joined(outer, dim, inner):
    """The samples of two batches, each in its place."""
    from backplay.network.layout import Layout

    layout = Layout(dim, outer, inner)

    def numbered(batch):
        shape = [2, 2, 2]
        shape[dim] = outer * batch * inner
        return layout.owners(batch, tuple(shape)).clone()

    found = layout.joined([numbered(3), numbered(2) + 3])
    assert torch.equal(found, numbered(5))


def test_several_inputs():
    """One tensor, however many inputs there are."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(2, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, one, other):
            return self.head(torch.relu(self.a(one) + self.b(other)))

    model, x = Two().double(), (torch.randn(2, 2, dtype=F64), torch.randn(2, 3, dtype=F64))
    for method in ("rg", "gradient_x_input", "lrp_epsilon"):
        assert bp.explain(model, x, 1, method=method, layer="a").shape == (2, 4)


@pytest.mark.parametrize("method", CAMS)
def test_class_activation_maps(method):
    """The same word chooses the feature map; the map keeps the image's size."""
    model, x = residual()
    found = {layer: bp.explain(model, x, 1, method=method, layer=layer) for layer in (None, "stem", "block")}
    assert all(m.shape == (2, 1, 12, 12) for m in found.values())
    assert (found["stem"] - found["block"]).abs().max() > 1e-9
    assert bp.Explainer(model, method, "stem").params["layer"] == "stem"


def test_a_layer_without_influence():
    """Nothing arrives at what the output does not depend on in the method's eyes: refused, no map of zeros."""
    model, x = hand.attention(), torch.randn(2, 3, 3, dtype=F64)
    for method in (
        "rg",
        "sg",
        "excitation_backprop",
        "lrp_epsilon",
        "lrp_gamma",
        "lrp_abs",
        "cp_lrp",
    ):  # queries are told
        with pytest.raises(bp.BackplayError, match=r"layer='q'.* never walked on.*name another node"):
            bp.explain(model, x, 1, method=method, layer="q")
        assert bp.explain(model, x, 1, method=method, layer="v").abs().max() > 0
    for method in ("gradient", "attn_lrp"):
        assert bp.explain(model, x, 1, method=method, layer="q").abs().max() > 0


def test_refusals():
    model, x = residual()
    for method in ("lime", "kernel_shap", "rg_eq"):
        with pytest.raises(ValueError, match=f"layer='stem': '{method}' explains inputs, not layers.*gradcam"):
            bp.explain(model, x, 1, method=method, layer="stem")
    with pytest.raises(
        ValueError, match=r"no node or module named 'stm'.*did you mean stem.*print\(game\.inspect\(x\)\) lists all"
    ):
        bp.explain(model, x, 1, method="rg", layer="stm")
    with pytest.raises(ValueError, match=r"Reynolds carries maps of the image's size back.*leave the layer out"):
        bp.Reynolds(bp.Explainer(model, "gradient", "pool"), n=2, progress=False).attribute(x, 1)
    with pytest.raises(ValueError, match="layer=3 is out of range: it must be the name of a module or node"):
        bp.explain(model, x, 1, method="rg", layer=3)


def test_explainers_keep_their_layer():
    """Shown, sent to other processes, and put on other models."""
    model, x = residual()
    explainer = bp.Explainer(model, "lrp_epsilon", layer="stem", epsilon=0.5)
    assert repr(explainer) == "Explainer(Small, 'lrp_epsilon', epsilon=0.5, layer='stem')"
    expected = array(explainer.attribute(x, 1))
    assert_near(pickle.loads(pickle.dumps(explainer)).attribute(x, 1), expected, what="sent")
    assert_near(explainer.on(bp.capture(model, x)).attribute(x, 1), expected, what="on another")
