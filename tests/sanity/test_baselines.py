"""What distances are read against: each experiment again by hand, from `bp.hellinger` alone."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.sanity import double_random, input_noise, separability
from backplay.sanity.baselines import PAIRS, SIGMAS, gaussian, image_of, noisy, pairs_of
from backplay.sanity.walks import mixed


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(2)
    layers = nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)
    return nn.Sequential(*layers).double().eval()


@pytest.fixture(scope="module")
def network(model):
    return bp.capture(model, torch.zeros(2, 6).double())


@pytest.fixture(scope="module")
def x():
    torch.manual_seed(3)
    return torch.randn(5, 6).double()


def by_hand(game, a, b, target):
    """H and H_surv; `a` and `b` are a network and an input each."""
    kind, options = (bp.StoppingGame, {}) if game == "sg" else (bp.RoutingGame, {"epsilon": 0.0})
    h = bp.hellinger(*(kind(net, **options).play(given, target) for net, given in (a, b)))
    return h.distance, h.surviving


def close(a, b):
    return torch.allclose(a, b, atol=1e-10, rtol=0, equal_nan=True)


def test_two_copies_that_know_nothing(network, x):
    labels = torch.tensor([0, 1, 2, 0, 1])
    found = list(double_random(network, x, labels, rounds=3, seed=4))
    for r in found:
        assert r.image == image_of(r.number, 5, 4)
        sides = [bp.randomise(network, seed=mixed("copy", 4, r.number, s), which="weights") for s in "AB"]
        one, target = x[r.image : r.image + 1], labels[r.image : r.image + 1]
        for game in ("sg", "rg"):
            h, surviving = by_hand(game, *((network.on(m), one) for m in sides), target)
            assert close(r.distance[game], h) and close(r.surviving[game], surviving)
        assert all(torch.equal(m[0].bias, network.model[0].bias) for m in sides)  # weights alone
        assert not torch.equal(sides[0][0].weight, sides[1][0].weight)
    again = next(iter(double_random(network, x, labels, rounds=1, seed=4)))  # a round knows nothing of the others
    assert close(again.distance["sg"], found[0].distance["sg"])
    assert {image_of(k, 5, 4) for k in range(60)} == set(range(5))


def test_noise(network, x):
    levels = list(input_noise(network, x, sigmas=(0.0, 0.1, 0.5), seed=1))
    for game in ("sg", "rg"):  # the root of one rounding, where an input is played twice
        assert levels[0].distance[game].max() < 1e-7
    drawn = (noisy(x, 0.5, 1, range(5)) - x) / 0.5
    assert torch.allclose((noisy(x, 0.1, 1, range(5)) - x) / 0.1, drawn)  # one draw for all levels
    assert close(noisy(x[3:], 0.5, 1, [3, 4]), noisy(x, 0.5, 1, range(5))[3:])  # and for any batch
    assert not close(noisy(x, 0.5, 1, range(5)), noisy(x, 0.5, 2, range(5)))
    target = network.model(x).argmax(1)  # of the clean input
    for game in ("sg", "rg"):
        h, surviving = by_hand(game, (network, x), (network, x + 0.5 * drawn), target)
        assert close(levels[2].distance[game], h) and close(levels[2].surviving[game], surviving)
    assert SIGMAS == (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)  # the paper's


def test_pairs(network, x):
    labels = [0, 1, 0, 1, 2]
    found = list(separability(network, x, labels, pairs=4, seed=2))
    assert [p.kind for p in found] == [PAIRS[0]] * 4 + [PAIRS[1]] * 4 + [PAIRS[2]] * 5 + [PAIRS[3]] * 4
    for pair in found:
        i, j = pair.images
        if pair.kind == "intraclass":
            assert i != j and labels[i] == labels[j]
        elif pair.kind == "interclass":
            assert labels[i] != labels[j]
        else:
            assert j == -1 and i == (pair.number if pair.kind == "clean-random" else -1)
        sides = [
            x[k : k + 1] if k >= 0 else gaussian(x[:1], 2, pair.kind, pair.number, s)
            for k, s in zip((i, j), "AB", strict=True)
        ]
        target = network.model(sides[0]).argmax(1)  # of the first side, for both
        h, surviving = by_hand("rg", *((network, s) for s in sides), target)
        assert close(pair.distance["rg"], h) and close(pair.surviving["rg"], surviving)
    assert len({float(p.distance["sg"]) for p in found if p.kind == "random-random"}) == 4  # fresh noise each time


def test_all_pairs_are_drawn():
    drawn = pairs_of("interclass", [0, 0, 1], 200, seed=0)
    assert set(drawn) == {(0, 2), (1, 2), (2, 0), (2, 1)}


def test_readouts_beside_the_distance(network, x):
    """Each from its own definition: the overlap that arrives, the theorems' bounds, the floor."""
    further = ("ordinary", "bound", "floor", "permuted")
    found = next(iter(double_random(network, x, rounds=1, further=further, which="all")))
    one = x[found.image : found.image + 1]
    target = network.model(one).argmax(1)
    sides = [network.on(bp.randomise(network, seed=mixed("copy", 0, 0, s))) for s in "AB"]
    for game, kind, options in (("sg", bp.StoppingGame, {}), ("rg", bp.RoutingGame, {"epsilon": 0.0})):
        plays = [kind(n, **options).play(one, target) for n in sides]
        h = bp.hellinger(*plays)
        assert close(found.further["ordinary"][game], h.bc - h.cemetery_overlap - h.constant_overlap)
        differing = [float(g.differ) for g in h.gates if float(g.differ) > 0]
        rows = bp.bounds.largest_row_overlap(*plays) if game == "rg" else 1.0
        expected = ((1 - min(differing)) * rows) ** len(differing)
        assert float(found.further["bound"][game]) == pytest.approx(expected, abs=1e-12)
        floor = bp.bounds.measured_floor(h.gates)[-1].bc
        assert close(found.further["floor"][game], (1 - floor).sqrt())
        assert float(found.further["permuted"][game]) <= float(found.distance[game]) + 1e-12


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda n, x: double_random(n, x, rounds=0), "rounds must be a whole number"),
        (lambda n, x: double_random(n, x, games=["rgg"]), "did you mean rg"),
        (lambda n, x: input_noise(n, x, sigmas=[0.1, -1]), "sigmas has -1"),
        (lambda n, x: input_noise(n, x, further=["flor"]), "did you mean floor"),
        (lambda n, x: input_noise(n, x, sigmas=0.1), "sigmas=0.1 is out of range: it must be a list"),
        (lambda n, x: input_noise(n, x, sigmas=["a"]), "sigmas has 'a'"),
        (lambda n, x: input_noise(n, x, sigmas=[]), "give one standard deviation or more"),
        (lambda n, x: input_noise(n, x, seed="a"), "seed='a' is out of range"),
        (lambda n, x: input_noise(n, [1.0]), "input_noise takes inputs as one tensor .*; got list"),
        (lambda n, x: double_random(n, x, games=3), "games=3 is out of range: it must be a list of names"),
        (lambda n, x: double_random(n, x, seed=None), "seed=None is out of range"),
        (lambda n, x: double_random(n, x, which="biases"), "which='biases' is out of range"),
        (lambda n, x: separability(n, x, 3), "labels=3 is out of range: it must be a list of class numbers"),
        (lambda n, x: separability(n, x, ["a"] * 5), "label='a' is out of range: it must be an integer"),
        (lambda n, x: separability(n, x, [0, 0, 1, 1, 1], seed=0.5), "seed=0.5 is out of range"),
        (lambda n, x: separability(n, x, [0, 1]), "5 inputs and 2 labels"),
        (lambda n, x: separability(n, x, [0, 1, 2, 3, 4], pairs=2), "two inputs of one class"),
        (lambda n, x: list(separability(n, x[:2], [1, 1], pairs=2)), "inputs of two classes"),
    ],
)
def test_refusals(network, x, call, said):
    with pytest.raises(bp.BackplayError, match=said):
        call(network, x)


def test_one_game_by_its_name(network, x):
    (found,) = input_noise(network, x, sigmas=torch.tensor([0.5]), games="sg")
    (listed,) = input_noise(network, x, sigmas=[0.5], games=["sg"])
    assert found.distance.keys() == {"sg"} and close(found.distance["sg"], listed.distance["sg"])
