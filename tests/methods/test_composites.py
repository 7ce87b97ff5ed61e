"""LRP composites and rules by layer: loops over neurons, zennit, a transformer by hand; patterns and bad rules."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import backplay as bp
import hand
from backplay.methods.composites import COMPOSITES
from closeness import array, assert_near
from networks import family, lively, mlp_layers, photo, small_vgg, steady
from oracles import relevance as slow
from toys import picture, tiny_vit

F64 = torch.float64
STABILISER = 1e-6
FIVE = (
    "epsilon_plus",
    "epsilon_plus_flat",
    "epsilon_alpha2_beta1",
    "epsilon_alpha2_beta1_flat",
    "epsilon_gamma_box",
)


def lrp(model, x, target, **params):
    return bp.explain(model, x, target, method="lrp", **params)


def test_the_five():
    """Their names are zennit's."""
    from zennit.composites import COMPOSITES as ZENNIT

    assert set(COMPOSITES) == set(FIVE) <= set(ZENNIT)


# loops over neurons ---------------------------------------------------------------------------------------------------
RULES = {
    "Epsilon": (bp.lrp.Epsilon(0.3), lambda a, w, b, r: slow.epsilon(a, w, b, r, 0.3)),
    "Epsilon, shared": (bp.lrp.Epsilon(0.3, "share"), lambda a, w, b, r: slow.epsilon(a, w, b, r, 0.3, True)),
    "Gamma": (bp.lrp.Gamma(0.4, 0.2), lambda a, w, b, r: slow.gamma(a, w, b, r, 0.2, 0.4)),
    "ZPlus": (bp.lrp.ZPlus(), lambda a, w, b, r: slow.alpha_beta(a, w, b, r, 1, 0, STABILISER)),
    "AlphaBeta": (bp.lrp.AlphaBeta(1.5, 0.5, 0.1), lambda a, w, b, r: slow.alpha_beta(a, w, b, r, 1.5, 0.5, 0.1)),
    "Flat": (bp.lrp.Flat(0.1), lambda a, w, b, r: slow.blind(np.ones_like(w), 0 * b, r, 0.1)),
    "WSquare": (bp.lrp.WSquare(), lambda a, w, b, r: slow.blind(w**2, b**2, r, STABILISER)),
    "Absolute": (bp.lrp.Absolute(0.1), lambda a, w, b, r: slow.absolute(a, w, r, 0.1)),
}


@functools.cache
def mlp():
    """A ReLU network with biases, signed inputs, and the same as arrays."""
    torch.manual_seed(4)
    model = hand.mlp(6, 7, 5, 3).requires_grad_(False)
    model[4].bias.copy_(torch.tensor([0.5, -0.5, 0.1]))  # logits of both signs
    return model, torch.randn(2, 6, dtype=F64), mlp_layers(model)


def by_hand(x, layers, target, rule, first=None):
    return np.stack([slow.mlp(layers, sample.numpy(), target, rule, first) for sample in x])


@pytest.mark.parametrize("name", RULES)
def test_rules_by_loops(name):
    """Each rule in every layer, for logits of both signs; and in the first layer alone, ε above."""
    model, x, layers = mlp()
    rule, formula = RULES[name]
    assert model(x).min() < 0 < model(x).max()
    for target in range(3):
        expected = by_hand(x, layers, target, formula)
        assert_near(lrp(model, x, target, rules={"*": rule}), expected, what=f"{name}, target {target}")
        expected = by_hand(x, layers, target, RULES["Epsilon"][1], formula)
        found = lrp(model, x, target, rules={"*": RULES["Epsilon"][0], "0": rule})
        assert_near(found, expected, what=f"{name} in the first layer, target {target}")


def test_box_by_loops():
    """Bounds as numbers, as tensors for each input, and the sample's own."""
    model, x, layers = mlp()
    epsilon = RULES["Epsilon"][1]
    low, high = torch.linspace(-5, -4, 6), torch.linspace(3, 4, 6)
    for given, bounds in (((-4.0, 5.0), (-4.0, 5.0)), ((low, high), (low.numpy(), high.numpy()))):
        formula = lambda a, w, b, r, bounds=bounds: slow.box(a, w, r, *bounds, 0.1)  # noqa: E731
        rules = {"*": RULES["Epsilon"][0], "0": bp.lrp.Box(*given, 0.1)}
        assert_near(lrp(model, x, 1, rules=rules), by_hand(x, layers, 1, epsilon, formula), what=f"{given}")
    own = lambda a, w, b, r: slow.box(a, w, r, a.min(), a.max(), STABILISER)  # noqa: E731
    rules = {"*": RULES["Epsilon"][0], "0": bp.lrp.Box()}
    assert_near(lrp(model, x, 1, rules=rules), by_hand(x, layers, 1, epsilon, own), what="the sample's own")


def test_pass():
    """Unchanged, where the shapes are the same."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double(), torch.randn(2, 4, dtype=F64)
    hidden = model[0](x).detach()
    expected = lrp(nn.Sequential(nn.ReLU(), model[2]), hidden, 1, rules={"1": bp.lrp.Epsilon()})
    assert hidden.max() > 0 and expected.abs().max() > 0
    assert_near(lrp(model, x, 1, rules={"2": bp.lrp.Epsilon(), "0": bp.lrp.Pass()}), expected, what="passed")


def test_outputs_of_zero():
    """An output of exactly 0 hands nothing on under γ; under the blind rules it hands on as all do."""
    net, x = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double(), torch.tensor([[1.0, 1.0, 0.0]], dtype=F64)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -1.0, 0.5], [2.0, 1.0, -1.0]]))
        net[0].bias.zero_()
    layers = mlp_layers(net)
    for name in ("Gamma", "Flat", "WSquare", "AlphaBeta", "ZPlus"):
        rule, formula = RULES[name]
        flat = lambda a, w, b, r: slow.blind(np.ones_like(w), 0 * b, r, STABILISER)  # noqa: E731
        values = [x[0].numpy(), layers[0][0] @ x[0].numpy()]
        top = flat(values[1], *layers[1], layers[1][0] @ values[1] + layers[1][1])
        expected = formula(values[0], *layers[0], top)
        assert_near(lrp(net, x, 0, rules={"0": rule, "1": bp.lrp.Flat()}), expected[None], what=name)


# zennit ---------------------------------------------------------------------------------------------------------------
def zennit(model, x, target, name, canonizers=(), **options):
    """A composite of zennit by its name, seeded with the logit."""
    from zennit.attribution import Gradient
    from zennit.composites import COMPOSITES as ZENNIT

    composite = ZENNIT[name](canonizers=list(canonizers), **options)
    mask = nn.functional.one_hot(torch.as_tensor(target), model(x[:1]).shape[1]).to(x.dtype)
    with Gradient(model=model, composite=composite) as attributor:
        return attributor(x.clone(), lambda logits: logits * mask)[1].detach()


def bounds(name, x):
    """Bounds for each channel where the composite takes them."""
    if name != "epsilon_gamma_box":
        return {}
    channels = torch.arange(3, dtype=x.dtype).view(1, 3, 1, 1)
    return {"low": x.min() - 0.1 - 0.1 * channels, "high": x.max() + 0.2 + 0.1 * channels}


@functools.cache
def vgg():
    """A small VGG whose biases matter."""
    torch.manual_seed(0)
    model = small_vgg()
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias.normal_(0, 0.3)
    return model.double().eval()


@pytest.mark.parametrize("name", FIVE)
def test_zennit_on_a_small_vgg(name):
    """Convolutions with padding and biases, max pooling, linear layers, three samples, in float64."""
    model, x, target = vgg(), photo(3, 24), [3, 0, 9]
    expected = zennit(model, x, target, name, **bounds(name, x))
    assert_near(lrp(model, x, target, composite=name, **bounds(name, x)), expected, 1e-10, what=name)
    assert expected.abs().max() > 0


class Averaging(nn.Module):
    """Average pooling of signed values, a stride, groups and a dilation; a linear layer last."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=2, dilation=2), nn.AvgPool2d(3, 2, 1), nn.LeakyReLU(),
            nn.Conv2d(6, 6, 3, groups=3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("name", FIVE)
def test_zennit_on_pooling_and_other_gates(name):
    torch.manual_seed(0)
    model, x = Averaging().double().eval(), photo(2, 24)
    expected = zennit(model, x, [1, 3], name, **bounds(name, x))
    assert_near(lrp(model, x, [1, 3], composite=name, **bounds(name, x)), expected, 1e-9, what=name)


def folded(model):
    """A copy of a ResNet with its batch norms folded into the convolutions before them.

    zennit's own canonizer leaves a factor of 1/√(1 + 1e-5) behind at each of them.
    """
    model = copy.deepcopy(model)
    pairs = [(m, conv, norm) for m in model.modules() for conv, norm in _norms(m)]
    for module, conv, norm in pairs:
        fused = fuse_conv_bn_eval(module.get_submodule(conv), module.get_submodule(norm))
        parent, _, last = conv.rpartition(".")
        setattr(module.get_submodule(parent), last, fused)
        parent, _, last = norm.rpartition(".")
        setattr(module.get_submodule(parent), last, nn.Identity())
    return model


def _norms(module):
    """The convolutions of a block, or of the whole, with the batch norms behind them, by name."""
    if hasattr(module, "bn1"):
        yield from ((f"conv{k}", f"bn{k}") for k in (1, 2, 3) if hasattr(module, f"bn{k}"))
    if getattr(module, "downsample", None) is not None:
        yield "downsample.0", "downsample.1"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_zennit_on_a_residual_network(name):
    """zennit needs batch norms folded and a canonizer for the sums; here they are in the graph."""
    from zennit.torchvision import ResNetCanonizer

    torch.manual_seed(0)
    model, x = lively(family("resnet18"), 32), photo(2, 32)
    expected = zennit(folded(model), x, [1, 3], name, [ResNetCanonizer()], **bounds(name, x))
    found = lrp(model, x, [1, 3], composite=name, **bounds(name, x))
    assert float((found - expected).abs().sum() / expected.abs().sum()) < 1e-8


@pytest.fixture(scope="module", params=["vgg16", "resnet50"])
def full_size(request):
    """A captured network in float32, the same as zennit takes it with its canonizers, an image, and its class."""
    import torchvision.models
    from zennit.torchvision import ResNetCanonizer

    torch.manual_seed(0)
    model = getattr(torchvision.models, request.param)(weights=None).eval()
    x = photo(1, 224, torch.float32)
    if request.param == "vgg16":
        model = steady(model)
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):  # torchvision starts them at 0
                parameter.data.normal_(0, 0.1)
        theirs, canonizers = model, []
    else:
        model = lively(model, 64, torch.float32)
        theirs, canonizers = folded(model), [ResNetCanonizer()]
    target = [int(model(x).argmax())]  # of a logit near 0 neither of the two has many digits in float32
    return bp.capture(model, x), theirs, canonizers, x, target


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_zennit_at_full_size(full_size, name):
    """VGG-16 and ResNet-50 in float32 on an image of 224: within 1e-4 (relative L1)."""
    network, theirs, canonizers, x, target = full_size
    expected = zennit(theirs, x, target, name, canonizers, **bounds(name, x))
    found = lrp(network, x, target, composite=name, **bounds(name, x))
    assert float((found - expected).abs().sum() / expected.abs().sum()) < 1e-4


# a transformer --------------------------------------------------------------------------------------------------------
LAYERS = {
    "epsilon_plus": RULES["ZPlus"][1],
    "epsilon_plus_flat": lambda a, w, b, r: slow.blind(np.ones_like(w), 0 * b, r, STABILISER),
    "epsilon_alpha2_beta1": lambda a, w, b, r: slow.alpha_beta(a, w, b, r, 2, 1, STABILISER),
    "epsilon_gamma_box": lambda a, w, b, r: slow.box(a, w, r, -4.0, 4.0, STABILISER),
}


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_transformer(name, class_token):
    """Where zennit has no rules: attention as in AttnLRP, norms and offsets pass, sums and pooling share."""
    net, x, target = bp.capture(tiny_vit(class_token=class_token), picture()), picture(), [2, 0]
    dense = lambda a, w, b, r: slow.epsilon(a, w, b, r, STABILISER)  # noqa: E731
    rules = slow.Composite(dense, LAYERS[name], eps=0.25)
    reader = slow.Transformer(net.model)
    expected = np.stack([slow.propagate(reader, i.numpy(), t, rules) for i, t in zip(x, target, strict=True)])
    box = {"low": -4.0, "high": 4.0} if name == "epsilon_gamma_box" else {}
    assert float(x.abs().max()) < 4
    assert_near(lrp(net, x, target, composite=name, **box), expected, 1e-9, what=name)


def test_attention_is_attn_lrp():
    """Without norms and sums a composite's ε rule is AttnLRP's."""
    model, x = hand.attention(), torch.randn(2, 3, 3, dtype=F64)
    expected = bp.explain(model, x, 1, method="attn_lrp", epsilon=1e-6, gamma_lin=0.0)
    assert_near(lrp(model, x, 1, composite="epsilon_plus"), expected, what="AttnLRP")


# patterns -------------------------------------------------------------------------------------------------------------
def test_patterns():
    """A pattern holds in the layers inside the modules that fit; later ones win; the composite does the rest."""
    layers = list(vgg())
    cut = next(k for k, m in enumerate(layers) if isinstance(m, nn.Flatten))
    model = nn.Sequential(nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:]))
    x, target, first = photo(1, 24), 3, "0.0"
    flat = lrp(model, x, target, composite="epsilon_plus_flat")
    for rules in (
        {first: bp.lrp.Flat()},
        {"0": bp.lrp.ZPlus(), first: bp.lrp.Flat()},
        {"0.*": bp.lrp.ZPlus(), first: bp.lrp.Flat()},
        {"*": bp.lrp.WSquare(), "0.?": bp.lrp.ZPlus(), "1": bp.lrp.Epsilon(), first: bp.lrp.Flat()},
    ):
        assert_near(lrp(model, x, target, composite="epsilon_plus", rules=rules), flat, what=f"{rules}")
    other = lrp(model, x, target, rules={first: bp.lrp.Flat(), "0.*": bp.lrp.ZPlus()})
    assert (other - flat).abs().max() > 1e-3 * flat.abs().max()
    gamma = {"0.*": bp.lrp.Gamma(0.25), first: bp.lrp.Box(-4.0, 4.0)}
    expected = lrp(model, x, target, composite="epsilon_gamma_box", low=-4.0, high=4.0)
    assert_near(lrp(model, x, target, rules=gamma), expected, what="the box composite in rules")
    for bounds, words in (({"low": -4.0, "high": 0.01}, "high=0.01"), ({"low": -0.01}, "low=-0.01")):
        with pytest.raises(ValueError, match=f"{words} is out of range: the input holds .*outside of the box"):
            lrp(model, x, target, composite="epsilon_gamma_box", **bounds)
    exact = {"low": x.amin((0, 2, 3))[:, None, None].float(), "high": x.amax((0, 2, 3))[:, None, None].float()}
    assert torch.isfinite(lrp(model, x, target, composite="epsilon_gamma_box", **exact)).all()  # rounded


@pytest.mark.parametrize(
    "params, words",
    [
        ({"rules": {"nowhere.*": bp.lrp.Flat()}}, "'nowhere.\\*' matches no layer with weights"),
        ({"rules": {"1": bp.lrp.Flat()}}, "'1' matches no layer with weights"),  # a gate
        ({"rules": {"0": bp.lrp.Flat}}, r"rules\['0'\]=Flat is a class of rules; give a rule, Flat\(\)"),
        (
            {"rules": {"0": "flat"}},
            r"rules\['0'\]='flat' is no rule \(did you mean Flat\?\): bp.lrp has Absolute, AlphaBeta",
        ),
        ({"rules": [bp.lrp.Flat()]}, "rules=.* is out of range: it must be a mapping"),
        ({"rules": {0: bp.lrp.Flat()}}, "rules=.* is out of range: it must be a mapping"),
        ({"rules": {"0": bp.lrp.Pass()}}, "Pass does not fit the layer '0': its input has another shape"),
        ({"rules": {"2": bp.lrp.Box()}}, "Box does not fit the layer '2': it is for layers that see the input itself"),
        ({"rules": {"0": bp.lrp.Box(torch.zeros(5), 9.0)}}, "a bound of shape .* does not fit an input"),
        ({"rules": {"0": bp.lrp.Box(-0.01, 0.01)}}, "is out of range: the input holds .*, outside of the box"),
        ({"rules": {"0": bp.lrp.Box(high=-50.0)}}, "high=-50.0 is out of range: the input holds"),
        ({"composite": "epsilon_plus", "low": 0.0}, "low=0.0 is idle with composite='epsilon_plus'"),
        ({"composite": "epsilon_gamma_box", "low": 0.0}, "no convolution sees the input"),
        ({"composite": "epsilon_gamma"}, "composite='epsilon_gamma' is out of range: it must be one of"),
        ({"composite": "epsilon_gamma_box", "low": "deep"}, "low='deep' is out of range: it must be a finite number"),
        ({"composite": "epsilon_gamma_box", "low": 2.0, "high": 1.0}, "low=2.0 is out of range: it must be below"),
    ],
)
def test_refusals(params, words):
    """By name, in two lines at most, the model as it was."""
    model, x, _ = mlp()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ValueError, match=words) as refused:
        lrp(model, x, 1, **params)
    assert isinstance(refused.value, bp.BackplayError) and str(refused.value).count("\n") < 2
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: bp.lrp.Epsilon(-1.0), "Epsilon: epsilon=-1.0 is out of range"),
        (lambda: bp.lrp.Epsilon(bias="keep"), "Epsilon: bias='keep' is out of range"),
        (lambda: bp.lrp.Gamma(-0.1), "Gamma: gamma=-0.1 is out of range"),
        (lambda: bp.lrp.AlphaBeta(2.0, 2.0), "alpha=2.0 and beta=2.0 must differ by 1"),
        (lambda: bp.lrp.AlphaBeta(0.5, -0.5), "AlphaBeta: beta=-0.5 is out of range"),
        (lambda: bp.lrp.Box(1.0, 0.0), "low=1.0 is out of range: it must be below high=0.0"),
        (lambda: bp.lrp.Box(float("nan")), "Box: low=nan is out of range"),
        (lambda: bp.lrp.Box(torch.tensor([float("inf")])), "Box: low=.* is out of range"),
    ],
)
def test_rules_check_themselves(make, words):
    with pytest.raises(ValueError, match=words) as refused:
        make()
    assert isinstance(refused.value, bp.BackplayError)


def test_rules_are_values():
    """Shown with their numbers, sent to other processes, handed on by explainers."""
    model, x, _ = mlp()
    rules = {"*": bp.lrp.AlphaBeta(2, 1), "0": bp.lrp.Box(-9.0, 9.0)}
    assert repr(rules["*"]) == "AlphaBeta(alpha=2.0, beta=1.0, epsilon=1e-06)"
    explainer = bp.Explainer(model, "lrp", rules=rules)
    found = explainer.attribute(x, 1)
    again = pickle.loads(pickle.dumps(explainer)).attribute(x, 1)
    assert_near(again, array(found), what="sent and back")
    assert np.isfinite(array(found)).all()
