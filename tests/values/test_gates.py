"""Gates of the modes: entropy bias (S20), noisy gate (S21), Softplus Stopping Game (S8, S10)."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from closeness import assert_near, l1_relative

pytestmark = pytest.mark.usefixtures("without_gradients")

LAMBDA = 0.6


class TestEntropyBias:
    """app:entropy-mode: a gate shows `g(z − λ_ent H̃)`, `H̃` the normalised entropy of its affine node's fan-in."""

    def test_linear(self):
        """S20: by hand on an MLP, map included; the forward pass is real."""
        model, x = hand.mlp(5, 9, 7, 3), 2 * torch.randn(2, 5, dtype=torch.float64)
        model[2].weight.mul_(3)
        play = bp.RoutingGame(alike(model, x), entropy_bias=LAMBDA, epsilon=0.1).play(x, 2)
        assert_near(play.value, model(x)[:, 2])
        for b in range(2):
            z1 = hand.numbers(model[0](x[b]))
            z2 = hand.numbers(model[:3](x[b]))
            one = np.maximum(0, z1 - LAMBDA * hand.fan_in_entropy(model[0].weight))
            two = np.maximum(0, z2 - LAMBDA * hand.fan_in_entropy(model[2].weight))
            assert (one > 0).any() and (two > 0).any() and ((one > 0) != (z1 > 0)).any()
            assert_near(play.observed("1")[b], one)
            assert_near(play.observed("3")[b], two)
            assert_near(play.observed("2")[b], z2)
            mass = hand.route(hand.unit(3, 2), hand.numbers(model[4].weight), two, 0.1) * (two > 0)
            mass = hand.route(mass, hand.numbers(model[2].weight), one, 0.1) * (one > 0)
            mass = hand.route(mass, hand.numbers(model[0].weight), hand.numbers(x[b]), 0.1)
            assert_near(play.attribution()[b], mass * float(play.value[b]))

    def test_uniform_and_selective_rows(self):
        """app:entropy-mode: `H̃` is 1 for equal weights of any sign and 0 for a single one."""
        model, x = hand.mlp(4, 2, 2), torch.ones(1, 4, dtype=torch.float64)
        model[0].weight.copy_(torch.tensor([[1.0, -1.0, 1.0, 1.0], [0.0, 2.0, 0.0, 0.0]]))
        model[0].bias.zero_()
        shown = bp.RoutingGame(alike(model, x), entropy_bias=LAMBDA).play(x, 0).observed("1")
        assert_near(shown, [[2 - LAMBDA, 2.0]])

    def test_convolution_and_max_pool(self):
        """S20: the whole kernel per output channel; a pool behind the gate hands on, winners stay."""
        model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 2))
        model, x = model.double().eval(), torch.randn(1, 4, 6, 6, dtype=torch.float64)
        play = bp.RoutingGame(alike(model, x), entropy_bias=LAMBDA).play(x, 0)
        bias = torch.tensor(hand.fan_in_entropy(model[0].weight))[:, None, None]  # n_i = 2·9: the group's own inputs
        assert bias.std() > 1e-3
        shown = torch.relu(model[0](x) - LAMBDA * bias)
        assert_near(play.observed("1"), shown)
        assert_near(play.policy("1"), shown > 0)
        assert_near(play.observed("2"), nn.functional.max_pool2d(shown, 2))  # one bias per channel: winners stay

    def test_through_wires_diagonals_and_norms(self):
        """S20: the affine node is reached through a reshape, an unfolded batch norm and a layer norm."""

        class Behind(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.norm, self.last, self.relu = (
                    nn.Linear(4, 6),
                    nn.LayerNorm(3),
                    nn.BatchNorm1d(2),
                    nn.ReLU(),
                )
                self.head = nn.Linear(6, 2)

            def forward(self, x):
                return self.head(self.relu(self.last(self.norm(self.lin(x).unflatten(1, (2, 3))))).flatten(1))

        model, x = Behind().double().eval(), torch.randn(1, 4, dtype=torch.float64)
        model.last.running_var.fill_(0.3)
        play = bp.RoutingGame(alike(model, x), entropy_bias=0.3).play(x, 0)
        bias = torch.tensor(hand.fan_in_entropy(model.lin.weight)).view(2, 3)
        z = model.last(model.norm(model.lin(x).unflatten(1, (2, 3))))
        assert_near(play.observed("relu"), torch.relu(z - 0.3 * bias))

    @pytest.mark.parametrize("case", ["sum", "single", "depthwise"])
    def test_no_bias(self, case):
        """S20: behind a sum, and where `n_i = 1`, there is none."""

        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.relu, self.head = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.relu(self.lin(x) + x))

        if case == "sum":
            model, shape = Sum(), (1, 4)
        elif case == "single":
            model, shape = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2)), (1, 1)
        else:
            model, shape = (
                nn.Sequential(nn.Conv1d(3, 3, 1, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
                (1, 3, 4),
            )
        model, x = model.double().eval(), torch.randn(*shape, dtype=torch.float64)
        game = bp.RoutingGame(alike(model, x))
        biased, plain = game.replace(entropy_bias=5.0).play(x, 0), game.play(x, 0)
        name = "relu" if case == "sum" else "1"
        assert plain.observed(name).any()
        assert_near(biased.observed(name), plain.observed(name), 1e-13)
        assert_near(biased.attribution(), plain.attribution())

    def test_stopping_game(self):
        """S20: the Stopping Game's gates are `1[z − λ_ent H̃ > 0]`; backward only."""
        model, x = hand.mlp(5, 12, 3), torch.randn(1, 5, dtype=torch.float64)
        play = bp.StoppingGame(alike(model, x), entropy_bias=LAMBDA).play(x, 1)
        z = hand.numbers(model[0](x))[0]
        alive = z - LAMBDA * hand.fan_in_entropy(model[0].weight) > 0
        assert (alive != (z > 0)).any() and alive.any()
        assert_near(play.value, model(x)[:, 1])
        assert_near(play.policy("1")[0], alive)
        assert_near(play.attribution()[0], (hand.numbers(model[2].weight)[1] * alive) @ hand.numbers(model[0].weight))

    def test_gelu_and_risk(self):
        """S20: the shift stands inside the gate, and inside the moments of a risk-averse gate."""
        model, x = hand.mlp(5, 6, 3, gate=nn.GELU), torch.randn(1, 5, dtype=torch.float64)
        z = hand.numbers(model[0](x))[0] - LAMBDA * hand.fan_in_entropy(model[0].weight)
        play = bp.RoutingGame(alike(model, x), entropy_bias=LAMBDA).play(x, 1)
        assert_near(play.observed("1")[0], z * hand.cdf(z))
        relu = hand.mlp(5, 12, 3)
        z = hand.numbers(relu[0](x))[0] - LAMBDA * hand.fan_in_entropy(relu[0].weight)
        play = bp.RoutingGame(alike(relu, x), entropy_bias=LAMBDA, risk=-1.0, input_variance=0.3).play(x, 1)
        shown = hand.v_risk(z, 0.3 * hand.numbers(relu[0].weight.square().sum(1)), -1.0)
        assert (shown > 0).any()
        assert_near(play.observed("1")[0], shown, 1e-9)


class TestNoisy:
    """S21, eq:noisy-gate-weighted: `c = Φ((μ_z + λσ_z)/noise)` on ReLU networks."""

    @pytest.mark.parametrize("noise", [0.5, 1.0])
    @pytest.mark.parametrize("risk", [0.0, -1.0])
    def test_routing(self, noise, risk):
        """S21: the gate of the current layer is soft, values below stay what players observe; map by hand."""
        model, x = hand.mlp(5, 7, 3), torch.randn(1, 5, dtype=torch.float64)
        play = bp.RoutingGame(
            model, gate="noisy", gate_noise=noise, risk=risk, input_variance=0.3, epsilon=0.2, tau=0.7
        ).play(x, 1)
        z, v = hand.numbers(model[0](x))[0], 0.3 * hand.numbers(model[0].weight.square().sum(1))
        gate = hand.cdf((z + risk * np.sqrt(v)) / noise)
        shown = np.maximum(0, z) if risk == 0 else hand.v_risk(z, v, risk)
        assert_near(play.policy("1")[0], gate)
        assert_near(play.observed("1")[0], shown, 1e-9)
        mass = hand.route(hand.unit(3, 1), hand.numbers(model[2].weight), shown, 0.2, 0.7) * gate
        mass = hand.route(mass, hand.numbers(model[0].weight), hand.numbers(x)[0], 0.2, 0.7)
        assert_near(play.attribution()[0], mass * float(model(x)[0, 1]), 1e-8)

    @pytest.mark.parametrize("noise", [0.5, 1.0])
    @pytest.mark.parametrize("risk", [0.0, -1.0])
    def test_stopping(self, noise, risk):
        """S21: the same gates in the Stopping Game, at the pre-activations of its own forward pass."""
        model, x = hand.mlp(5, 7, 6, 3), torch.randn(1, 5, dtype=torch.float64)
        play = bp.StoppingGame(alike(model, x), gate="noisy", gate_noise=noise, risk=risk, input_variance=0.3).play(
            x, 1
        )
        (w1, b1), (w2, b2), (w3, b3) = ((hand.numbers(m.weight), hand.numbers(m.bias)) for m in model[::2])
        z1, v1 = w1 @ hand.numbers(x)[0] + b1, w1**2 @ np.full(5, 0.3)
        a1 = np.maximum(0, z1) if risk == 0 else hand.v_risk(z1, v1, risk)
        z2, v2 = w2 @ a1 + b2, w2**2 @ hand.relu_moments(z1, v1)[1]
        a2 = np.maximum(0, z2) if risk == 0 else hand.v_risk(z2, v2, risk)
        one, two = hand.cdf((z1 + risk * np.sqrt(v1)) / noise), hand.cdf((z2 + risk * np.sqrt(v2)) / noise)
        assert_near(play.value[0], (w3 @ a2 + b3)[1], 1e-9)
        assert_near(play.policy("1")[0], one, 1e-9)
        assert_near(play.policy("3")[0], two, 1e-9)
        assert_near(play.attribution()[0], ((w3[1] * two) @ w2 * one) @ w1, 1e-9)

    def test_small_noise_is_exact(self):
        """eq:noisy-gate-weighted: `noise → 0` collapses to the hard gate; large noise to 1/2."""
        model, x = hand.mlp(5, 7, 3), torch.randn(2, 5, dtype=torch.float64)
        for game in (bp.RoutingGame(alike(model, x)), bp.StoppingGame(alike(model, x))):
            hard = game.attribute(x, 0)
            assert_near(game.replace(gate="noisy", gate_noise=1e-6).attribute(x, 0), hard)
            assert l1_relative(game.replace(gate="noisy").attribute(x, 0), hard) > 1e-2
            assert_near(game.replace(gate="noisy", gate_noise=1e9).play(x, 0).policy("1"), np.full((2, 7), 0.5), 1e-8)

    def test_other_gates_keep_theirs(self):
        """S21: only ReLU gates are noisy; a GELU is one already."""
        model, x = hand.mlp(5, 7, 3, gate=nn.GELU), torch.randn(2, 5, dtype=torch.float64)
        game = bp.RoutingGame(alike(model, x))
        assert_near(game.replace(gate="noisy", gate_noise=3.0).attribute(x, 0), game.attribute(x, 0), 1e-13)


class TestSoftplus:
    """thm:softplus-forward, thm:softplus-gradient: the gradient of the network with Softplus in place of ReLU."""

    def build(self, gate):
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), gate(), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 2), gate(),
            nn.Flatten(), nn.Linear(20, 6), gate(), nn.Linear(6, 3),
        )  # fmt: skip
        return model.double().eval(), torch.randn(2, 2, 6, 6, dtype=torch.float64)

    @pytest.mark.parametrize("theta", [0.05, 0.5, 2.0])
    def test_gradient(self, theta):
        """thm:softplus-gradient: `Γ₊ − Γ₋` is autograd's gradient, at the input and at a hidden layer."""
        relu, x = self.build(nn.ReLU)
        soft, _ = self.build(lambda: nn.Softplus(beta=1 / theta, threshold=1e9))
        play = bp.StoppingGame(alike(relu, x), softplus=theta).play(x, 2)
        with torch.enable_grad():
            point = x.clone().requires_grad_()
            value = soft(point)[:, 2]
            (gradient,) = torch.autograd.grad(value.sum(), point)
        assert_near(play.value, value)
        assert_near(play.attribution(), gradient)
        assert_near(play.observed("5"), soft[:6](x))
        again = bp.StoppingGame(alike(relu, x), softplus=theta, multiply_by_input=True).attribute(x, 2)
        assert_near(again, gradient * x)

    def test_limit(self):
        """app:softplus-rules: θ → 0 is the ReLU game."""
        relu, x = self.build(nn.ReLU)
        game = bp.StoppingGame(alike(relu, x))
        errors = [l1_relative(game.replace(softplus=t).attribute(x, 2), game.attribute(x, 2)) for t in (1.0, 0.1, 1e-5)]
        assert errors[0] > 1e-2 and errors[0] > errors[1] > errors[2] and errors[2] < 1e-10
        assert_near(game.replace(softplus=1e-5).play(x, 2).value, game.play(x, 2).value, 1e-5)

    def test_not_with_risk(self):
        """Both replace the activations: one at a time."""
        with pytest.raises(ValueError, match="softplus"):
            bp.StoppingGame(hand.mlp(3, 2), softplus=1.0, risk=-1.0)
