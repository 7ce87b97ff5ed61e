"""Policies as optimisers (lem:noisy-gate-dual, eq:legendre-fenchel-app, lem:kl-legendre-fenchel): the regularised
objectives are maximised numerically and compared with what the players of a solved game do."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from closeness import assert_near

pytestmark = pytest.mark.usefixtures("without_gradients")


@torch.enable_grad()
def best_of_two(objective):
    """The maximiser in [0, 1] of each element of a concave objective, by bisection on its derivative."""
    size = objective(torch.tensor(0.5, dtype=torch.float64)).shape
    low, high = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    for _ in range(60):
        middle = ((low + high) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(objective(middle).sum(), middle)
        low, high = torch.where(slope > 0, middle, low).detach(), torch.where(slope > 0, high, middle).detach()
    return (low + high) / 2


@torch.enable_grad()
def best_of_simplex(objective, size):
    """The maximiser of a concave objective over the simplex, by L-BFGS on logits."""
    logits = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-14, tolerance_change=1e-18, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -objective(torch.softmax(logits, 0))
        loss.backward()
        return loss

    optimiser.step(closure)
    return torch.softmax(logits, 0).detach()


def entropy(pi):
    return -torch.special.xlogy(pi, pi).sum()


@pytest.mark.parametrize("game", [bp.RoutingGame, bp.StoppingGame])
@pytest.mark.parametrize("noise", [0.4, 1.0, 2.5])
def test_probit_dual(game, noise):
    """lem:noisy-gate-dual, eq:noisy-gate-weighted: `argmax π z + s φ(Φ⁻¹(π)) = Φ(z/s)`, optimum `E max(z + s ε, 0)`.

    eq:noisy-gate-regulariser, eq:noisy-gate-objective, eq:noisy-gate-optimum and, at s = 1, eq:noisy-gate-defn. The
    regulariser's slope is `−Φ⁻¹(π)` (eq:noisy-gate-deriv), and the policy is how often a player who perceives `z + s ε`
    finds it positive (rem:noisy-gate-perception, eq:noisy-gate-marginal).
    """
    model, x = hand.mlp(5, 8, 3), torch.randn(2, 5, dtype=torch.float64)
    z = model[0](x).detach()

    def objective(pi):
        quantile = torch.special.ndtri(pi)
        return pi * z + noise * torch.exp(-quantile.square() / 2) / hand.SQRT_TAU

    best = best_of_two(objective)
    found = game(model, gate="noisy", gate_noise=noise).play(x, 1).policy("1")
    assert_near(found, best)
    smooth, _ = hand.each(lambda a: a, hand.numbers(z), np.full(z.shape, noise**2), low=0.0)
    assert_near(objective(found), smooth, 1e-9)
    inner = found.clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad((objective(inner) - inner * z).sum(), inner)
    assert_near(slope, -noise * torch.special.ndtri(found), 1e-9)
    perceived, _ = hand.each(np.ones_like, hand.numbers(z), np.full(z.shape, noise**2), low=0.0)
    assert_near(found, perceived, 1e-9)


@pytest.mark.parametrize("theta", [0.2, 1.0, 3.0])
def test_gibbs_gate(theta):
    """eq:softplus-soft-bellman: `argmax ν z + θ H(ν) = sigmoid(z/θ)`, the optimum is what the gate shows.

    eq:softplus-policy, eq:softplus-soft-value.
    """
    model, x = hand.mlp(5, 8, 3), torch.randn(2, 5, dtype=torch.float64)
    z = model[0](x).detach()

    def objective(nu):
        return nu * z - theta * (torch.special.xlogy(nu, nu) + torch.special.xlogy(1 - nu, 1 - nu))

    play = bp.StoppingGame(alike(model, x), softplus=theta).play(x, 1)
    assert_near(play.policy("1"), best_of_two(objective))
    assert_near(play.observed("1"), objective(best_of_two(objective)))


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_entropy_dual_of_a_stream(tau, epsilon):
    """eq:legendre-fenchel-app with payoffs `log c_i` and `log ε` at temperature τ: the policy of each stream state.

    eq:optimal-linear is what is maximised, eq:gibbs-policy and eq:routing-spne-linear what is found,
    eq:routing-linear-value what it is worth.
    """
    model, x = hand.mlp(4, 5, 2), torch.randn(1, 4, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), tau=tau, epsilon=epsilon).play(x, 0)
    kept, switched = play.policy("0", (0, 2))["input"]
    contributions = (model[0].weight[2] * x[0]).detach()
    assert (contributions > 0).any() and (contributions < 0).any()
    for sign, found in ((1, kept), (-1, switched)):
        at = sign * contributions > 0
        payoffs = (sign * contributions[at]).log()
        policy = 2 * found[0][at]  # the sign oracle takes each stream with probability 1/2
        assert (found[0][~at].abs() < 1e-15).all()
        if epsilon > 0:
            payoffs = torch.cat([payoffs, torch.tensor([math.log(epsilon)], dtype=torch.float64)])
            policy = torch.cat([policy, 1 - policy.sum()[None]])
        objective = lambda pi, r=payoffs: (pi * r).sum() + tau * entropy(pi)  # noqa: E731
        assert_near(policy, best_of_simplex(objective, len(payoffs)), 1e-5)
        assert_near(policy.sum(), 1.0)
        assert_near(objective(policy), tau * torch.logsumexp(payoffs / tau, 0))
        marginal = payoffs - tau * policy.log()  # first-order condition: the same for every action
        assert marginal.max() - marginal.min() < 1e-9


@pytest.mark.parametrize("fused", [True, False])
def test_kl_dual_of_the_keys(fused):
    """lem:kl-legendre-fenchel, prop:attn-value-policy: keys maximise `E_π log ṽ − KL(π‖A)` on each stream.

    eq:kl-lf-objective, eq:attn-value-routing are what is maximised, eq:kl-lf-optimizer, eq:attn-value-policy and
    eq:attn-branch-policy what is found; it is worth `log Z^σ` (eq:kl-lf-linearized, eq:attn-z-def).
    """
    model, x = hand.attention(fused), torch.randn(1, 3, 3, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x), epsilon=0.0).play(x, 0)
    (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
    head, query, d = 1, 2, 0
    reference = play.attention(node.name)[0, head, query]
    h = torch.relu(model.embed(x))[0].detach()
    products = h[:, None] * model.v.weight[head * 2 + d].detach()  # (tokens, 1, features)
    (found,) = play.policy(node.name, (0, head, query, d)).values()
    for sign, moved in ((1, found[0]), (-1, found[1])):
        worth = (sign * products).clamp(min=0).sum((1, 2))
        keys = 2 * moved[0].sum(-1)
        at = worth > 0
        assert at.sum() > 1
        assert (keys[~at].abs() < 1e-15).all()
        mu, r, policy = reference[at], worth[at].log(), keys[at]
        objective = lambda pi, mu=mu, r=r: (pi * r).sum() - (pi * (pi / mu).log()).sum()  # noqa: E731
        assert_near(policy, best_of_simplex(objective, len(r)), 1e-5)
        assert_near(objective(policy), (mu * worth[at]).sum().log())
        marginal = r - (policy / mu).log()
        assert marginal.max() - marginal.min() < 1e-9


def test_oracle_dual():
    """prop:attn-qk-oracle, eq:attn-qk-oracle, eq:attn-qk-policy: the oracle's row maximises `Σ π e + H(π)`."""
    model, x = hand.attention(False), torch.randn(1, 3, 3, dtype=torch.float64)
    play = bp.RoutingGame(alike(model, x)).play(x, 0)
    (node,) = [n for n in play.network.nodes if tuple(n.shape[1:]) == (2, 3, 2) and n.kind == "mix"]
    h = torch.relu(model.embed(x))
    e = (model.split(model.q(h)) @ model.split(model.k(h)).mT / math.sqrt(2))[0, 0, 1].detach()
    best = best_of_simplex(lambda pi: (pi * e).sum() + entropy(pi), 3)
    assert_near(play.attention(node.name)[0, 0, 1], best, 1e-5)


def test_mix_of_nonnegative_is_one_stream():
    """eq:legendre-fenchel-app at a pooling: payoffs `log w_i ã_i`, no outside option, the turn kept (S18)."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2)).double().eval()
    x = torch.rand(1, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(0.1)
    play = bp.RoutingGame(alike(model, x), tau=2.0).play(x, 0)
    kept, switched = play.policy("2", (0, 0, 0, 1))["1"]
    payoffs = (play.observed("1")[0, 0, :2, 2:] / 4).log().flatten()
    best = best_of_simplex(lambda pi: (pi * payoffs).sum() + 2.0 * entropy(pi), 4)
    assert_near(kept[0, 0, :2, 2:].flatten(), best, 1e-5)
    assert_near(kept.sum(), 1.0)
    assert not switched.any()
