"""The Routing Game at τ = 1 is αβ-LRP-ε (S14, thm:ab-recovery): zennit, a loop over neurons, and toy nets by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from closeness import assert_near, l1_relative, unscaled
from networks import mlp_layers, photo, small_vgg, without_biases
from oracles import matrices


def zennit_relevance(model, x, target, alpha, beta, epsilon):
    """zennit's AlphaBeta on every convolution and linear layer, seeded with the logit."""
    from zennit.attribution import Gradient
    from zennit.core import Composite
    from zennit.rules import AlphaBeta
    from zennit.types import Convolution, Linear

    def rule(ctx, name, module):
        if isinstance(module, (Convolution, Linear)):
            return AlphaBeta(alpha=alpha, beta=beta, stabilizer=epsilon)
        return None

    composite = Composite(module_map=rule)
    mask = torch.nn.functional.one_hot(torch.as_tensor(target), model(x[:1]).shape[1]).to(x.dtype)
    with Gradient(model=model, composite=composite) as attributor:
        _, relevance = attributor(x.clone(), lambda logits: logits * mask)
    return relevance


@pytest.mark.parametrize("alpha, beta", [(2.0, 1.0), (1.0, 0.0), (1.5, 0.5)])
@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 0.25])
def test_zennit_on_small_vgg(alpha, beta, epsilon):
    """S14, thm:lrp-recovery, eq:lrp-recovery: zennit's stabiliser stands where ε stands in eq:lrp-eps-recursion."""
    model, x, target = small_vgg(), photo(3, 24), [3, 0, 9]
    expected = zennit_relevance(model, x, target, alpha, beta, epsilon)
    found = bp.RoutingGame(alike(model, x), alpha=alpha, beta=beta, epsilon=epsilon).attribute(x, target)
    assert expected.abs().max() > 0
    assert_near(found, expected, what="relevance")


@pytest.mark.slow
def test_zennit_on_vgg16():
    """Issue bar: VGG-16 at 224×224 in float32 against zennit's AlphaBeta with biases zeroed."""
    from torchvision.models import vgg16

    model = without_biases(vgg16(weights=None)).eval()
    x = photo(1, 224, torch.float32)
    target = model(x).argmax(1)
    expected = zennit_relevance(model, x, target, 2.0, 1.0, 1e-6)
    found = bp.RoutingGame(alike(model, x), alpha=2.0, beta=1.0, epsilon=1e-6).attribute(x, target)
    assert l1_relative(found, expected) < 1e-4


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.5])
def test_loop_over_neurons(epsilon):
    """eq:lrp-eps-recursion, eq:lrp-eps-recovery at every layer of an MLP; the bias is in no denominator (S15)."""
    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x = torch.randn(1, 6, dtype=torch.float64)
    relevance = matrices.lrp(mlp_layers(model), x[0].numpy(), 1, epsilon=epsilon)
    game = bp.RoutingGame(alike(model, x), epsilon=epsilon)
    play = game.play(x, 1)
    assert_near(play.attribution(), relevance[0][None], what="input")
    logit = float(play.value[0])
    for path, expected in (("input", relevance[0]), ("1", relevance[1]), ("3", relevance[2]), ("4", relevance[3])):
        occupation = play.occupation(path)
        signed = unscaled(occupation.difference, occupation.difference_log_scale) * logit
        assert_near(signed, expected[None], what=f"Γ times the logit at {path}")


def test_both_players():
    """eq:routing-per-state-recursion: a player has `α π₊` of its own mass above and `β π₋` of the other's."""
    epsilon, alpha, beta = 0.25, 1.5, 0.5
    model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x = torch.randn(1, 6, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), epsilon=epsilon, alpha=alpha, beta=beta).play(x, 1)

    def visits(name):
        found = play.occupation(name)
        return [unscaled(v, found.log_scale)[0] for v in (found.plus, found.minus)]

    for above, layer, below in (("4", 4, "3"), ("2", 2, "1"), ("0", 0, "input")):
        c = model[layer].weight.detach().numpy() * model[:layer](x).detach().numpy()
        up, down = (part / (part.sum(1, keepdims=True) + epsilon) for part in (np.maximum(c, 0), np.maximum(-c, 0)))
        (plus, minus), found = visits(above), visits(below)
        assert_near(found[0], alpha * up.T @ plus + beta * down.T @ minus, what=f"+ at {below}")
        assert_near(found[1], alpha * up.T @ minus + beta * down.T @ plus, what=f"− at {below}")
    assert found[1].max() > 1e-3


def toy(first_weight=2.0):
    """evidence 4: W1 = 2·ones(3,3) but for its first entry, ReLU, W2 = 3·ones(1,3), no bias."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[0].weight[0, 0] = first_weight
        model[2].weight.fill_(3.0)
    return model


TOY_INPUT = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize("options", [{"alpha": 1.0, "beta": 0.0}, {"empty_stream": "reroute"}])
def test_toy_without_negative_weights(options):
    """By hand: relevance follows the shares 1 : 2 : 3 of the logit 108; rerouting makes α, β = 2, 1 agree (S16)."""
    found = bp.RoutingGame(toy(), epsilon=0.0, **options).attribute(TOY_INPUT, 0)
    assert_near(found, np.array([[18.0, 36.0, 54.0]]), what="(18, 36, 54)")


def test_toy_with_a_negative_weight():
    """By hand: with W1[0,0] = −2 the z⁺ rule gives (12, 33.6, 50.4)."""
    found = bp.RoutingGame(toy(-2.0), alpha=1.0, beta=0.0, epsilon=0.0).attribute(TOY_INPUT, 0)
    assert_near(found, np.array([[12.0, 33.6, 50.4]]), what="(12, 33.6, 50.4)")


def test_toy_with_empty_streams():
    """S16, evidence 4: without negative contributions the rule α = 2, β = 1 doubles relevance at each of two layers."""
    found = bp.RoutingGame(toy(), alpha=2.0, beta=1.0, epsilon=0.0).attribute(TOY_INPUT, 0)
    assert_near(found, 4 * np.array([[18.0, 36.0, 54.0]]), what="4 × the logit's shares")
    play = bp.RoutingGame(toy(), alpha=2.0, beta=1.0, epsilon=0.0).play(TOY_INPUT, 0)
    assert_near(play.cemetery, [0.75], what="half of the walk ends at each of the two layers")


def test_toy_outside_option():
    """S13 by hand: ε = 12 against streams of 12 and 36 sends a half and a quarter of the mass to the cemetery."""
    found = bp.RoutingGame(toy(), alpha=1.0, beta=0.0, epsilon=12.0, output="one").attribute(TOY_INPUT, 0)
    expected = np.array([[1.0, 2.0, 3.0]]) / 6 * (108 / 120) * (12 / 24)
    assert_near(found, expected, what="outside option")


def test_conservation():
    """At ε = 0 with both streams alive everywhere, αβ-LRP is conservative: relevances add up to the logit."""
    model = nn.Sequential(nn.Linear(40, 30, bias=False), nn.ReLU(), nn.Linear(30, 3, bias=False)).double()
    x = torch.randn(4, 40, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), epsilon=0.0).play(x, 2)
    assert_near(play.attribution().sum(1), play.value, what="Σ R = logit")


def test_batch_norm_is_folded():
    """S4: contributions refer to the folded weights, so folding by hand changes nothing; the shift is a bias (S15)."""
    conv, norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([-1.0, 0.5, 2.0]))
        for tensor in (norm.bias, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2)
    head = [nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)]
    model = nn.Sequential(conv, norm, *head).double().eval()
    folded = nn.Sequential(torch.nn.utils.fuse_conv_bn_eval(model[0], model[1]), *head).double().eval()
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    for options in ({"epsilon": 0.5}, {"epsilon": 0.5, "bias": "absorb"}, {"tau": 0.5}):
        found = bp.RoutingGame(alike(model, x), **options).attribute(x, 1)
        assert_near(found, bp.RoutingGame(folded, **options).attribute(x, 1), what=str(options))
