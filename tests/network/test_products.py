"""Products by oneDNN: the numbers are torch's; the forward pass keeps the model's own operators."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import backplay as bp
from backplay.network import linear as linear_maps
from backplay.network import products
from backplay.network.products import at_each_pixel, multiply
from closeness import assert_near


@pytest.mark.parametrize("order", ["plain", "channels last"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"stride": 2}, {"padding": 1}, {"groups": 2}, {"kernel_size": 3}], ids=str)
def test_convolutions_of_single_pixels(monkeypatch, settings, batch, order):
    """Forward and back beside float64, and those that only look like it."""
    calls: list[torch.Size] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(linear_maps, "at_each_pixel", lambda w, image: calls.append(w.shape) or at_each_pixel(w, image))
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 8, **{"kernel_size": 1, "bias": False} | settings)
    x = torch.randn(batch, 6, 9, 7)
    node = next(n for n in bp.capture(layer, x).nodes if n.kind == "affine")
    weight = layer.weight.detach()
    memory = torch.channels_last if order == "channels last" else torch.contiguous_format
    exact = x.double().requires_grad_()
    expected = layer.double()(exact)
    assert_near(node.map.apply(x.contiguous(memory_format=memory), weight), expected, 1e-6)
    back = torch.randn(expected.shape).contiguous(memory_format=memory)
    (wanted,) = torch.autograd.grad(expected, exact, back.double())
    assert_near(node.map.adjoint(back, weight, x.shape), wanted, 1e-6)
    assert len(calls) == (2 if batch == 1 and not settings and products.serves(x) else 0)


def test_an_image_of_one_colour(monkeypatch):
    """What came back through a sum is one number that is seen at every pixel, by strides of 0."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 8, 1, bias=False)
    node = next(n for n in bp.capture(layer, torch.randn(1, 6, 9, 7)).nodes if n.kind == "affine")
    back, weight = torch.randn(1, 8, 1, 1).expand(1, 8, 9, 7), layer.weight.detach()
    wanted = nn.functional.conv_transpose2d(back.double(), weight.double())
    assert_near(node.map.adjoint(back, weight, torch.Size((1, 6, 9, 7))), wanted, 1e-6)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 3, 4, 7), (1, 7), (7,), (0, 7)], ids=str)
def test_numbers(shape):
    """Beside float64, for weights in both orders of memory and for operands with gaps."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape), torch.randn(4, 7)
    gaps = torch.stack([x, x], -1)[..., 0]
    for given, own in ((x, weight), (x, weight.T.contiguous().T), (gaps, weight)):
        assert_near(multiply(given, own), linear(x.double(), weight.double()), 1e-6)


def test_other_libraries_serve_the_rest():
    """Doubles, gradients, and whoever has switched oneDNN off."""
    x, weight = torch.randn(5, 7), torch.randn(4, 7, requires_grad=True)
    assert not products.serves(x.double())
    assert not products.serves(x, weight)
    multiply(x, weight).sum().backward()
    assert weight.grad is not None
    switched_on, *_ = torch.backends.mkldnn.set_flags(_enabled=False)
    try:
        assert not products.serves(x)
        assert_near(multiply(x, weight), x @ weight.T, 1e-5)
    finally:
        torch.backends.mkldnn.set_flags(_enabled=switched_on)


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(7, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5)]
    return nn.Sequential(*layers).eval(), torch.randn(3, 7)


def test_maps_without_one_dnn(monkeypatch):
    """A build of torch without it gives the same map, but for the last digits."""
    model, x = network()
    with_it = bp.RoutingGame(model, tau=0.5).attribute(x, 1)
    monkeypatch.setattr(products, "_LINEAR", None)
    assert_near(bp.RoutingGame(model, tau=0.5).attribute(x, 1), with_it, 1e-5)


def test_the_forward_pass_keeps_the_models_operators(monkeypatch):
    """Players stand before the gates that the model has opened; what else they multiply goes to oneDNN."""
    model, x = network()
    if not products.serves(x):
        pytest.skip("this build of torch has no oneDNN, or it is switched off")
    calls: list[torch.Size] = []
    own = products._LINEAR

    def counting(x, *rest):
        calls.append(x.shape)
        return own(x, *rest)

    monkeypatch.setattr(products, "_LINEAR", counting)
    graph = bp.capture(model, x)
    assert_near(graph.run({0: x}), model(x), 1e-6)
    assert not calls
    bp.StoppingGame(graph).attribute(x, 1)
    assert len(calls) == 3, "one product back through each layer"
