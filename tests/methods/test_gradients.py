"""Gradients, averages of gradients, and differences from a baseline."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from closeness import array, assert_near
from families import prepared, torchvision_vit
from held import held
from language_models import build as build_text
from language_models import words
from nets import F64, TARGETS, build, scores
from networks import photo, twin
from oracles import rivals

NETS = ("plain", "residual", "reused", "vit")


def gradient_of(case):
    return rivals.gradient(case.scores, case.x)


class TestGradient:
    @pytest.mark.parametrize("name", NETS)
    def test_autograd(self, name):
        case = build(name)
        assert_near(case.explain("gradient"), gradient_of(case))
        assert_near(case.explain("gradient_x_input"), gradient_of(case) * case.x)

    def test_input_changed_in_place(self):
        """A model may overwrite its input: it overwrites a copy."""
        model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)).to(F64).eval(), torch.randn(2, 4, dtype=F64)
        found = bp.explain(model, x, 1, method="gradient")
        assert_near(found, model[1].weight[1] * (x > 0))


class Squares(nn.Module):
    """Σ w x², with gradient 2 w x."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2, bias=False)

    def forward(self, x):
        return self.head(x.pow(2))


class TestSmoothGrad:
    @pytest.mark.parametrize("name", NETS)
    @pytest.mark.parametrize("aggregate", ["mean", "std"])
    def test_slow_loop(self, name, aggregate):
        """Each image by itself, all maps in one list."""
        case = build(name)
        params = {"n": 7, "sigma": 0.2, "seed": 4, "aggregate": aggregate}
        found = case.explain("smoothgrad", **params)
        for k, target in enumerate(TARGETS):
            slow = rivals.smoothgrad(lambda v, t=target: scores(case.model, v, [t]), case.x[k : k + 1], **params)
            assert_near(found[k], slow[0], what=f"{name} {k}")

    def test_noise_is_a_share_of_the_range(self):
        """On Σ w x² the gradient's deviation is 2|w| times that of the noise, sigma · (max − min) of each sample."""
        model = Squares().to(F64).eval()
        x = torch.tensor([[0.0, 1, 2, 3, 4, 5], [-10.0, 0, 0, 0, 0, 10]], dtype=F64)
        found = bp.explain(model, x, 1, method="smoothgrad", n=4000, sigma=0.3, aggregate="std")
        expected = 2 * model.head.weight[1].abs() * 0.3 * torch.tensor([[5.0], [20.0]])
        assert_near(found / expected.detach(), torch.ones(2, 6), 0.05)

    def test_no_noise_and_one_draw(self):
        """Without noise it is the gradient; one draw has no deviation."""
        case = build("plain")
        assert_near(case.explain("smoothgrad", n=3, sigma=0.0), gradient_of(case))
        assert not case.explain("smoothgrad", n=1, aggregate="std").any()


class TestIntegratedGradients:
    @pytest.mark.parametrize("name", NETS)
    @pytest.mark.parametrize("steps", [1, 5, 21])
    def test_step_by_step(self, name, steps):
        case = build(name)
        found = case.explain("integrated_gradients", steps=steps)
        assert_near(found, rivals.integrated_gradients(case.scores, case.x, steps))

    def test_captum(self):
        """captum's step sizes are float32 numbers."""
        from captum.attr import IntegratedGradients

        case = build("vit")
        options = {"target": list(TARGETS), "n_steps": 8, "method": "gausslegendre"}
        expected = IntegratedGradients(case.model).attribute(case.x, **options)
        assert_near(case.explain("integrated_gradients", steps=8), expected, 1e-6)

    @pytest.mark.parametrize("name", NETS)
    def test_completeness(self, name):
        """50 steps; many more are exact where the network is smooth, its norms being steep near the zero image."""
        case = build(name)
        assert_near(case.explain("integrated_gradients").flatten(1).sum(1), case.rise(), 0.01)
        if name == "vit":
            assert_near(case.explain("integrated_gradients", steps=400).flatten(1).sum(1), case.rise())


def vector_net():
    """Weights and biases by hand: 3 inputs, 2 and 2 hidden neurons, 2 classes."""
    weights = [[[1, -2, 0], [3, 1, -1]], [[1, -1], [2, 1]], [[1, 1], [-1, 2]]]
    biases = [[1, -1], [0, 2], [0, 0]]
    layers = []
    for w, b in zip(weights, biases, strict=True):
        layer = nn.Linear(len(w[0]), len(w))
        layer.weight.data, layer.bias.data = torch.tensor(w, dtype=F64), torch.tensor(b, dtype=F64)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(F64).eval()


RULES = {"default": (1.0, 0.0), "gamma": (1.0, 0.25), "zplus": (0.0, 1.0)}


class TestDeepLift:
    def test_captum(self):
        """captum loses the rule of a pooling that touches an activation: here none does."""
        from captum.attr import DeepLift

        torch.manual_seed(2)
        first, second, third = (nn.Conv2d(c, 6, 3, padding=1) for c in (3, 6, 6))
        head = nn.Flatten(), nn.Linear(216, 8), nn.Softplus(), nn.Linear(8, 5)
        model = nn.Sequential(first, nn.ReLU(), second, nn.MaxPool2d(2), third, nn.Tanh(), *head).to(F64).eval()
        x = photo(3, 12).requires_grad_()
        with pytest.warns(UserWarning, match="Setting forward, backward hooks"):
            expected = DeepLift(model).attribute(x, target=list(TARGETS))
        assert_near(bp.explain(model, x, TARGETS, method="deeplift"), expected)

    @pytest.mark.parametrize("seed", range(3))
    def test_neuron_by_neuron(self, seed):
        """Every contribution of every neuron under each rule, on networks by hand and at random."""
        torch.manual_seed(seed)
        random = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)).to(F64).eval()
        model = vector_net() if seed == 0 else random
        layers = [m for m in model if isinstance(m, nn.Linear)]
        matrices = [array(m.weight) for m in layers], [array(m.bias) for m in layers]
        x = torch.randn(6, layers[0].in_features, dtype=F64)
        for rule, weights in RULES.items():
            found = bp.explain(model, x, 1, method="deeplift", rule=rule)
            slow = [rivals.deeplift_mlp(*matrices, array(row), 1, *weights) for row in x]
            assert_near(found, np.stack(slow), what=rule)

    def test_by_hand(self):
        """x = (1, 1, 0): of the first layer's neurons one falls and one rises."""
        found = bp.explain(vector_net(), torch.tensor([[1.0, 1, 0]], dtype=F64), 0, method="deeplift")
        # z₁ = (0, 3) from (1, −1): Δa = (−1, 3), slopes 1 and 3/4
        # z₂ = (−3, 5) from (1, 4): Δa = (−1, 1), slopes 1/4 and 1
        # multipliers of a₂: (1, 1), of z₂: (1/4, 1), of a₁: (9/4, 3/4), of z₁: (9/4, 9/16), of x: (63/16, −63/16, …)
        assert_near(found, torch.tensor([[63 / 16, -63 / 16, 0.0]]))

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("name", [*NETS, "sharp vit"])
    def test_completeness(self, name, rule):
        """The map sums to f(x) − f(0), attention included."""
        case = build(name)
        assert_near(case.explain("deeplift", rule=rule).flatten(1).sum(1), case.rise())

    @pytest.mark.parametrize("name", ["residual", "vit"])
    def test_float32(self, name):
        case = build(name)
        single = bp.explain(twin(case.model, torch.float32), case.x.float(), TARGETS, method="deeplift")
        assert_near(single.flatten(1).double().sum(1), case.rise(), 1e-4)
        assert_near(single, case.explain("deeplift"), 1e-3)

    def test_spelled_attention(self):
        """The sum holds where attention is spelled out in several operators."""
        torch.manual_seed(5)
        model, x = prepared(torchvision_vit(fused=False)), photo(2, 32)
        with torch.no_grad():
            expected = (model(x) - model(torch.zeros_like(x)))[:, 1]
        assert_near(bp.explain(model, x, 1, method="deeplift").flatten(1).sum(1), expected, 1e-9)

    @pytest.mark.parametrize("name", ["reused", "vit"])  # in a zero image all places of a pooling window tie
    def test_near_the_baseline(self, name):
        """Where nothing differs there is no ratio: no map at the baseline, gradient times input close to it."""
        case = build(name)
        assert not replace(case, x=torch.zeros_like(case.x)).explain("deeplift").any()
        near = replace(case, x=1e-9 * case.x)
        assert_near(near.explain("deeplift"), near.explain("gradient_x_input"), 1e-6)

    def test_gamma_joins_the_rules(self):
        """γ → 0 is the default rule, a large γ the z⁺ rule."""
        ask = functools.partial(build("reused").explain, "deeplift")
        assert_near(ask(rule="gamma", gamma=1e-9), ask(), 1e-6)
        assert_near(ask(rule="gamma", gamma=1e9), ask(rule="zplus"), 1e-6)


def test_dave():
    """S36: gradients of a twin with held attention, gates and statistics, averaged and multiplied by the input."""

    class Held:
        def attribute(self, x, target=None):
            return rivals.gradient(lambda v: scores(still, v, target), x)

    case = build("vit")
    still = held(case.model)
    options = {"n": 5, "max_angle": 20, "max_shift": 0.1, "flip": 0.5, "noise": 0.5, "seed": 3}
    expected = bp.Reynolds(Held(), **options).attribute(case.x, TARGETS) * case.x
    found = case.explain("dave", n=5, seed=3)
    assert_near(found, expected, 1e-9)
    assert (case.explain("dave", n=5, seed=4) - found).abs().max() > 1e-3


@pytest.fixture(scope="module")
def bert():
    """A small text model, its network, and two sentences of which one is padded."""
    return *build_text("bert"), words(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))


class TestText:
    """Inputs as dicts of forward keywords."""

    def test_gradient(self, bert):
        model, network, x = bert
        embeds = x["inputs_embeds"]
        expected = rivals.gradient(lambda v: model(**x | {"inputs_embeds": v}).logits[:, 1], embeds)
        assert_near(bp.explain(network, x, 1, method="gradient"), expected)
        assert_near(bp.explain(network, x, 1, method="gradient_x_input"), expected * embeds)
        assert_near(bp.explain(network, x, 1, method="smoothgrad", n=5, sigma=0.0), expected)

    @pytest.mark.parametrize("params, bound", [({"steps": 400}, 1e-6), ({"rule": "default"}, 1e-10)])
    def test_completeness(self, bert, params, bound):
        model, network, x = bert
        method = "integrated_gradients" if "steps" in params else "deeplift"
        zero = x | {"inputs_embeds": torch.zeros_like(x["inputs_embeds"])}
        with torch.no_grad():
            expected = (model(**x).logits - model(**zero).logits)[:, 1]
        found = bp.explain(network, x, 1, method=method, **params)
        assert found.shape == x["inputs_embeds"].shape
        assert_near(found.flatten(1).sum(1), expected, bound)
