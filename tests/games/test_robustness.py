"""`bp.robustness`: walks and maps under input noise, for gates from hard to soft (app:softplus-dombrowski)."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay import zoo
from closeness import assert_near
from refusals import refused

F64 = torch.float64


def model():
    torch.manual_seed(5)
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double().eval()


X = torch.randn(2, 2, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(1))


def test_against_plays_and_autograd():
    """app:softplus-dombrowski: every number again, by plays of its own and by gradients of the Softplus network."""
    net, thetas, noise, n = model(), (0.0, 0.2, 1.0), 0.3, 3
    found = bp.robustness(net, X, thetas=thetas, noise=noise, n=n, seed=4)
    generator, target = torch.Generator().manual_seed(4), net(X).argmax(1)
    drawn = [noise * torch.randn(X.shape, generator=generator, dtype=F64) for _ in range(n)]
    assert_near(found.shift, torch.stack([d.flatten(1).norm(dim=1) for d in drawn], 1))
    for t, theta in enumerate(thetas):
        gate = nn.Softplus(beta=1 / theta, threshold=40.0) if theta else nn.ReLU()
        soft = nn.Sequential(*(gate if isinstance(m, nn.ReLU) else m for m in net))
        game = bp.StoppingGame(net, softplus=theta or None)
        clean, play = gradient(soft, X, target), game.play(X, target)
        assert_near(found.size[t], clean.flatten(1).norm(dim=1), what="size")
        for k, d in enumerate(drawn):
            moved = gradient(soft, X + d, target)
            assert_near(found.change[t, :, k], (moved - clean).flatten(1).norm(dim=1), what=f"change at θ = {theta}")
            apart = bp.hellinger(play, game.play(X + d, target)).distance
            assert_near(found.distance[t, :, k], apart, what=f"H at θ = {theta}")
        assert_near(found.curvature[t].nan_to_num(posinf=-1), bp.bounds.curvature(play).nan_to_num(posinf=-1))
    alive = found.size > 0  # a network of dead ReLUs has no gradient: what comes from nothing is no share of it
    assert_near(found.relative[alive], (found.change / found.size[..., None])[alive])
    assert not bool(found.relative.isnan().any()) and bool(torch.isinf(found.relative[~alive]).any())
    assert bool((found.measured <= found.curvature[..., None]).all())
    assert bool(torch.isinf(found.curvature[0]).all()) and found.refusal == ""
    assert "θ = 0.2" in repr(found) and "3 draws" in repr(found)


def gradient(net, x, target):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(net(x).gather(1, target[:, None]).sum(), x)[0]


def test_bound_falls_with_theta():
    """app:softplus-dombrowski: the bound is a sum of terms in 1/θ, so ten times as soft is ten times as safe."""
    found = bp.robustness(model(), X, 1, thetas=[0.1, 1.0], n=1)
    assert_near(found.curvature[0], 10 * found.curvature[1])


def test_measured_where_no_bound_is_known():
    """Walks and maps are measured on any network; the reason why there is no bound is said."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)).double().eval()
    found = bp.robustness(net, X, 1, thetas=[0.0, 0.5], n=2)
    assert found.curvature is None and "'2', of kind max" in found.refusal
    assert found.distance.shape == found.change.shape == (2, 2, 2) and float(found.change[1].min()) > 0


def test_seeds_targets_and_several_inputs():
    """The same seed gives the same numbers; targets are those of games; noise comes to every explained input."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(3, 5), nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, a, b):
            return self.head(torch.relu(self.first(a) + self.second(b)))

    torch.manual_seed(0)
    net, pair = Two().double().eval(), (torch.randn(2, 3, dtype=F64), torch.randn(2, 4, dtype=F64))
    one, same, other = (bp.robustness(net, pair, 0, thetas=[0.5], n=2, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.change, same.change) and not torch.equal(one.change, other.change)
    assert bool((one.measured <= one.curvature[..., None]).all())
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(t.shape, generator=generator, dtype=F64) for t in pair]
    assert_near(one.shift[:, 0], 0.1 * torch.cat(drawn, 1).norm(dim=1))
    hidden = bp.robustness(net, pair, [("second", 1), ("second", 3)], thetas=[0.5], n=1)
    assert_near(hidden.change, torch.zeros(1, 2, 1), scale=1.0, what="an affine neuron does not bend")


def test_refusals():
    """Bad keywords, one line each."""
    for keywords, words in (
        ({"thetas": []}, ("thetas=[]", "list of numbers")),
        ({"thetas": 0.1}, ("thetas=0.1", "list of numbers")),
        ({"thetas": [-0.1]}, ("thetas=-0.1", ">= 0")),
        ({"noise": 0.0}, ("noise=0.0", "> 0")),
        ({"n": 0}, ("n=0", ">= 1")),
    ):
        assert "\n" not in refused(lambda k=keywords: bp.robustness(model(), X, **k), *words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_on_the_bundled_networks(name):
    """Players who are less sure change their minds less: on trained networks walk and map move less than with ReLU.

    The walk and the map itself move less and less as θ grows. By its own size the map does not: at θ = 1 little is left
    of the gradient (ResNet: 0.43 with ReLU, 0.32 at θ = 0.3, 0.38 at θ = 1).
    """
    batch = zoo.images(8)
    found = bp.robustness(zoo.load(name), batch.x, batch.target, thetas=[0.0, 0.3, 1.0], noise=0.05, n=2)
    walk, moved, share = (t.flatten(1).median(1).values for t in (found.distance, found.measured, found.relative))
    assert bool((walk.diff() < 0).all()) and bool((moved.diff() < 0).all())
    assert bool((share[1:] < share[0]).all())
    assert found.curvature is None and "of kind max" in found.refusal
