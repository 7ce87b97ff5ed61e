"""Games, networks and explainers in other processes, and models in whatever they come in."""

import copy
import multiprocessing
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import backplay as bp

pytestmark = pytest.mark.capture


@pytest.fixture
def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).double().eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)


def things(model, x):
    """Everything that has `attribute`, fresh and used."""
    used = bp.RoutingGame(model, tau=0.5)
    used.attribute(x, 0)
    return [
        used,
        bp.StoppingGame(model, multiply_by_input=True),
        bp.StoppingGame(bp.capture(model, x)),
        used.replace(epsilon=0.1),
        bp.Explainer(model, "lrp_gamma", gamma=0.5),
        bp.Reynolds(used, n=2, seed=3),
    ]


def _explain(sent, x):
    """In the other process: maps of everything that was sent."""
    torch.set_num_threads(1)
    return pickle.dumps([thing.attribute(x, 1) for thing in pickle.loads(sent)])


@pytest.mark.slow
def test_another_process(model, x):
    """What is sent there gives the same maps as here."""
    here = things(model, x)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pickle.loads(pool.apply(_explain, (pickle.dumps(here), x)))
    for thing, found in zip(here, there, strict=True):
        torch.testing.assert_close(found, thing.attribute(x, 1), rtol=1e-10, atol=1e-12)


def test_what_arrives_is_the_same(model, x):
    """Keywords, names and the graph."""
    for thing in things(model, x):
        again = pickle.loads(pickle.dumps(thing))
        assert repr(again) == repr(thing)
    network = bp.capture(model, x)
    again = pickle.loads(pickle.dumps(network))
    assert [repr(n) for n in again.nodes] == [repr(n) for n in network.nodes]
    assert again.model is not network.model


def test_games_of_one_capture_stay_together(model, x):
    """Two games that share a capture share one where they arrive."""
    game = bp.RoutingGame(model)
    first, second = pickle.loads(pickle.dumps((game, game.replace(tau=2.0))))
    assert first.network(x) is second.network(x)


def test_no_second_warning(model):
    """A game warns when it is made, not whenever it is sent."""
    with pytest.warns(UserWarning, match="alpha"):
        game = bp.RoutingGame(model, alpha=1.0, beta=1.0)
    assert pickle.loads(pickle.dumps(game)).alpha == 1.0


def test_copies(model, x):
    """A game is frozen and its own copy; the copy of a network stands on a copy of the model."""
    for thing in things(model, x):
        torch.testing.assert_close(copy.deepcopy(thing).attribute(x, 1), thing.attribute(x, 1))
    network = bp.capture(model, x)
    twin = copy.deepcopy(network)
    assert twin.model is not model
    assert twin.nodes is network.nodes is network.on(twin.model).nodes, "no copy is captured again"
    before = bp.RoutingGame(network).attribute(x, 0)
    with torch.no_grad():
        twin.model[3].weight.mul_(2)
    torch.testing.assert_close(bp.RoutingGame(network).attribute(x, 0), before)
    assert not torch.allclose(bp.RoutingGame(twin).attribute(x, 0), before)


def test_copies_share_the_graph(model, x):
    """A capture takes longer than a play: copies of a network, and the same graph on other weights, need none."""
    network = bp.capture(model, x)
    for twin in (copy.copy(network), copy.deepcopy(network), network.on(copy.deepcopy(model))):
        assert all(mine is its for mine, its in zip(twin.nodes, network.nodes, strict=True))


def test_several_inputs():
    """Keywords and fixed inputs are part of what is captured again."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, inputs_embeds, attention_mask):
            return self.head((inputs_embeds * attention_mask[..., None]).mean(1))

    model = Masked().double()
    given = {"inputs_embeds": torch.randn(2, 3, 4, dtype=torch.float64), "attention_mask": torch.ones(2, 3).long()}
    network = bp.capture(model, given)
    twin = network.__reduce__()[0](*network.__reduce__()[1])
    torch.testing.assert_close(bp.StoppingGame(twin).attribute(given, 0), bp.StoppingGame(network).attribute(given, 0))


CALLS = {
    "capture": lambda m, x: bp.capture(m, x).nodes[0].shape,
    "routing": lambda m, x: bp.RoutingGame(m).attribute(x, 0),
    "stopping": lambda m, x: bp.StoppingGame(m).attribute(x, 0),
    "explain": lambda m, x: bp.explain(m, x, 0, method="gradcam"),
    "explainer": lambda m, x: bp.Explainer(m, "rg").attribute(x, 0),
    "fits": lambda m, x: bp.methods()["rg"].fits(m),
    "moments": lambda m, x: bp.moments(m, x, 0.1)["0"].variance,
    "decompose": lambda m, x: bp.decompose(m, x)["0"].plus,
    "hellinger": lambda m, x: bp.hellinger(bp.RoutingGame(m).play(x, 0), bp.RoutingGame(m).play(x, 1)).bc,
    "permuted": lambda m, x: bp.transforms.permute_neurons(m, x, seed=1)(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_loaded_model_goes_wherever_a_model_goes(model, x, name):
    """Something that holds a module is that module."""
    bp.explain(model, x, 0, method="gradient")  # a capture is at hand
    found, expected = (CALLS[name](m, x) for m in (SimpleNamespace(model=model), model))
    if isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    else:
        assert found == expected


def test_a_holder_of_something_else_is_refused(x):
    """What holds no module is no model."""
    for thing in (SimpleNamespace(model="vgg16"), SimpleNamespace()):
        with pytest.raises(TypeError, match="Module") as caught:
            bp.RoutingGame(thing)
        assert isinstance(caught.value, bp.BackplayError)
