"""Permuted and rescaled neurons (S33, S34)."""

import itertools

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.network.assignment import _shortest_paths, assign


class Residual(nn.Module):
    """Folded and unfolded batch norms, a residual sum, a pool, a flatten."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.folded, self.plain = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.hidden, self.head = nn.Linear(6 * 16, 7), nn.Linear(7, 3)
        for norm in (self.folded, self.plain):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 2)

    def forward(self, x):
        h = torch.relu(self.folded(self.first(x)))
        h = self.plain(h + torch.relu(self.second(h)))
        return self.head(torch.relu(self.hidden(nn.functional.max_pool2d(h, 2).flatten(1))))


class Attentive(nn.Module):
    """Two heads of three features and a hidden layer; the tokens' own channels stay, a class token holds them."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(3, 6), nn.Linear(6, 18), nn.Linear(6, 6)
        self.up, self.down, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 6))

    def forward(self, x):
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.embed(x)], 1)
        q, k, v = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head((h + self.down(nn.functional.gelu(self.up(h))))[:, 0])


def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


CASES = [(mlp, (2, 5)), (Residual, (2, 3, 8, 8))]
EXACT = {"epsilon": 0.0}


def make(kind, shape):
    return kind().double().eval(), torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("kind, shape", CASES)
def test_rescaled_neurons(kind, shape):
    """Routing is invariant at ε = 0 and only there, Stopping is not; layer by layer both are."""
    model, x = make(kind, shape)
    twin = bp.transforms.rescale_neurons(model, x, seed=1)
    assert torch.allclose(twin(x), model(x))

    def distance(game, other, **options):
        return bp.hellinger(game(model, **options).play(x, 0), game(other, **options).play(x, 0)).distance

    assert (distance(bp.RoutingGame, twin, **EXACT) < 1e-7).all()
    assert (distance(bp.RoutingGame, twin, epsilon=0.5) > 1e-3).all()
    assert (distance(bp.StoppingGame, twin) > 1e-2).all()
    layer = bp.transforms.rescale_neurons(model, x, {"hidden" if kind is Residual else "0": 3.0})
    assert torch.allclose(layer(x), model(x))
    assert (distance(bp.StoppingGame, layer) < 1e-7).all()
    assert (distance(bp.RoutingGame, layer, **EXACT) < 1e-7).all()


@pytest.mark.parametrize("kind, shape", [*CASES, (Attentive, (2, 3, 3))])
@pytest.mark.parametrize("game, options", [(bp.StoppingGame, {}), (bp.RoutingGame, {})])
def test_permuted_copy(kind, shape, game, options):
    """A generic network against its own permuted copy: H is large, H_perm is 0."""
    model, x = make(kind, shape)
    twin = bp.transforms.permute_neurons(model, x, seed=2)
    assert torch.allclose(twin(x), model(x))
    a, b = game(model, **options).play(x, 0), game(twin, **options).play(x, 0)
    assert (bp.hellinger(a, b).distance > 0.05).all()
    assert (bp.hellinger(a, b, invariant="permutation").distance < 1e-7).all()


def test_never_larger():
    """H_perm is at most H, and symmetric enough to be an upper bound from both sides."""
    x = torch.randn(3, 5, dtype=torch.float64)
    a, b = (bp.StoppingGame(mlp().double().eval()).play(x, 0) for _ in range(2))
    plain, invariant = bp.hellinger(a, b), bp.hellinger(a, b, invariant="permutation")
    assert invariant.distance.mean() < plain.distance.mean()


def test_given_permutation():
    model, x = make(mlp, (2, 5))
    twin = bp.transforms.permute_neurons(model, x, {"0": torch.tensor([1, 0, 2, 3, 4, 5, 7, 6])})
    assert torch.equal(twin[0].weight[0], model[0].weight[1]) and torch.equal(
        twin[2].weight[:, 7], model[2].weight[:, 6]
    )
    assert torch.equal(twin[4].weight, model[4].weight)
    with pytest.raises(ValueError, match="once"):
        bp.transforms.permute_neurons(model, x, {"0": torch.zeros(8, dtype=torch.long)})
    with pytest.raises(ValueError, match="stay"):
        bp.transforms.permute_neurons(model, x, {"4": torch.tensor([1, 0, 2])})
    with pytest.raises(ValueError, match="positive"):
        bp.transforms.rescale_neurons(model, x, {"0": -1.0})


def test_assignment():
    """Shortest augmenting paths against every permutation."""
    for seed in range(20):
        gain = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        best = max(sum(gain[i, p] for i, p in enumerate(order)) for order in itertools.permutations(range(6)))
        for found in (assign(gain), torch.from_numpy(_shortest_paths(-gain.numpy()))):
            assert sorted(found.tolist()) == list(range(6))
            assert abs(gain[torch.arange(6), found].sum() - best) < 1e-12
