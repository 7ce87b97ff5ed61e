"""Permuted and rescaled neurons (sec:model-distance-invariances; S33, S34)."""

import copy
import itertools

import pytest
import torch

import backplay as bp
from attention_blocks import drawn
from backplay.symmetry.channels import read_channels
from backplay.symmetry.orbits import Forest, Leaf
from backplay.symmetry.pairing import _shortest_paths, assign
from closeness import assert_near, unscaled
from networks import lively, photo
from symmetric import NETWORKS, Transformer, make, mlp

EXACT = {"epsilon": 0.0}


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_rescaled_neurons(name):
    """Routing is invariant at ε = 0 and only there, Stopping is not; layer by layer both are."""
    model, x, network = make(name)
    twin = bp.transforms.rescale_neurons(network, x, seed=1)
    assert torch.allclose(twin(x), model(x))

    def distance(game, other, **options):
        return bp.hellinger(*(game(n, **options).play(x, 0) for n in (network, network.on(other)))).distance

    assert (distance(bp.RoutingGame, twin, **EXACT) < 1e-7).all()
    assert (distance(bp.RoutingGame, twin, epsilon=0.5) > 1e-3).all()
    assert (distance(bp.StoppingGame, twin) > 1e-2).all()
    layer = bp.transforms.rescale_neurons(network, x, {"hidden" if name == "residual" else "0": 3.0})
    assert torch.allclose(layer(x), model(x))
    assert (distance(bp.StoppingGame, layer) < 1e-7).all()
    assert (distance(bp.RoutingGame, layer, **EXACT) < 1e-7).all()


@pytest.mark.parametrize("tau", [0.3, 0.7, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("name", ["mlp", "cnn", "residual"])
def test_rescaled_neurons_at_any_temperature(name, tau):
    """S34 at any τ (eq:routing-gibbs-general-tau): a factor of all contributions to a neuron cancels in its policy.

    Neuron by neuron the Routing Game's law, map and occupations stay at ε = 0; with ε > 0 they do not.
    """
    _, x, network = make(name)
    twin = network.on(bp.transforms.rescale_neurons(network, x, seed=3))
    plays = [bp.RoutingGame(n, epsilon=0.0, tau=tau).play(x, 0) for n in (network, twin)]
    assert (bp.hellinger(*plays).distance < 1e-7).all()
    assert_near(plays[1].attribution(), plays[0].attribution(), what="map")
    for node in network.nodes:
        if node in plays[0].visited():
            first, second = (play.occupation(node) for play in plays)
            assert_near(unscaled(second.plus, second.log_scale), unscaled(first.plus, first.log_scale))
            assert_near(plays[1].marginal(node), plays[0].marginal(node), scale=1.0)
    leaking = [bp.RoutingGame(n, epsilon=0.5, tau=tau).play(x, 0) for n in (network, twin)]
    assert (bp.hellinger(*leaking).distance > 1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_permuted_copy(name):
    """A generic network against its own permuted copy: H is large, H_perm is 0."""
    model, x, first = make(name)
    twin = bp.transforms.permute_neurons(first, x, seed=2)
    assert torch.allclose(twin(x), model(x))
    for game in (bp.StoppingGame, bp.RoutingGame):
        a, b = (game(network).play(x, 0) for network in (first, first.on(twin)))
        assert (bp.hellinger(a, b).distance > 0.05).all()
        assert (bp.hellinger(a, b, invariant="permutation").distance < 1e-6).all()


SPELLINGS = [
    "spelled out",
    "fused, boolean",
    "einsum",
    "right",
    "grouped, spelled out",
    "no projection",
    "talking heads",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPELLINGS)
def test_permuted_attention(name):
    """Other spellings of attention, with masks, shared keys, tokens as values, and weights that mix heads."""
    block, first, flat, _ = drawn(name, 1, 0.0)
    x = block.shaped(flat)
    twin = bp.transforms.permute_neurons(first, x, seed=2)
    assert torch.allclose(twin(x), block(x))
    a, b = (bp.RoutingGame(network).play(x, 0) for network in (first, first.on(twin)))
    assert (bp.hellinger(a, b).distance > 0.05).all()
    assert (bp.hellinger(a, b, invariant="permutation").distance < 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet_v2_x0_5"])
def test_permuted_families(name):
    """Shuffled copies of torchvision's networks compute the same: nothing moves that must not."""
    import torchvision.models as models

    model, x = lively(getattr(models, name)(weights=None, num_classes=10), 64), photo(1, 64)
    with torch.no_grad():
        for parameter in model.parameters():  # no two channels alike, biases and norms included
            parameter.add_(0.02 * torch.randn_like(parameter))
        twin = bp.transforms.permute_neurons(model, x, seed=1)
        assert_near(twin(x), model(x), 1e-9)
    moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)


@pytest.mark.parametrize("name", ["cnn", "groups of a convolution", "depthwise", "rows second"])
def test_rescaled_groups(name):
    """Positive factors through groups, norms and transposed weights leave the function as it is."""
    model, x, network = make(name)
    twin = bp.transforms.rescale_neurons(network, x, seed=1)
    assert torch.allclose(twin(x), model(x))
    assert not torch.equal(next(twin.parameters()), next(model.parameters()))


def by_hand(model, heads, queries, values):
    """Heads of a packed transformer in another order, features within each too, by slices of the weights."""
    twin = copy.deepcopy(model)
    n, d = model.heads, model.features

    def rows(order):
        return torch.cat([heads[h] * d + order[h] for h in range(n)])

    q, k, v = rows(queries), n * d + rows(queries), 2 * n * d + rows(values)
    with torch.no_grad():
        for parameter, given in ((twin.qkv.weight, model.qkv.weight), (twin.qkv.bias, model.qkv.bias)):
            parameter.copy_(given[torch.cat([q, k, v])])
        twin.out.weight.copy_(model.out.weight[:, rows(values)])
    return twin


@pytest.mark.parametrize("fused", [True, False])
def test_heads_by_hand(fused):
    """S33: heads change places as wholes, features within heads, those of queries and keys together."""
    model = Transformer(fused, heads=3, features=3).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    queries, values = ([torch.randperm(3) for _ in range(3)] for _ in range(2))
    twin = by_hand(model, torch.tensor([2, 0, 1]), queries, values)
    assert torch.allclose(twin(x), model(x))
    first = bp.capture(model, x)
    a, b = (bp.RoutingGame(network).play(x, 1) for network in (first, first.on(twin)))
    assert (bp.hellinger(a, b).distance > 0.05).all()
    assert (bp.hellinger(a, b, invariant="permutation").distance < 1e-6).all()


def orbits(network, x):
    """Sizes of the orbits of a network: a number for channels, nested lists for cells."""
    found = read_channels(network, network.check({0: x}))

    def sizes(members):
        if isinstance(members[0], Leaf):
            return len(members)
        return [len(members), *(sizes(inner) for inner in members[0].inner)]

    return [sizes(members) for members in Forest(found.ledger, found.signatures()).orbits()]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("mlp", [8, 6]),
        ("residual", [6, 7]),  # the sum joins both convolutions
        ("transformer, fused", [6, [2, 3, 3, 1], 8]),  # tokens; two heads of queries with keys, values, and a mark
        ("transformer, shared keys", [8, [2, 2, 2, 1], 8]),
        ("groups of a convolution", [[4, 2, 2], 6]),
        ("groups of the input", [2, 2, 2]),
        ("depthwise", [[8, 1, 1], 6]),
        ("groups of a norm", [8, [4, 2], 6]),
        ("groups in groups", [[2, [2, 2, 2]], 6]),
        ("gated", [6, 5]),
        ("halves", [3, 3]),
    ],
)
def test_what_may_move(name, expected):
    """S33: input, output and tokens never; everything else that makes no difference does."""
    _, x, network = make(name)
    assert orbits(network, x) == expected


@pytest.mark.parametrize("fused", [True, False])
def test_heads_that_differ_stay(fused):
    """A mask of its own tells heads apart: only their features change places."""
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    masked = Transformer(fused, mask=True).double().eval()
    network = bp.capture(masked, x)
    assert orbits(network, x) == [6, 3, 3, 3, 3, 8]
    assert torch.allclose(bp.transforms.permute_neurons(network, x, seed=1)(x), masked(x))


@pytest.mark.slow
def test_never_larger():
    """H_perm is at most H for every sample, and a sample's does not depend on its neighbours."""
    x = torch.randn(6, 5, dtype=torch.float64)
    games = [bp.StoppingGame(mlp().double().eval()) for _ in range(2)]
    a, b = (game.play(x, 0) for game in games)
    plain, invariant = bp.hellinger(a, b), bp.hellinger(a, b, invariant="permutation")
    assert (invariant.distance <= plain.distance).all() and (invariant.distance < plain.distance).any()
    alone = [bp.hellinger(*(g.play(one[None], 0) for g in games), invariant="permutation") for one in x]
    for name in ("distance", "surviving", "disagreement", "cemetery_overlap", "log_survival_b"):
        assert_near(getattr(invariant, name), torch.cat([getattr(h, name) for h in alone]), 1e-9, what=name)
    parts = invariant.disagreement.sum(1) + invariant.cemetery_disagreement + invariant.constant_disagreement
    assert_near(parts, invariant.distance.square(), 1e-9)
    assert_near(invariant.by_layer[-1][1], torch.cat([h.by_layer[-1][1] for h in alone]), 1e-9)


def test_given_permutation():
    model, x, network = make("mlp")
    twin = bp.transforms.permute_neurons(network, x, {"0": torch.tensor([1, 0, 2, 3, 4, 5, 7, 6])})
    assert torch.equal(twin[0].weight[0], model[0].weight[1]) and torch.equal(
        twin[2].weight[:, 7], model[2].weight[:, 6]
    )
    assert torch.equal(twin[4].weight, model[4].weight)
    with pytest.raises(ValueError, match="once"):
        bp.transforms.permute_neurons(network, x, {"0": torch.zeros(8, dtype=torch.long)})
    with pytest.raises(ValueError, match="stay"):
        bp.transforms.permute_neurons(network, x, {"4": torch.tensor([1, 0, 2])})
    with pytest.raises(ValueError, match="positive"):
        bp.transforms.rescale_neurons(network, x, {"0": -1.0})


def test_given_heads():
    """Whole heads may be moved by the order of one layer, and what belongs to them follows; torn ones are refused."""
    model, x = Transformer(packed=False).double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    network = bp.capture(model, x)
    twin = bp.transforms.permute_neurons(network, x, {"v": torch.tensor([4, 3, 5, 0, 1, 2])})
    assert torch.allclose(twin(x), model(x))
    assert torch.equal(twin.k.weight[3], model.k.weight[0])
    assert torch.equal(twin.out.weight[:, 3], model.out.weight[:, 0])
    with pytest.raises(ValueError, match="keeps together"):
        bp.transforms.permute_neurons(network, x, {"v": torch.tensor([3, 1, 2, 0, 4, 5])})
    with pytest.raises(ValueError, match="fixed"):
        bp.transforms.rescale_neurons(network, x, {"q": 2.0})
    _, x, packed = make("transformer, fused")
    with pytest.raises(ValueError, match="tied"):  # queries without their keys
        bp.transforms.permute_neurons(packed, x, {"qkv": torch.tensor([1, 0, *range(2, 18)])})


def test_assignment():
    """Shortest augmenting paths against every permutation."""
    for seed in range(20):
        gain = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        best = max(sum(gain[i, p] for i, p in enumerate(order)) for order in itertools.permutations(range(6)))
        for found in (assign(gain), torch.from_numpy(_shortest_paths(-gain.numpy()))):
            assert sorted(found.tolist()) == list(range(6))
            assert abs(gain[torch.arange(6), found].sum() - best) < 1e-12
