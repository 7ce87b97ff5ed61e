"""Nobody gains by deviating once; a tampered policy is caught (thm:forward-stopping, thm:routing-forward)."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

import backplay as bp
import hand
from backplay.kernels.moves import Winner
from backplay.kernels.pointwise import Gating
from backplay.kernels.streams import RoutingLinear
from backplay.network.attention import Attention


def model(gate):
    return (
        nn.Sequential(nn.Conv2d(3, 4, 3), gate, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 6), gate, nn.Linear(6, 3))
        .double()
        .eval()
    )


X = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
STOPPING = [{}, {"gate": "noisy", "gate_noise": 0.5}, {"softplus": 0.7}]
ROUTING = [
    {},
    {"epsilon": 0.0, "tau": 0.5},
    {"epsilon": 0.01, "tau": 2.0, "bias": "absorb", "empty_stream": "reroute"},
    {"gate": "noisy"},
    {"risk": -0.5, "input_variance": 0.1, "entropy_bias": 0.1},
]
GATES = {"relu": nn.ReLU(), "softplus": nn.Softplus(), "silu": nn.SiLU(), "gelu": nn.GELU(), "tanh": nn.Tanh()}


@pytest.mark.parametrize("name", GATES)
def test_equilibrium(name):
    """eq:bellman, eq:adf-spne-policy, eq:routing-spne-linear, eq:routing-spne-stop: policies are the best answers."""
    network = bp.capture(model(GATES[name]), X)
    for game, keywords in ((bp.StoppingGame, STOPPING), (bp.RoutingGame, ROUTING)):
        for options in keywords:
            found = bp.certify(game(network, **options).play(X, 1), states=300)
            assert found <= 1e-9, found
            assert found.checked + found.skipped == 300
            assert found.kinds["max"] > 0
            assert ("linear" in found.kinds) == (game is bp.RoutingGame)
            if name == "tanh":
                assert found.skipped > 0
            elif "risk" not in options:
                assert found.skipped == 0


def decided(weights):
    """A gate behind a layer without bias, on the input (1, 1)."""
    net = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(weights))
    return net, torch.ones(1, 2, dtype=torch.float64)


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_equilibrium_is_unique_up_to_ties(game):
    """rem:adf-spne-uniqueness, rem:routing-spne-uniqueness: the other answer loses, but for `z = 0`: there it stops."""
    net, x = decided([[2.0, -1.0], [1.0, -2.0], [1.0, -1.0], [0.5, 1.0]])  # z = (1, −1, 0, 1.5)
    assert game(net).play(x, 1).policy("1").tolist() == [[1, 0, 0, 1]]
    for k, loss in enumerate((1.0, 1.0, 0.0, 1.5)):
        play = game(net, **({"epsilon": 0.0} if game is bp.RoutingGame else {})).play(x, 1)
        (node,) = [n for n in play.network.nodes if n.kind == "gate"]
        slope = play.kernel(node).slope.clone()
        slope[0, k] = 1 - slope[0, k]
        play._kernels[node] = replace(play.kernel(node), slope=slope)
        assert abs(float(bp.certify(play, states=400)) - loss) < 1e-9


def test_soft_equilibrium_is_unique():
    """rem:softplus-uniqueness: with an entropy every other answer loses, at a tie too."""
    net, x = decided([[2.0, -1.0], [1.0, -2.0], [1.0, -1.0], [0.5, 1.0]])
    for k in range(4):
        for change in (-0.02, 0.02):
            play = bp.StoppingGame(net, softplus=0.5).play(x, 1)
            assert bp.certify(play, states=400) <= 1e-12
            (node,) = [n for n in play.network.nodes if n.kind == "gate"]
            slope = play.kernel(node).slope.clone()
            slope[0, k] += change
            play._kernels[node] = replace(play.kernel(node), slope=slope)
            assert bp.certify(play, states=400) > 1e-5


@pytest.mark.parametrize("kind", ["gate", "max", "linear"])
@pytest.mark.parametrize("gate", [nn.ReLU(), nn.GELU(), nn.SiLU()])
def test_tampered_policies_are_caught(gate, kind):
    play = bp.RoutingGame(model(gate), epsilon=0.1).play(X, 1)
    for node in play.network.nodes:
        if node not in play.visited() or node.kind == "input":
            continue
        kernel = play.kernel(node)
        if kind == "gate" and isinstance(kernel, Gating):
            play._kernels[node] = replace(kernel, slope=(kernel.slope * 0.8 + 0.1).clamp(0, 1))
        if kind == "max" and isinstance(kernel, Winner):
            play._kernels[node] = replace(kernel, index=kernel.index.roll(1, -1))
        if kind == "linear" and isinstance(kernel, RoutingLinear):
            rolled = replace(kernel.contributions, value=kernel.contributions.value.roll(1, -1))
            play._kernels[node] = replace(kernel, contributions=rolled)
    assert bp.certify(play) > 1e-4


TOKENS = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
ATTENTION = [
    {},
    {"epsilon": 0.0, "tau": 0.5},
    {"epsilon": 0.05, "tau": 2.0, "bias": "absorb", "empty_stream": "reroute"},
    {"tau": 0.5, "tau_forward": True},
    {"attention_risk": -3.0, "input_variance": 0.5, "attention_score": "logit"},
    {"risk": -0.5, "input_variance": 0.1, "tau": 1.5},
]


@functools.cache
def tokens(fused):
    return bp.capture(hand.attention(fused), TOKENS)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("options", ATTENTION, ids=str)
def test_attention(options, fused):
    """The key choice with its outside option, then the input choice (S23): nobody gains in any mode."""
    found = bp.certify(bp.RoutingGame(tokens(fused), **options).play(TOKENS, 1), states=300)
    assert found <= 1e-9, found
    assert found.kinds["attention"] > 30 and found.checked + found.skipped == 300
    assert "risk" in options or found.skipped == 0


def swap_keys(kernel):
    return replace(kernel, weight=kernel.weight.flip(-1))


def shift_values(kernel):
    """Another distribution over keys, denominators to match: only the payoffs tell."""
    values = tuple(v.pow(1.5) for v in kernel.values)
    plus, minus = (
        replace(stream, total=kernel.node.map.apply(value, kernel.weight))
        for stream, value in zip((kernel.plus, kernel.minus), values, strict=True)
    )
    return replace(kernel, values=values, plus=plus, minus=minus)


def swap_inputs(kernel):
    """Another distribution over inputs, sums to match."""
    projection = replace(kernel.projection, value=kernel.projection.value.roll(1, -1))
    return replace(kernel, projection=projection, totals=projection.sums())


def forget_outside(kernel):
    plus, minus = (replace(stream, aside=stream.aside * 0.2) for stream in (kernel.plus, kernel.minus))
    return replace(kernel, plus=plus, minus=minus)


@pytest.mark.parametrize("tamper", [swap_keys, shift_values, swap_inputs, forget_outside])
def test_tampered_attention_is_caught(tamper):
    """Proper distributions that are not the policy: keys, inputs, outside option."""
    play = bp.RoutingGame(tokens(True), epsilon=0.1).play(TOKENS, 1)
    assert bp.certify(play) <= 1e-9
    (node,) = [n for n in play.visited() if isinstance(n, Attention)]
    play._kernels[node] = tamper(play.kernel(node))
    found = bp.certify(play)
    assert found > 1e-4 and found.worst == next(n.name for n in play.visited() if n.kind == "mix")


def test_arguments():
    play = bp.StoppingGame(model(nn.ReLU())).play(X, 1)
    with pytest.raises(ValueError, match="states"):
        bp.certify(play, states=0)
    with pytest.raises(TypeError, match="play"):
        bp.certify(X)
