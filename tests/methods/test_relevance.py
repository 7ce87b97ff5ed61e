"""Relevance propagation: zennit, loops over neurons, closed forms of AttnLRP and CP-LRP, what adds up to the logit."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from closeness import array, assert_near
from networks import lively, mlp_layers, photo, small_vgg
from oracles import relevance as slow
from toys import picture, tiny_vit

F64 = torch.float64
METHODS = ("lrp_epsilon", "lrp_gamma", "lrp_box", "lrp_abs", "rel_lrp", "cp_lrp")


def explain(model, x, target, method, **params):
    return bp.explain(model, x, target, method=method, **params)


@functools.cache
def vit(fused=True, class_token=True):
    """The small transformer, captured once for all tests."""
    return bp.capture(tiny_vit(fused=fused, class_token=class_token), picture())


@functools.cache
def vgg(biases, dtype=F64):
    """The small VGG, with biases that matter or with none; captured once."""
    torch.manual_seed(0)
    model = small_vgg()
    with torch.no_grad():
        for module in model.modules():
            if biases and getattr(module, "bias", None) is not None:
                module.bias.normal_(0, 0.3)
    return bp.capture(model.to(dtype), photo(2, 24, dtype))


@functools.cache
def residual():
    """Residual blocks with lively batch norms, captured once."""
    torch.manual_seed(0)
    return bp.capture(lively(Residual(), 16), photo(2, 16))


# zennit ---------------------------------------------------------------------------------------------------------------
def zennit(network, x, target, rule, first=None):
    """zennit with one rule for every layer, another for the first one if given; seeded with the logit."""
    from zennit.attribution import Gradient
    from zennit.core import Composite
    from zennit.types import Convolution, Linear

    model = network.model
    layers = [m for m in model.modules() if isinstance(m, (Convolution, Linear))]

    def choose(ctx, name, module):
        if module not in layers:
            return None
        return first if first is not None and module is layers[0] else rule

    mask = nn.functional.one_hot(torch.as_tensor(target), model(x[:1]).shape[1]).to(x.dtype)
    with Gradient(model=model, composite=Composite(module_map=choose)) as attributor:
        return attributor(x.clone(), lambda logits: logits * mask)[1]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("epsilon", [1e-6, 0.25])
def test_zennit_epsilon(epsilon, biases):
    """A bias that absorbs is zennit's convention; without biases sharing them is no different."""
    from zennit.rules import Epsilon

    net, x, target = vgg(biases), photo(3, 24), [3, 0, 9]
    expected = zennit(net, x, target, Epsilon(epsilon))
    found = explain(net, x, target, "lrp_epsilon", epsilon=epsilon, bias="absorb" if biases else "share")
    assert_near(found, expected, 1e-8, what="ε")
    if biases:
        shared = explain(net, x, target, "lrp_epsilon", epsilon=epsilon)
        assert (shared - expected).abs().max() > 1e-3 * expected.abs().max()


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("gamma", [0.1, 2.0])
def test_zennit_gamma(gamma, biases):
    """Both signs of pixels and of the logit: the first target's logit is positive, the second one's negative."""
    from zennit.rules import Gamma

    net, x = vgg(biases), photo(2, 24)
    logits = net.model(x)
    target = [int(logits[0].argmax()), int(logits[1].argmin())]
    assert logits[0].max() > 0 > logits[1].min()
    expected = zennit(net, x, target, Gamma(gamma, stabilizer=0.25))
    settings = {"epsilon": 0.25, "gamma": gamma, "bias": "absorb" if biases else "share"}
    assert_near(explain(net, x, target, "lrp_gamma", **settings), expected, 1e-8, what="γ")


def test_zennit_box():
    """zᴮ below LRP-γ, with the paper's bounds and with the image's own."""
    from zennit.rules import Gamma, ZBox

    net, x, target = vgg(True), photo(1, 24), [3]
    assert float(x.min()) < -1 and float(x.max()) > 1
    rule = functools.partial(Gamma, 0.5, stabilizer=0.25)
    found = explain(net, x, target, "lrp_box", epsilon=0.25, gamma=0.5, bias="absorb", low=-3.0, high=3.0)
    expected = zennit(net, x, target, rule(), ZBox(-3.0, 3.0, stabilizer=0.0))
    assert_near(found, expected, 1e-8, what="[-3, 3]")
    own = explain(net, x, target, "lrp_box", epsilon=0.25, gamma=0.5, bias="absorb")
    expected = zennit(net, x, target, rule(), ZBox(x.min()[None], x.max()[None], stabilizer=0.0))
    assert_near(own, expected, 1e-8, what="the image's own range")


def test_captum():
    """captum's LRP where it is right, a plain ReLU network: its biases absorb."""
    from captum.attr import LRP

    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x = torch.randn(2, 6, dtype=F64)
    expected = LRP(model).attribute(x.clone().requires_grad_(), target=1)
    found = explain(model, x, 1, "lrp_epsilon", epsilon=1e-9, bias="absorb")
    assert_near(found, expected, 1e-8, what="captum")


# loops over neurons ---------------------------------------------------------------------------------------------------
@pytest.fixture
def network():
    """A ReLU network with biases, and a batch of one with its arrays."""
    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x = torch.randn(1, 6, dtype=F64)
    return model, x, mlp_layers(model), x[0].numpy()


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_loops(network, epsilon, share):
    model, x, layers, a = network
    settings = {"epsilon": epsilon, "bias": "share" if share else "absorb"}
    rule = functools.partial(slow.epsilon, eps=epsilon, share=share)
    assert_near(explain(model, x, 1, "lrp_epsilon", **settings), slow.mlp(layers, a, 1, rule)[None], what="ε")
    rule = functools.partial(slow.gamma, eps=epsilon, gam=0.4, share=share)
    expected = slow.mlp(layers, a, 1, rule)
    assert_near(explain(model, x, 1, "lrp_gamma", gamma=0.4, **settings), expected[None], what="γ")
    first = lambda a, weight, bias, r: slow.box(a, weight, r, -2.0, 5.0)  # noqa: E731
    expected = slow.mlp(layers, a, 1, rule, first)
    assert_near(explain(model, x, 1, "lrp_box", gamma=0.4, low=-2.0, high=5.0, **settings), expected[None], what="zᴮ")


def test_loops_absolute(network):
    model, x, layers, a = network
    expected = slow.mlp(layers, a, 1, lambda a, weight, bias, r: slow.absolute(a, weight, r))
    assert_near(explain(model, x, 1, "lrp_abs"), expected[None], what="|z|")


def test_box_through_a_scale():
    """Pixels that the model itself normalises: bounds are pixels, and a negative scale swaps them."""

    class Normalised(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale, self.layer = scale, nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x * self.scale + 0.1)

    for scale in (2.0, -2.0):
        torch.manual_seed(1)
        model, x = Normalised(scale).double(), torch.rand(1, 4, dtype=F64)
        inner = x[0].numpy() * scale + 0.1
        weight, bias = model.layer.weight.detach().numpy(), model.layer.bias.detach().numpy()
        relevance = np.array([0.0, (weight @ inner + bias)[1]])
        low, high = sorted((0.1, scale + 0.1))
        at_layer = slow.box(inner, weight, relevance, low, high)
        expected = at_layer * (x[0].numpy() * scale) / inner  # the offset keeps its part
        assert_near(explain(model, x, 1, "lrp_box", low=0.0, high=1.0), expected[None], what=f"scale {scale}")


# transformers ---------------------------------------------------------------------------------------------------------
def by_hand(network, x, target, rules):
    """The slow pass on each sample."""
    reader = slow.Transformer(network.model)
    return np.stack([slow.propagate(reader, image.numpy(), t, rules) for image, t in zip(x, target, strict=True)])


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("gammas", [(0.0, 0.0, 0.1, 0.0), (0.25, 0.05, 1e-6, 0.25)])
def test_attn_lrp(gammas, class_token):
    """The published rules on a transformer of two blocks and two heads, pure ε and γ composite."""
    conv, lin, epsilon, inner = gammas
    net, x, target = vit(class_token=class_token), picture(), [2, 0]

    def layer(gam):
        return functools.partial(slow.gamma, eps=epsilon, gam=gam)

    rules = slow.Linear(layer(lin), layer(conv), flow=True, eps=inner)
    expected = by_hand(net, x, target, rules)
    settings = {"gamma_conv": conv, "gamma_lin": lin, "epsilon": epsilon, "epsilon_attn": inner}
    assert_near(explain(net, x, target, "attn_lrp", **settings), expected, what="AttnLRP")


@pytest.mark.parametrize("class_token", [True, False])
def test_cp_lrp(class_token):
    """LRP-0 with held weights and deviations; relevance is another one where the softmax is open."""
    net, x, target = vit(class_token=class_token), picture(), [2, 0]
    expected = by_hand(net, x, target, slow.Linear(slow.epsilon, slow.epsilon))
    assert_near(explain(net, x, target, "cp_lrp"), expected, what="CP-LRP")
    pure = {"gamma_conv": 0.0, "gamma_lin": 0.0, "epsilon": 0.0, "epsilon_attn": 0.0}
    opened = array(explain(net, x, target, "attn_lrp", **pure))
    assert np.abs(opened - expected).max() > 1e-2 * np.abs(expected).max()


def test_attn_lrp_is_a_gradient():
    """At ε = γ = 0 AttnLRP is input times gradient with quarters of queries and keys and halves of values."""
    model, x, target = vit().model, picture(), [2, 0]
    pure = {"gamma_conv": 0.0, "gamma_lin": 0.0, "epsilon": 0.0, "epsilon_attn": 0.0}
    found = explain(vit(), x, target, "attn_lrp", **pure)

    def scaled(t, factor):
        return t * factor + t.detach() * (1 - factor)

    def held_norm(norm, x):
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().detach()
        return centred / deviation * norm.weight + norm.bias

    def block(b, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in b.qkv(held_norm(b.norm1, x)).chunk(3, -1))
        q, k, v = scaled(q, 0.25), scaled(k, 0.25), scaled(v, 0.5)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + b.proj((weights @ v).transpose(1, 2).flatten(2))
        z = b.fc1(held_norm(b.norm2, x))
        return x + b.fc2(z * (0.5 * torch.erfc(-z / 2**0.5)).detach())

    leaf = x.clone().requires_grad_()
    y = model.embed(leaf).flatten(2).transpose(1, 2)
    y = torch.cat([model.token.expand(2, -1, -1), y], 1) + model.position
    for b in model.blocks:
        y = block(b, y)
    logits = model.head(held_norm(model.norm, y)[:, 0])
    (gradient,) = torch.autograd.grad(logits[[0, 1], target].sum(), leaf)
    assert_near(found, x * gradient, what="input times gradient")


class Gated(nn.Module):
    """Attention, then a gated unit and a factor that is told alone; `share` and `hold` make it AttnLRP by gradients."""

    def __init__(self):
        super().__init__()
        self.qkv, self.gate, self.up = nn.Linear(4, 12), nn.Linear(4, 5), nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)
        self.share = self.hold = lambda t, *_: t

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = self.share(q @ k.mT, 0.5).softmax(-1)
        x = x + self.share(weights @ v, 0.5)
        z = self.gate(x)
        y = self.share(z * self.hold(torch.sigmoid(z)) * self.up(x), 0.5)
        return self.head((y * (y > -0.1)).mean(1))


def test_attn_lrp_gated():
    """A product of two live factors gives one half to each, the gate among them (prop. 3.2); a mask gets nothing."""
    model, x = Gated().to(F64).eval(), torch.randn(2, 3, 4, dtype=F64)
    pure = {"gamma_conv": 0.0, "gamma_lin": 0.0, "epsilon": 0.0, "epsilon_attn": 0.0}
    found = explain(model, x, 1, "attn_lrp", **pure)
    held = explain(model, x, 1, "cp_lrp")
    model.share = lambda t, part: t * part + (t * (1 - part)).detach()
    model.hold = torch.detach
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert_near(found, x * gradient, what="input times gradient")
    assert (found - held).abs().max() > 1e-3 * held.abs().max()


@pytest.mark.parametrize("method", [*METHODS, "attn_lrp"])
def test_fused_and_spelled_out(method):
    """The same weights give the same map, and each sample its own."""
    x, target = picture(), [2, 0]
    fused, plain = (explain(vit(f), x, target, method) for f in (True, False))
    assert fused.shape == x.shape and fused.abs().max() > 0
    assert_near(plain, fused, what=method)
    ones = torch.cat([explain(vit(), x[k : k + 1], target[k], method) for k in range(2)])
    assert_near(ones, fused, what="one by one")


# what adds up ---------------------------------------------------------------------------------------------------------
class Residual(nn.Module):
    """Two residual blocks with batch norms, one of them with a projection."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.first = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.second = nn.Sequential(nn.Conv2d(16, 24, 3, 2, padding=1, bias=False), nn.BatchNorm2d(24))
        self.skip = nn.Sequential(nn.Conv2d(16, 24, 1, 2, bias=False), nn.BatchNorm2d(24))
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.first(x) + x)
        x = torch.relu(self.second(x) + self.skip(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("method", ["lrp_epsilon", "lrp_gamma", "lrp_box", "lrp_abs"])
def test_conservation(method):
    """Σ map = logit on a residual network with folded batch norms and biases, at ε = 0; a bias that absorbs leaks."""
    net, x = residual(), photo(3, 16)
    logits = net.model(x)
    target = [int(logits[0].argmax()), int(logits[1].argmin()), 1]
    settings = {} if method == "lrp_abs" else {"epsilon": 0.0}
    found = explain(net, x, target, method, **settings)
    assert_near(found.flatten(1).sum(1), logits[[0, 1, 2], target], 1e-9, what="Σ R")
    if settings:
        absorbed = explain(net, x, target, method, bias="absorb", **settings).flatten(1).sum(1)
        assert (absorbed - logits[[0, 1, 2], target]).abs().max() > 0.05


def test_gradient_times_input():
    """LRP-0 of a ReLU network with absorbing biases is input times gradient; so are CP-LRP and RelLRP."""
    net, x, target = residual(), photo(2, 16), [1, 3]
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net.model(leaf)[[0, 1], target].sum(), leaf)
    expected = x * gradient
    assert_near(explain(net, x, target, "cp_lrp"), expected, what="CP-LRP")
    assert_near(explain(net, x, target, "lrp_epsilon", epsilon=0.0, bias="absorb"), expected, what="LRP-0")
    assert_near(explain(net, x, target, "rel_lrp"), expected, what="RelLRP")
    scaled = explain(net, x, target, "rel_lrp", max_norm=0.1)
    assert_near(scaled.flatten(1).abs().amax(1), [0.1, 0.1], what="max_norm, sample by sample")
    for found, plain in zip(scaled, expected, strict=True):
        assert_near(found * plain.abs().max() / 0.1, plain, what="the same map")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_resnet50(dtype):
    """The bar: at the default ε, and without any option, LRP-ε on ResNet-50 adds up to the logit within 1 %."""
    from torchvision.models import resnet50

    model, x = lively(resnet50(weights=None), 64, dtype), photo(2, 64, dtype)
    logits = model(x)
    target = [int(logits[0].argmax()), int(logits[1].argmin())]
    for method, settings in (("lrp_epsilon", {}), ("lrp_gamma", {"epsilon": 1e-6}), ("lrp_abs", {})):
        total = explain(model, x, target, method, **settings).flatten(1).sum(1, dtype=F64)
        assert_near(total / logits[[0, 1], target], [1.0, 1.0], 0.01, what=method)


# names and refusals ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
def test_batch(method):
    """A batch is its samples one by one, on a VGG with biases, in both precisions."""
    for dtype, near in ((F64, 1e-10), (torch.float32, 2e-3)):
        net, x = vgg(True, dtype), photo(3, 24, dtype)
        together = explain(net, x, [1, 2, 3], method)
        assert together.shape == x.shape and together.dtype == dtype and together.abs().max() > 0
        alone = torch.cat([explain(net, x[k : k + 1], k + 1, method) for k in range(3)])
        assert_near(alone, together, near, what=f"{dtype}")


def test_registered():
    """Titles, grids and parameters as the paper has them; every grid entry is accepted."""
    sizes = {"lrp_epsilon": 7, "lrp_gamma": 15, "lrp_box": 3, "lrp_abs": 1, "rel_lrp": 2, "cp_lrp": 1, "attn_lrp": 17}
    known = bp.methods()
    for name, size in sizes.items():
        info = known[name]
        assert len(info.grid) == size and info.family == "relevance" and info.reference
        for entry in info.grid:
            info.check(entry)
    assert {entry["bias"] for entry in known["lrp_epsilon"].grid} == {"absorb"}  # the published rule
    assert known["lrp_epsilon"].params["bias"].default == "share"


def test_refusals():
    model, x = vgg(False), photo(1, 24)
    with pytest.raises(bp.BackplayError, match="reads attention weights"):
        explain(model, x, 0, "attn_lrp")
    with pytest.raises(ValueError, match=r"epsilon=-1 is out of range"):
        explain(model, x, 0, "lrp_epsilon", epsilon=-1)
    with pytest.raises(ValueError, match=r"one of 'share', 'absorb'"):
        explain(model, x, 0, "lrp_epsilon", bias="ignore")
    with pytest.raises(ValueError, match="did you mean gamma"):
        explain(model, x, 0, "lrp_gamma", gama=1.0)
    for bounds, message in (
        ({"low": 3.0, "high": -3.0}, "low=3.0 is out of range"),
        ({"low": 50.0}, "low=50.0 is out of range.*highest value of the image"),
        ({"high": -50.0}, "high=-50.0 is out of range.*lowest value of the image"),
    ):
        with pytest.raises(ValueError, match=message):
            explain(model, x, 0, "lrp_box", **bounds)


@pytest.mark.parametrize("first", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.InstanceNorm2d(3), nn.ReLU()])
def test_box_needs_a_layer_on_the_image(first):
    """Where no layer sees pixels there is no box to speak of, and LRP-γ goes by its own name."""
    layers = first, nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    net = bp.capture(nn.Sequential(*layers).to(F64).eval(), photo(2, 8))
    assert not bp.methods()["lrp_box"].fits(net) and bp.methods()["lrp_gamma"].fits(net)
    with pytest.raises(bp.BackplayError, match=r"sees the input itself.*these do: .*lrp_gamma"):
        explain(net, photo(1, 8), 0, "lrp_box")


def test_box_behind_a_batch_norm():
    """A constant scale before the layer leaves the box a box."""
    layers = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    net = bp.capture(nn.Sequential(*layers).to(F64).eval(), photo(2, 8))
    boxed, plain = (explain(net, photo(1, 8), 0, name) for name in ("lrp_box", "lrp_gamma"))
    assert (boxed - plain).abs().max() > 1e-3 * plain.abs().max()
