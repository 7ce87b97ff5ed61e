"""All pairs at once: the numbers of the pairs one by one, with the kernels of one node at a time."""

import functools
import weakref

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.kernels.geometric import geometric
from closeness import assert_near
from mixed import GAMES, Mixed, perturbed

NAMES = ("distance", "bc", "surviving", "cemetery_overlap")


def mlp(depth=6):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(4, 4), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(4, 3)).double().eval()


@functools.cache
def mixed():
    return bp.capture(Mixed().double().eval(), torch.randn(2, 3, 3, dtype=torch.float64))


def images(n, *shape):
    return [torch.randn(1, *shape, dtype=torch.float64) for _ in range(n)]


def same(matrix, rows, columns):
    """What `bp.hellinger` says to each pair; distances are roots, so their squares have the digits."""
    for i, a in enumerate(rows):
        for j, b in enumerate(columns):
            single = bp.hellinger(a, b)
            for name in NAMES:
                found, expected = getattr(matrix, name)[i, j].nan_to_num(9), getattr(single, name).nan_to_num(9)
                assert_near(found**2, expected**2, 1e-14, scale=1.0, what=f"{name} of {i}, {j}")


@pytest.mark.parametrize("game, options", GAMES)
def test_equals_pairs(game, options):
    """Two models, several inputs, one and several targets; a play on both sides has distance 0 from itself."""
    network = mixed()
    first, second = game(network, **options), game(network.on(perturbed(network.model)), **options)
    x = images(3, 3, 3)
    rows = [first.play(x[0], 0).release(), first.play(x[1], 1), second.play(x[2], 0)]
    columns = [second.play(x[1], 0).release(), rows[1], second.play(x[0], 2)]
    found = bp.hellinger_matrix(rows, columns)
    assert found.distance.shape == (3, 3)
    same(found, rows, columns)
    assert found.distance[1, 1] == 0 and found.surviving[1, 1] == 0 and found.bc[1, 1] == 1


@pytest.mark.parametrize("game, options", GAMES)
@pytest.mark.parametrize("conditioning", ["post-hoc", "kernel"])
def test_a_play_is_itself(game, options, conditioning, monkeypatch):
    """A play has distance 0 from itself because it is itself: exactly, whatever the roots of its kernels round to."""
    monkeypatch.setattr("backplay.trajectory.overlap.geometric", coarsened)
    monkeypatch.setattr("backplay.trajectory.roots.geometric", coarsened)
    play = game(mixed(), **options).play(torch.randn(2, 3, 3, dtype=torch.float64), 1)
    h = bp.hellinger(play, play, conditioning=conditioning)
    assert h.distance.tolist() == h.surviving.tolist() == [0, 0] and h.bc.tolist() == [1, 1]
    assert not h.disagreement.any() and not h.map(conditioned=True).any()
    assert not h.cemetery_disagreement.any() and not h.constant_disagreement.any()
    assert all(bc.tolist() == [1, 1] for _, bc in h.by_layer)
    matrix = bp.hellinger_matrix([play], [play])
    assert not matrix.distance.any() and not matrix.surviving.any() and (matrix.bc == 1).all()


def coarsened(a, b, name):
    """The geometric kernel of a processor that rounds every step down."""
    kernel = geometric(a, b, name)
    pull = kernel.pull
    object.__setattr__(kernel, "pull", lambda mass, steps: [m * (1 - 1e-13) for m in pull(mass, steps)])
    return kernel


def test_batches():
    """A batch stays the last dimension."""
    game, x = bp.RoutingGame(mlp()), torch.randn(5, 4, dtype=torch.float64)
    rows, columns = [game.play(x[:2], 0)], [game.play(x[2:4], 0), game.play(x[3:], 1)]
    found = bp.hellinger_matrix(rows, columns)
    assert found.distance.shape == (1, 2, 2)
    same(found, rows, columns)


class Living:
    """Counts the kernels that are alive, by watching those that a game makes."""

    def __init__(self, monkeypatch, game):
        self.kernels, self.peak, self.made = weakref.WeakSet(), 0, 0
        plain = type(game).kernel

        def kernel(own, node, values):
            made = plain(own, node, values)
            self.kernels.add(made)
            self.made += 1
            self.peak = max(self.peak, len(self.kernels))
            return made

        monkeypatch.setattr(type(game), "kernel", kernel)


def test_kernels_of_one_node_at_a_time(monkeypatch):
    """Released plays have no kernels before and none after; a kernel is made once for each node and play."""
    game = bp.RoutingGame(mlp(depth=6))
    plays = [game.play(x, k % 3).release() for k, x in enumerate(images(8, 4))]
    living = Living(monkeypatch, game)
    bp.hellinger_matrix(plays[:4], plays[4:])
    nodes = len(plays[0].network.nodes) - 1
    assert living.made == nodes * len(plays)
    # those of one node, and the one that replaces the last of them
    assert living.peak <= len(plays) + 1 and len(living.kernels) == 0
    assert all(not p._kernels for p in plays)


def test_plays_keep_what_they_have(monkeypatch):
    """Plays that hold their kernels lend them: nothing is made, nothing is dropped, no pass is added."""
    game = bp.StoppingGame(mlp())
    plays = [game.play(x, 0) for x in images(4, 4)]
    before, passes = [dict(p._kernels) for p in plays], [list(p._passes) for p in plays]
    living = Living(monkeypatch, game)
    bp.hellinger_matrix(plays[:2], plays[2:])
    assert living.made == 0 and [p._kernels for p in plays] == before
    assert [list(p._passes) for p in plays] == passes


def test_released_plays():
    """A released play answers as before, and refuses where its model has changed."""
    model = mlp()
    game, x = bp.RoutingGame(model), torch.randn(2, 4, dtype=torch.float64)
    play, kept = game.play(x, 0), game.play(x, 0)
    expected = kept.attribution(), kept.occupation("2").plus, kept.cemetery
    play.release()
    assert_near(play.attribution(), expected[0], 1e-13)
    assert_near(play.occupation("2").plus, expected[1], 1e-13)
    other = game.play(x, 0).release()
    with torch.no_grad():
        model[2].weight.mul_(2)
    assert_near(play.cemetery, expected[2], 1e-13)  # whole again before the change
    with pytest.raises(bp.BackplayError, match="changed"):
        other.attribution()
    with pytest.raises(RuntimeError, match="changed"):
        bp.hellinger_matrix([other], [kept])


def test_refusals():
    game, x = bp.StoppingGame(mlp()), torch.randn(2, 4, dtype=torch.float64)
    play = game.play(x, 0)
    with pytest.raises(ValueError, match="at least one"):
        bp.hellinger_matrix([], [play])
    with pytest.raises(TypeError, match="play"):
        bp.hellinger_matrix([play], [x])
    with pytest.raises(ValueError, match="samples"):
        bp.hellinger_matrix([play], [play, game.play(x[:1], 0)])


def test_one_list_with_itself():
    """Each pair is walked once, the other way round it is the same; groups and neighbours come from the distances."""
    network = mixed()
    game = bp.RoutingGame(network)
    plays = [game.play(x, 1) for x in images(4, 3, 3)]
    found, whole = bp.hellinger_matrix(plays), bp.hellinger_matrix(plays, list(plays))
    for name in NAMES:
        assert_near(getattr(found, name).nan_to_num(9) ** 2, getattr(whole, name).nan_to_num(9) ** 2, 1e-12, scale=1.0)
    assert not found.distance.diagonal().any()
    index, far = found.neighbours(2, 3)
    assert sorted(index.tolist()) == [0, 1, 3] and far[0] == found.distance[2, index[0]]
    assert len(found.medoids(2).centres) == 2 and found.embedding().points.shape == (4, 2)
    assert found.dendrogram().shape == (3, 4)


def test_what_is_compared():
    """Whole plays, in anything that can be gone through; else refused by the name of what was given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    plays = [bp.StoppingGame(model).play(x) for x in torch.randn(3, 1, 3, dtype=torch.float64)]
    found = bp.hellinger_matrix(play for play in plays)
    assert_near(found.distance, bp.hellinger_matrix(plays).distance, what="generator")
    part = plays[0].through("0", [2])
    for call, said in (
        (lambda: bp.hellinger(part, plays[0]), "SubPlay, a part of one: whole plays"),
        (lambda: bp.hellinger_matrix([part]), "SubPlay, a part of one: whole plays"),
        (lambda: bp.hellinger_matrix(plays[0]), "takes lists of plays, got Play"),
        (lambda: bp.hellinger_matrix(plays, torch.zeros(2)), "takes lists of plays, got Tensor"),
    ):
        with pytest.raises(bp.errors.InputTypeError, match=said):
            call()
    index, far = found.neighbours(0)
    assert sorted(index.tolist()) == [1, 2] and len(far) == 2
    with pytest.raises(ValueError, match="two items or more; there is one"):
        bp.hellinger_matrix(plays[:1]).neighbours(0)
    with pytest.raises(ValueError, match="one play alone has no neighbours"):
        bp.hellinger_matrix(plays[:1]).plot()
    with pytest.raises(bp.errors.KeywordError, match=r"unknown option 'group' of the picture .*did you mean groups"):
        found.plot(group=1)


def test_a_flat_mask_names_the_shape_for_channels():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)).double()
    play = bp.StoppingGame(model).play(torch.randn(1, 2, 6, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"for channels give \(3, 1, 1\), or channel numbers"):
        play.through("0", [True, False, True])
