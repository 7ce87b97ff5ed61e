"""Risk (S20): what gates show, where they open, what lies between hands on; by hand on dense matrices."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from closeness import assert_near, unscaled

pytestmark = pytest.mark.usefixtures("without_gradients")

VARIANCE = 0.4


def stages(model, x, risk, variance=VARIANCE):
    """Real pre-activations, filtered variances and `V_λ` of an MLP on one sample."""
    a, v, found = hand.numbers(x), np.full(x.shape, variance), []
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight, bias = hand.numbers(layer.weight), hand.numbers(layer.bias)
            z, v = weight @ a + bias, weight**2 @ v
        else:
            found.append((z, v, hand.v_risk(z, v, risk)))
            a, (_, v) = np.maximum(z, 0), hand.relu_moments(z, v)
    return found


@pytest.mark.parametrize("risk", [-2.0, -0.5, 0.7])
@pytest.mark.parametrize("tau, epsilon", [(1.0, 0.5), (0.5, 0.1), (2.0, 0.0)])
def test_mlp(risk, tau, epsilon):
    """S20, app:adf-variance: `V_λ` shown, gates open where it is positive, affine nodes real, map by hand."""
    model, x = hand.mlp(5, 7, 6, 3), torch.randn(2, 5, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), risk=risk, input_variance=VARIANCE, tau=tau, epsilon=epsilon).play(x, 1)
    logits = model(x).detach()
    assert_near(play.value, logits[:, 1])
    changed = 0
    for b in range(2):
        first, second = stages(model, x[b], risk)
        assert_near(play.observed("0")[b], first[0])
        assert_near(play.observed("2")[b], second[0])
        assert_near(play.observed("1")[b], first[2], 1e-9)
        assert_near(play.observed("3")[b], second[2], 1e-9)
        assert_near(play.policy("1")[b], first[2] > 0)
        assert_near(play.policy("3")[b], second[2] > 0)
        changed += sum(int(((s[2] > 0) != (s[0] > 0)).sum()) for s in (first, second))
        mass = hand.route(hand.unit(3, 1), hand.numbers(model[4].weight), second[2], epsilon, tau)
        mass = hand.route(mass * (second[2] > 0), hand.numbers(model[2].weight), first[2], epsilon, tau)
        mass = hand.route(mass * (first[2] > 0), hand.numbers(model[0].weight), hand.numbers(x[b]), epsilon, tau)
        assert_near(play.attribution()[b], mass * float(logits[b, 1]), 1e-8)
    assert changed > 0  # some gate opens or closes by risk: the test sees it


class Small(nn.Module):
    """A CNN with max pooling behind the first gate, average pooling and a wire behind the second."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        self.deep, self.relu2, self.mean = nn.Conv2d(3, 4, 2), nn.ReLU(), nn.AvgPool2d(2, stride=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.mean(self.relu2(self.deep(self.pool(self.relu(self.conv(x)))))).flatten(1))


@pytest.mark.parametrize("risk", [-1.0, 0.6])
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_cnn(risk, tau):
    """S20: pools hand on what gates show, winners are those of the real pass, mixes share by observed values (S18)."""
    model, x = Small().double().eval(), torch.randn(1, 1, 6, 6, dtype=torch.float64)
    epsilon = 0.2
    play = bp.RoutingGame(alike(model, x), risk=risk, input_variance=VARIANCE, tau=tau, epsilon=epsilon).play(x, 2)

    first, bias = hand.matrix(model.conv, (1, 6, 6))
    z1 = first @ hand.numbers(x).ravel() + bias
    v1 = first**2 @ np.full(36, VARIANCE)
    shown1, spread1 = hand.v_risk(z1, v1, risk), hand.relu_moments(z1, v1)[1]
    pooled, index = nn.functional.max_pool2d(torch.relu(model.conv(x)), 2, return_indices=True)
    winner = (torch.arange(3)[None, :, None, None] * 36 + index).flatten().numpy()
    second, bias = hand.matrix(model.deep, (3, 3, 3))
    z2 = second @ hand.numbers(pooled).ravel() + bias
    v2 = second**2 @ spread1[winner]
    shown2 = hand.v_risk(z2, v2, risk)
    mean, _ = hand.matrix(model.mean, (4, 2, 2))

    assert_near(play.observed("relu"), shown1.reshape(1, 3, 6, 6), 1e-9)
    assert_near(play.observed("pool"), shown1[winner].reshape(1, 3, 3, 3), 1e-9)
    assert_near(play.observed("deep"), model.deep(pooled))
    assert_near(play.observed("relu2"), shown2.reshape(1, 4, 2, 2), 1e-9)
    assert_near(play.observed("mean"), (mean @ shown2).reshape(1, 4, 1, 1), 1e-9)
    assert_near(play.policy("relu"), (shown1 > 0).reshape(1, 3, 6, 6))
    rivals = nn.functional.max_pool2d(torch.tensor(shown1).view(1, 3, 6, 6), 2, return_indices=True)[1]
    assert (rivals != index).any()  # the largest observed value is not always the real winner

    mass = hand.route(hand.unit(3, 2), hand.numbers(model.head.weight), mean @ shown2, epsilon, tau)
    mass = hand.share(mass, mean, shown2, tau) * (shown2 > 0)
    mass = hand.route(mass, second, shown1[winner], epsilon, tau)
    below = np.zeros(108)
    np.add.at(below, winner, mass)
    mass = hand.route(below * (shown1 > 0), first, hand.numbers(x).ravel(), epsilon, tau)
    assert_near(play.attribution().flatten(), mass * float(model(x)[0, 2]), 1e-8)


def test_sums_and_norms_hand_on():
    """S20: what a gate shows goes on through a sum and a diagonal; the other operand stays real."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.relu, self.skip = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(torch.tensor([1.0, -2.0, 0.5, 3.0]).double() * (self.relu(self.stem(x)) + self.skip(x)))

    model, x = Residual().double().eval(), torch.randn(1, 4, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), risk=-1.0, input_variance=VARIANCE).play(x, 0)
    z, v = hand.numbers(model.stem(x))[0], VARIANCE * hand.numbers(model.stem.weight.square().sum(1))
    summed = hand.v_risk(z, v, -1.0) + hand.numbers(model.skip(x))[0]
    (add,) = [n.name for n in play.network.nodes if n.kind == "sum"]
    assert_near(play.observed(add)[0], summed, 1e-9)
    (scaled,) = [n.name for n in play.network.nodes if n.kind == "diagonal"]
    assert_near(play.observed(scaled)[0], summed * np.array([1.0, -2.0, 0.5, 3.0]), 1e-9)
    mass = hand.route(hand.unit(2, 0), hand.numbers(model.head.weight), hand.numbers(play.observed(scaled))[0], 0.5)
    found = play.occupation("relu")
    assert_near(unscaled(found.difference, found.difference_log_scale), mass / 2, 1e-9)


def gelu(z):
    return z * hand.cdf(z)


def test_gelu():
    """S20: other gates show `μ_a + λ σ_a` unclipped and keep `c(z) = Φ(z)` at the real pre-activation."""
    model, x = hand.mlp(4, 5, 3, gate=nn.GELU), torch.randn(1, 4, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), risk=-1.5, input_variance=0.05, epsilon=0.1).play(x, 0)
    z, v = hand.numbers(model[0](x))[0], 0.05 * hand.numbers(model[0].weight.square().sum(1))
    mean, spread = hand.each(gelu, z, v)
    shown = mean - 1.5 * np.sqrt(spread)
    assert (shown < -0.1).any()
    assert_near(play.observed("1")[0], shown, 1e-8)
    assert_near(play.policy("1")[0], hand.cdf(z))
    mass = hand.route(hand.unit(3, 0), hand.numbers(model[2].weight), shown, 0.1) * hand.cdf(z)
    mass = hand.route(mass, hand.numbers(model[0].weight), hand.numbers(x)[0], 0.1) * float(model(x)[0, 0])
    assert_near(play.attribution()[0], mass, 1e-7)


def forward_by_risk(model, x, risk, variance=VARIANCE):
    """Ablation A2: `V_λ` drives the forward pass; variances are filtered along it."""
    a, v, found = hand.numbers(x), np.full(x.shape, variance), []
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight, bias = hand.numbers(layer.weight), hand.numbers(layer.bias)
            z, v = weight @ a + bias, weight**2 @ v
        else:
            a, (_, v) = hand.v_risk(z, v, risk), hand.relu_moments(z, v)
            found.append(a)
    return found, z


@pytest.mark.parametrize("risk", [-1.0, 0.5])
def test_risk_forward(risk):
    """Ablation A2 (app:abl-full-risk): the forward pass is that of `V_λ`, and so is the map."""
    model, x = hand.mlp(5, 7, 6, 3), torch.randn(2, 5, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), risk=risk, input_variance=VARIANCE, risk_forward=True, epsilon=0.1).play(
        x, 1
    )
    for b in range(2):
        (one, two), logits = forward_by_risk(model, x[b], risk)
        assert_near(play.observed("1")[b], one, 1e-9)
        assert_near(play.observed("3")[b], two, 1e-9)
        assert_near(play.value[b], logits[1], 1e-9)
        assert abs(logits[1] - float(model(x)[b, 1])) > 1e-3
        mass = hand.route(hand.unit(3, 1), hand.numbers(model[4].weight), two, 0.1) * (two > 0)
        mass = hand.route(mass, hand.numbers(model[2].weight), one, 0.1) * (one > 0)
        mass = hand.route(mass, hand.numbers(model[0].weight), hand.numbers(x[b]), 0.1)
        assert_near(play.attribution()[b], mass * logits[1], 1e-8)


@pytest.mark.parametrize("risk", [-1.0, 0.5])
def test_stopping_game(risk):
    """S20: the Stopping Game plays the `V_λ` pass, with gates `1[V_λ > 0]` of that pass."""
    model, x = hand.mlp(5, 9, 8, 3), torch.randn(2, 5, dtype=torch.float64)
    play = bp.StoppingGame(alike(model, x), risk=risk, input_variance=VARIANCE).play(x, 1)
    differs = False
    for b in range(2):
        (one, two), logits = forward_by_risk(model, x[b], risk)
        assert_near(play.value[b], logits[1], 1e-9)
        assert_near(play.policy("1")[b], one > 0)
        assert_near(play.policy("3")[b], two > 0)
        mass = hand.numbers(model[4].weight)[1] * (two > 0)
        mass = (mass @ hand.numbers(model[2].weight)) * (one > 0) @ hand.numbers(model[0].weight)
        assert_near(play.attribution()[b], mass)
        differs |= bool(np.abs(mass - hand.numbers(bp.StoppingGame(alike(model, x)).attribute(x, 1))[b]).max() > 1e-3)
    assert differs


@pytest.mark.parametrize("game", [bp.RoutingGame, bp.StoppingGame])
def test_no_risk_no_change(game):
    """S20: at λ = 0 gates show the real activation, whatever σ²; risk_forward is then without effect too."""
    model, x = hand.mlp(5, 7, 3), torch.randn(2, 5, dtype=torch.float64)
    plain = game(model).attribute(x, 0)
    assert_near(game(model, input_variance=5.0).attribute(x, 0), plain, 1e-13)
    if game is bp.RoutingGame:
        assert_near(game(model, input_variance=5.0, risk_forward=True).attribute(x, 0), plain, 1e-13)
