"""The Stopping Game's sums by size (def:addition-subgame with discounts 1/p and 1/(1−p); S7)."""

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near

F64 = torch.float64


class Skip(nn.Module):
    """relu(first), pooled or not, plus a branch of it; the branch's second row is 0 for every input."""

    def __init__(self, pooled):
        super().__init__()
        self.first, self.branch, self.head = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.pooled = pooled
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0, 2, 0], [0, 1, 1], [-1, 0, -2], [2, 0, 1]]))
            self.first.bias.zero_()
            self.branch.weight.copy_(torch.tensor([[1.0, 0, 5, 1], [2, -6, 0, 2], [0, 3, 1, 0], [0, 0, 1, -1]]))
            self.head.weight.copy_(torch.tensor([[1.0, 1, 1, 1], [1, -1, 2, 0]]))

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.pooled:
            h = torch.max_pool1d(h[:, None], 1)[:, 0]
        return self.head(self.branch(h) + h)


X = torch.tensor([[1.0, 1, 1], [1.0, 1, 1]], dtype=F64)  # h = (3, 2, 0, 3), branch = (6, 0, 6, -3)


@pytest.mark.parametrize("pooled", [False, True])
def test_gradient_stays_and_the_walk_goes_by_size(pooled):
    """thm:deriv-occ at any p: autograd is the oracle for the difference, pencil and paper for the walk."""
    model = Skip(pooled).double().eval()
    x = X.clone().requires_grad_()
    games = {r: bp.StoppingGame(model, residual=r) for r in ("uniform", "proportional")}
    plays = {r: game.play(X, 1) for r, game in games.items()}
    h = torch.relu(model.first(x))
    out = model.head(model.branch(h) + h)[:, 1].sum()
    inside, gradient = torch.autograd.grad(out, (h, x))
    for play in plays.values():
        assert_near(play.attribution(), gradient, what="gradient")
        found = play.occupation("first")
        assert_near(found.difference * found.difference_log_scale.exp()[:, None], inside * (h > 0), what="hidden layer")
        assert play.health().ok and play.health().mass_error < 1e-12
    # the head walks to the sum's neurons with 1/4, 1/4, 1/2, 0; its branch is taken with 6/9, 1/2, 1 and 1/2:
    # the second is 0 but has a slope, the third's skip is a shut gate, where no walk is sent
    sums = torch.tensor([1.0, 1, 2, 0], dtype=F64) / 4
    p = torch.tensor([6 / 9, 0.5, 1.0, 0.5], dtype=F64)
    assert_near(plays["proportional"].marginal("branch"), (sums * p).expand(2, -1), what="branch")
    rows = model.branch.weight.abs() / model.branch.weight.abs().sum(1, keepdim=True)
    at_h = sums * (1 - p) + (sums * p) @ rows
    assert_near(plays["proportional"].marginal("first"), (at_h * (h[0] > 0)).expand(2, -1), what="first layer")
    assert_near(plays["proportional"].cemetery, at_h[2].expand(2), what="shut gate, entered from the branch alone")
    assert bool((plays["proportional"].cemetery < plays["uniform"].cemetery).all())
    assert bool((bp.hellinger(plays["uniform"], plays["proportional"]).distance > 0.1).all()), "H changes"
    drawn = plays["proportional"].sample(4000, seed=2)
    assert bool((drawn.check() > 1e-4).all()) and bool((drawn.check("branch") > 1e-4).all())


def test_tiny_operands():
    """A share below any float: its discount would be infinite, and the gradient is still exact in float32."""
    model = Skip(False).eval()
    with torch.no_grad():
        model.branch.weight.mul_(1e-38)
    x = X.float().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, 0].sum(), x)
    assert_near(bp.StoppingGame(model, residual="proportional").attribute(X.float(), 0), gradient, 1e-6)


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_a_tiny_operand_is_reached_on_either_side(game):
    """Shares are quotients of sizes, not 1 less the other's: the order of the operands does not matter."""

    class Sum(nn.Module):
        def __init__(self, first):
            super().__init__()
            self.first, self.head = first, nn.Linear(3, 1)

        def forward(self, x):
            small, large = 1e-9 * x, x * 1.0
            return self.head(small + large if self.first else large + small)

    x, plays = torch.rand(1, 3) + 0.5, []
    for first in (True, False):
        torch.manual_seed(0)
        plays.append(game(Sum(first).eval(), residual="proportional").play(x, 0))
    shares = []
    for play, first in zip(plays, (True, False), strict=True):
        node = next(n for n in play.network.nodes if n.kind == "sum")
        shares.append(float(play.kernel(node).shares[0 if first else 1].flatten()[0]))
    assert shares[0] == pytest.approx(shares[1], rel=1e-5) and shares[1] > 0
