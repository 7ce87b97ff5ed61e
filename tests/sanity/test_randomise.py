"""Layers drawn anew (app:sanity-check): each parameter once, in the order of the graph, never in the given model."""

import copy

import pytest
import torch
from torch import nn

import backplay as bp
from backplay import zoo
from backplay.sanity import layers, randomise


class Shuffled(nn.Module):
    """Modules are registered in another order than they are called in; a parameter of the model's own comes first."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.first = nn.Linear(5, 4)
        self.unused = nn.Linear(2, 2)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x):
        tokens = self.first(x)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        tokens = tokens + self.attention(*[self.norm(tokens)] * 3, need_weights=False)[0]
        return self.last(tokens[:, 0])


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return bp.capture(Shuffled().eval(), torch.randn(2, 3, 5))


def test_order_is_that_of_the_graph(network):
    names = [layer.name for layer in layers(network)]
    assert names == ["last", "attention.out_proj", "attention", "norm", "token", "first", "unused"]


@pytest.mark.parametrize("name", ["vgg", "resnet", "vit"])
def test_every_parameter_once(name):
    model, batch = zoo.load(name), zoo.images(2)
    found = [p for layer in layers(model, batch.x) for p in layer.parameters]
    assert sorted(found) == sorted(n for n, _ in model.named_parameters())


def test_weights_alone(network):
    names = [p for layer in layers(network, which="weights") for p in layer.parameters]
    assert names == ["last.weight", "attention.out_proj.weight", "first.weight", "unused.weight"]


def test_given_model_is_untouched(network):
    before = copy.deepcopy(network.model.state_dict())
    twin = randomise(network, seed=3)
    assert twin is not network.model
    assert all(torch.equal(before[k], v) for k, v in network.model.state_dict().items())
    changed = {k for k, v in twin.named_parameters() if not torch.equal(v, before[k])}
    assert {"last.weight", "token", "attention.in_proj_weight", "first.bias"} <= changed


def test_upto_goes_on_where_a_shorter_one_stopped(network):
    """What is drawn for a layer does not depend on how far a cascade goes, nor on how often it is called."""
    short, long = (dict(randomise(network, upto=name, seed=1).named_parameters()) for name in ("attention", "first"))
    given = dict(network.model.named_parameters())
    for name, value in short.items():
        drawn = name.startswith(("last", "attention"))
        assert torch.equal(value, long[name] if drawn else given[name]), name
    whole = dict(randomise(network.model, seed=1).named_parameters())
    assert torch.equal(whole["first.weight"], long["first.weight"])
    other = dict(randomise(network.model, seed=2).named_parameters())
    assert not torch.equal(whole["first.weight"], other["first.weight"])


def test_kaiming(network):
    model = nn.Linear(400, 300)
    drawn = dict(randomise(model).named_parameters())
    assert drawn["weight"].std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02) and not drawn["bias"].any().item()


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda n: randomise(n, upto="atention"), "did you mean attention"),
        (lambda n: randomise(n.model, upto="first"), "example"),
        (lambda n: layers(n, which="biases"), "'weights'"),
        (lambda n: randomise(n, which="biases"), "'weights'"),
        (lambda n: randomise(n, upto=2), r"upto=2 .* the name of a layer \(str\), such as '2'"),
        (lambda n: randomise(n, seed="a"), "seed='a' is out of range"),
    ],
)
def test_refusals(network, call, said):
    with pytest.raises(bp.BackplayError, match=said):
        call(network)


def test_no_example_where_none_is_needed(network):
    """The order is read on a guessed input or off the last capture; the whole model needs none."""
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    twin = randomise(chain, upto="2", seed=0)
    assert torch.equal(twin[0].weight, chain[0].weight) and not torch.equal(twin[2].weight, chain[2].weight)
    weights, expected = (randomise(m, which="weights").state_dict() for m in (network.model, network))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    model = Shuffled().eval()
    bp.explain(model, torch.randn(2, 3, 5), 1)
    assert torch.equal(randomise(model, upto="norm").first.weight, model.first.weight)


def test_a_stage_is_shown_by_its_name(network):
    assert str(layers(network)[0]) == "last"
