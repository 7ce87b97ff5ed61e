"""Corners of trajectory space where a distance could be wrong without a word."""

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import same_law


def convolutional(**options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, **options), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()


@pytest.mark.parametrize("tau", [0.3, 0.5])
def test_cold_games_without_outside_option(tau):
    """S28, S37: tiny streams have large coefficients; their geometric mean stays in the range of float32."""
    x = torch.randn(2, 2, 6, 6)
    with torch.no_grad():
        model = convolutional(padding=1)
        model[0].weight[:, :, 0] *= 1e-9
        model[0].weight[1] = -model[0].weight[1].abs()
    game = bp.RoutingGame(model, tau=tau, epsilon=0.0)
    play = game.play(x, 1)
    assert (bp.hellinger(play, game.play(x, 1)).distance < same_law(x.dtype)).all()
    other = bp.hellinger(play, game.play(x + 0.1, 1))
    assert torch.isfinite(other.distance).all() and (other.distance > 0).all()


class Branches(nn.Module):
    """A branch that no walk survives beside one that hardly any does."""

    def __init__(self, depth):
        super().__init__()
        self.dead, self.deep = nn.Linear(3, 3), nn.Sequential(*(nn.Linear(3, 3) for _ in range(depth)))
        self.head = nn.Linear(3, 2)
        with torch.no_grad():
            self.dead.bias.fill_(-1e3)

    def forward(self, x):
        return self.head(torch.relu(self.dead(x)) + self.deep(x))


def test_a_dead_branch_beside_tiny_survival():
    """S30: what holds no mass has no scale, and brings no NaN to what does."""
    model, x = Branches(60).eval(), torch.randn(2, 3)
    found = []
    for dtype in (torch.float32, torch.float64):
        game = bp.RoutingGame(model.to(dtype), epsilon=50.0)
        plays = game.play(x.to(dtype), 0), game.play(x.to(dtype) + 0.5, 0)
        h = bp.hellinger(*plays, conditioning="kernel")
        assert torch.isfinite(h.log_survival_a).all() and (h.log_survival_a < -180).all()
        found.append((h.surviving, h.log_survival_a, h.log_survival_b))
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-3)


def test_fractions_of_nothing():
    """S30: where nobody survives, no conditioned map says that the plays agree."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[0].bias.fill_(-1e3)
    game = bp.StoppingGame(model)
    h = bp.hellinger(game.play(torch.randn(1, 3), 0), game.play(torch.randn(1, 3), 0))
    for kind in ("trajectory", "marginal", "fraction"):
        assert torch.isnan(h.map(kind, conditioned=True)).all(), kind


@pytest.mark.parametrize(
    "left, right",
    [
        (convolutional(padding=1), convolutional(padding=2, dilation=2)),
        (convolutional(padding=1), nn.Sequential(nn.Conv2d(2, 4, 5, padding=2), *convolutional(padding=1)[1:])),
    ],
)
def test_other_geometry(left, right):
    """S27: convolutions of equal shapes that look elsewhere are not the same node."""
    x = torch.randn(1, 2, 6, 6)
    plays = [bp.RoutingGame(model.eval()).play(x, 0) for model in (left, right)]
    with pytest.raises(bp.BackplayError, match="differ first at node '0'"):
        bp.hellinger(*plays)


def test_other_wires():
    """S27: halves of a tensor are different elements, whatever their shapes."""

    class Half(nn.Module):
        def __init__(self, start):
            super().__init__()
            self.start, self.head = start, nn.Linear(3, 2)

        def forward(self, x):
            return self.head(x[:, self.start : self.start + 3])

    plays = [bp.StoppingGame(Half(start).eval()).play(torch.randn(1, 6), 0) for start in (0, 3)]
    with pytest.raises(bp.BackplayError, match="differ first"):
        bp.hellinger(*plays)


def test_plays_of_a_model_that_has_changed():
    """S1: a play keeps what it was solved with; what reads the model itself refuses."""
    model, x = convolutional(padding=1), torch.randn(1, 2, 6, 6)
    game = bp.RoutingGame(model)
    old = game.play(x, 0)
    with torch.no_grad():
        model[0].weight.normal_()
    new = game.play(x, 0)
    assert (bp.hellinger(new, old).distance > 0.1).all()
    with pytest.raises(bp.BackplayError, match="has changed since this play was solved"):
        bp.hellinger(new, old, invariant="permutation")
    with pytest.raises(bp.BackplayError, match="has changed since this play was solved"):
        bp.certify(old)


def test_orders_of_tied_layers():
    """S33: orders that are given together hold together, or are refused; the copy computes the same."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(torch.relu(self.left(x) + self.right(x)))

    model, x, order = Residual().eval(), torch.randn(2, 3), torch.tensor([2, 0, 3, 1])
    twin = bp.transforms.permute_neurons(model, x, {"left": order, "right": order.tolist()})
    torch.testing.assert_close(twin(x), model(x))
    assert not torch.equal(twin.left.weight, model.left.weight)
    with pytest.raises(bp.BackplayError, match=r"'left', 'right' .* tears apart what keeps together: tied channels"):
        bp.transforms.permute_neurons(model, x, {"left": order, "right": order.flip(0)})


class Indexed(nn.Module):
    """Takes the elements that an input of indices names."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x, index):
        return self.head(torch.gather(x, 1, index))


def test_other_indices():
    """S27: plays that take other elements by an index do not walk on the same states."""
    game = bp.StoppingGame(Indexed().eval())
    first, second = torch.tensor([[0, 1, 2]]), torch.tensor([[3, 4, 5]])
    plays = [game.play({"x": torch.randn(1, 6), "index": index}, 0) for index in (first, first, second)]
    assert (bp.hellinger(*plays[:2]).distance < same_law(torch.float32)).all()
    with pytest.raises(bp.BackplayError, match="an index or a mask"):
        bp.hellinger(plays[0], plays[2])


def test_targets_behind_scales_of_opposite_sign():
    """S27: a root whose turn is handed over on one side alone is no common state."""

    class Signed(nn.Module):
        def __init__(self, signs):
            super().__init__()
            self.head, self.signs = nn.Linear(3, 2), nn.Parameter(torch.tensor(signs))
            with torch.no_grad():
                self.head.weight[1] = self.head.weight[0]

        def forward(self, x):
            return self.head(x) * self.signs

    x = torch.randn(1, 3)
    for signs, expected in (([1.0, 2.0], 0.0), ([1.0, -2.0], 1.0)):
        game = bp.StoppingGame(Signed(signs).eval())
        assert float(bp.hellinger(game.play(x, 0), game.play(x, 1)).distance) == pytest.approx(expected, abs=1e-6)


def test_bounds_refuse():
    """S35: outside their range the formulas say nothing."""
    with pytest.raises(bp.BackplayError, match="survival_a=0"):
        bp.bounds.surviving_distance(0.1, 0.0, 0.5)
    with pytest.raises(bp.BackplayError, match="layers=-3"):
        bp.bounds.cemetery_floor(0.2, 0.5, 0.5, layers=-3)
