"""Both games against the enumeration of every trajectory on random small networks (evidence 1)."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import backplay as bp
from closeness import array, assert_near
from enumerated import compare_play, draw_inputs, examples, require, solved, tensor
from oracles import strategies
from oracles.dag import GATES, Dag, values
from oracles.walks import Routing, Stopping, count_trajectories, enumerate_walks

LIMIT = 4000


def enumerated(walks, targets):
    """Outcomes, one for each sample, if the networks are small enough."""
    require(all(count_trajectories(w, t) <= LIMIT for w, t in zip(walks, targets, strict=True)))
    return [enumerate_walks(w, t) for w, t in zip(walks, targets, strict=True)]


def compare(play, outcomes, dag, found, targets):
    compare_play(play, outcomes, [v[-1][t] for v, t in zip(found, targets, strict=True)], dag.addresses())


def input_difference(outcomes):
    return np.stack([o.difference(0) for o in outcomes])


def play_stopping(network, dag, x, targets):
    nodes, found = solved(dag, x)
    outcomes = enumerated([Stopping(nodes, v) for v in found], targets)
    game = bp.StoppingGame(network)
    compare(game.play(tensor(dag, x), targets), outcomes, dag, found, targets)
    largest = max(o.occupation[0].max() for o in outcomes)
    gradient = input_difference(outcomes)
    scale = np.abs(gradient).max() + 1e-3 * largest
    assert_near(game.attribute(tensor(dag, x), targets), gradient, scale=scale, what="attribute")


def play_routing(network, dag, x, targets, options):
    nodes, found = solved(dag, x)
    outcomes = enumerated([Routing(nodes, v, **options) for v in found], targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # alpha − beta ≠ 1 warns once
        game = bp.RoutingGame(network, **options)
        compare(game.play(tensor(dag, x), targets), outcomes, dag, found, targets)
        logits = np.array([v[-1][t] for v, t in zip(found, targets, strict=True)])
        largest = max(o.occupation[0].max() for o in outcomes) * np.abs(logits).max()
        relevance = input_difference(outcomes) * logits[:, None]
        scale = np.abs(relevance).max() + 1e-3 * largest
        assert_near(game.attribute(tensor(dag, x), targets), relevance, scale=scale, what="attribute")
        one = game.replace(output="one").attribute(tensor(dag, x), targets)
    largest = max(o.occupation[0].max() for o in outcomes)
    assert_near(one, input_difference(outcomes), scale=largest + 1e-300, what="attribute, output='one'")


def both_games(data, dag):
    """Draw an input, targets and options; play both games on one capture."""
    x, targets = draw_inputs(data, dag)
    solved(dag, x)
    network = bp.capture(dag.module(), tensor(dag, x))
    play_stopping(network, dag, x, targets)
    for options in data.draw(st.lists(strategies.routing_options(), min_size=3, max_size=3)):
        play_routing(network, dag, x, targets, options)


@pytest.mark.slow
@examples(30)
@given(st.data())
def test_dense_networks(data):
    """S6-S8, S12-S18 on fully connected networks: thm:deriv-occ and thm:ab-recovery state by state.

    Every trajectory with its probability and its discounts: def:adf-game-states, def:occupation, eq:attribution,
    eq:routing-edge-discount, eq:routing-discount, eq:routing-Gamma-pair.
    """
    both_games(data, data.draw(strategies.dense_dags()))


@pytest.mark.slow
@examples(30)
@given(st.data())
def test_convolutional_networks(data):
    """The same on convolutions with padding and stride, pools, batch norm folded or not (S4), residual sums.

    def:addition-subgame, def:routing-addition, def:maxpool-subgame, def:routing-maxpool.
    """
    both_games(data, data.draw(strategies.conv_dags()))


@examples(12)
@given(st.data())
def test_exact_ties(data):
    """ReLU, ReLU6 and max only, dyadic weights.

    Zeros and ties are exact, closed gates stop, the smallest index wins.
    """
    gates = ("relu", "relu6")
    build = st.one_of(strategies.dense_dags(gates, norms=False), strategies.conv_dags(gates, norms=False))
    both_games(data, data.draw(build))


def gate_network(name):
    """Gate between two affine layers, with pre-activations −4 … 4 so that every branch of the gate is met."""
    dag = Dag((1,))
    h = dag.linear(0, np.arange(-4.0, 5.0)[:, None], np.full(9, 0.25))
    dag.linear(dag.gate(h, name), [np.linspace(-2, 2, 9), np.ones(9)], [0.5, -0.5])
    return dag


@pytest.mark.parametrize("name", GATES)
def test_every_gate(name):
    """S8: stop or continue at every gate of the table, in both games."""
    dag = gate_network(name)
    x = np.array([[1.0], [-1.0]])
    network = bp.capture(dag.module(), tensor(dag, x))
    play_stopping(network, dag, x, [0, 1])
    play_routing(network, dag, x, [0, 1], {"epsilon": 0.5, "tau": 1.0})
    play_routing(network, dag, x, [0, 1], {"epsilon": 0.0, "tau": 2.0})


def squeeze_network(first, second, carriers):
    """A product of two live branches that come out of the gates `first` and `second` (None: no gate)."""
    dag = Dag((2,))
    branches = []
    for gate, sign in ((first, 1.0), (second, -1.0)):
        h = dag.linear(0, sign * np.array([[1.0, -0.5], [0.25, 2.0], [-1.0, 0.5]]), [0.5, -0.25, 1.0])
        branches.append(h if gate is None else dag.gate(h, gate))
    product = dag.multiply(*branches, carriers)
    dag.linear(product, [[1.0, -2.0, 0.5], [-1.0, 1.0, 1.5]], [0.25, 0.0])
    return dag


@pytest.mark.parametrize(
    "first, second, carriers",
    [
        ("relu", "sigmoid", (0,)),
        ("hardsigmoid", None, (1,)),
        (None, "silu", (0,)),
        ("gelu", "tanh", (1,)),
        ("silu", "sigmoid", (0, 1)),
        (None, None, (0, 1)),
    ],
)
def test_products(first, second, carriers):
    """S7, S17: the factor that comes out of a gate is detached; with none or two such, 1/2 each."""
    dag = squeeze_network(first, second, carriers)
    x = np.array([[1.0, 0.5], [-0.75, 1.25]])
    network = bp.capture(dag.module(), tensor(dag, x))
    play_stopping(network, dag, x, [0, 1])
    play_routing(network, dag, x, [0, 1], {})


def bias_network():
    """Both streams alive at every neuron, biases of both signs."""
    dag = Dag((3,))
    h = dag.linear(0, [[1.0, -0.5, 0.25], [-1.0, 1.0, 0.5]], [0.5, -0.25])
    dag.linear(dag.gate(h, "relu"), [[1.0, -1.0], [2.0, 0.5]], [0.75, -1.0])
    return dag


@pytest.mark.parametrize("tau", [1.0, 0.5, 2.0])
def test_bias_leak(tau):
    """S15, S38: the share that an absorbed bias takes to † is reported alone."""
    dag, x = bias_network(), np.array([[1.0, 2.0, 4.0]])
    nodes = dag.nodes()
    found = values(nodes, x[0])
    expected = enumerate_walks(Routing(nodes, found, epsilon=0.5, tau=tau, bias="absorb"), 0)
    assert expected.bias_leak > 0.1
    network = bp.capture(dag.module(), tensor(dag, np.repeat(x, 2, 0)))
    absorbed = bp.RoutingGame(network, epsilon=0.5, tau=tau, bias="absorb").play(tensor(dag, x), 0)
    ignored = bp.RoutingGame(network, epsilon=0.5, tau=tau).play(tensor(dag, x), 0)
    assert_near(np.max(array(absorbed.health().bias_leak)), expected.bias_leak, what="bias leak")
    assert np.max(array(ignored.health().bias_leak)) == 0


def test_softplus_game():
    """thm:softplus-gradient: with `softplus=θ` the Stopping Game plays the network whose ReLUs are Softplus(θ)."""
    theta = 0.5
    plain, smooth = (
        torch.nn.Sequential(torch.nn.Linear(4, 6), gate, torch.nn.Linear(6, 5), gate, torch.nn.Linear(5, 2)).double()
        for gate in (torch.nn.ReLU(), torch.nn.Softplus(beta=1 / theta))
    )
    smooth.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    logits = smooth(x)[:, 1]
    (gradient,) = torch.autograd.grad(logits.sum(), x)
    play = bp.StoppingGame(plain, softplus=theta).play(x.detach(), 1)
    assert_near(play.attribution(), gradient, what="gradient")
    assert_near(play.value, logits, what="value of the Softplus network")
