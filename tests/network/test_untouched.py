"""The model and the input are left as they were (S1).

And a kept game is neither stale nor mixed up between samples or threads.
"""

import copy
import threading

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near
from networks import SIDE, photo, small
from portraits import mixed_modes, portrait, same

pytestmark = pytest.mark.capture


def games(model):
    return [bp.StoppingGame(model), bp.RoutingGame(model), bp.RoutingGame(model, epsilon=0.0, tau=0.5)]


def use_everything(model, x):
    for game in games(model):
        game.attribute(x, 1)
        play = game.play(x)
        play.occupation("stem.1"), play.marginal("input"), play.health(), play.cemetery
    bp.decompose(model, x, kind="stopping")


@pytest.mark.parametrize("arrange", [lambda m: m, mixed_modes], ids=["eval", "half in train mode"])
def test_model_untouched(arrange):
    """S1: state dict, mode, hooks, grads, requires_grad, classes and attributes are what they were."""
    model = arrange(small())
    before = portrait(model)
    use_everything(model, photo(2, SIDE))
    same(before, portrait(model))


def test_input_untouched():
    """The input keeps its numbers and gets no gradient; the map has no graph."""
    model = small()
    x = photo(2, SIDE).requires_grad_()
    kept = x.detach().clone()
    for game in games(model):
        found = game.attribute(x, 0)
        assert found.shape == x.shape and found.dtype == x.dtype
        assert not found.requires_grad
    assert torch.equal(x.detach(), kept) and x.grad is None and x.requires_grad


def test_train_mode_is_captured_in_eval_mode():
    """S1: dropout and batch statistics play no part, whatever mode the model is in."""
    model = small()
    x = photo(2, SIDE)
    expected = [game.attribute(x, 1) for game in games(model)]
    for game, want in zip(games(copy.deepcopy(model).train()), expected, strict=True):
        assert_near(game.attribute(x, 1), want, 1e-14, what="train mode")


def test_batch_equals_one_by_one():
    """Samples never interact: maps, occupations, ends and health of a batch are those of its samples."""
    model = small()
    x, target = photo(4, SIDE), [0, 3, 3, 1]
    x[2] *= 1e3
    for game in games(model):
        together = game.play(x, target)
        for i in range(4):
            alone = game.play(x[i : i + 1], target[i])
            assert_near(together.attribution()[i], alone.attribution()[0], 1e-12, what="attribution")
            assert_near(together.value[i], alone.value[0], 1e-12, what="value")
            assert_near(together.cemetery[i], alone.cemetery[0], 1e-12, what="cemetery")
            assert_near(together.marginal("stem.2")[i], alone.marginal("stem.2")[0], 1e-12, what="marginal")
            a, b = together.occupation("block"), alone.occupation("block")
            for part, scale in (("plus", "log_scale"), ("minus", "log_scale"), ("difference", "difference_log_scale")):
                left = getattr(a, part)[i] * getattr(a, scale)[i].exp()
                assert_near(left, getattr(b, part)[0] * getattr(b, scale)[0].exp(), 1e-11, what=part)


@pytest.mark.parametrize("example", [1, 2, 5])
def test_one_capture_serves_every_batch_size(example):
    """S1: the example's batch size, 1 included, binds nothing."""
    model = small()
    x = photo(6, SIDE)
    network = bp.capture(model, x[:example])
    fresh = bp.StoppingGame(model).attribute(x, 2)
    for n in (1, 2, 3, 6):
        assert_near(bp.StoppingGame(network).attribute(x[:n], 2), fresh[:n], 1e-12, what=f"batch {n}")
        assert bp.RoutingGame(network).attribute(x[:n], 2).shape == x[:n].shape


def test_two_threads_on_one_network():
    """Two games on one network in two threads give what each gives alone."""
    model, inputs = small(), [photo(2, SIDE), -photo(2, SIDE)]

    def pair_on_a_new_capture():
        network = bp.capture(model, inputs[0])
        return [bp.StoppingGame(network), bp.RoutingGame(network, tau=0.5)]

    alone = [game.attribute(x, 1) for game, x in zip(pair_on_a_new_capture(), inputs, strict=True)]
    pair = pair_on_a_new_capture()  # nothing prepared yet: the threads race for the caches too
    found, trouble = [[], []], []
    start = threading.Barrier(2)

    def work(k, game, x):
        try:
            start.wait()
            for _ in range(6):
                found[k].append(game.attribute(x, 1))
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=work, args=(k, pair[k], inputs[k])) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble, trouble
    for k in (0, 1):
        for each in found[k]:
            assert_near(each, alone[k], 1e-13, what=f"thread {k}")


def test_two_threads_share_the_first_capture():
    """One game that has not captured yet, used by two threads at once."""
    model, x = small(), photo(2, SIDE)
    expected = bp.RoutingGame(model).attribute(x, 1)
    before = portrait(model)
    game, found, trouble = bp.RoutingGame(model), [], []
    start = threading.Barrier(2)

    def work():
        try:
            start.wait()
            found.append(game.attribute(x, 1))
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble, trouble
    for each in found:
        assert_near(each, expected, 1e-13, what="first use in two threads")
    same(before, portrait(model))


def test_inference_mode():
    """Games work under `torch.inference_mode`, captured inside or outside."""
    model, x = small(), photo(2, SIDE)
    outside = games(model)
    expected = [game.attribute(x, 1) for game in outside]
    with torch.inference_mode():
        inside = games(model)
        y = x.clone()
        for game, kept, want in zip(inside, outside, expected, strict=True):
            assert_near(game.attribute(y, 1), want, 1e-14, what="captured inside")
            assert_near(kept.attribute(y, 1), want, 1e-14, what="captured outside")
            assert game.play(y, 1).health().ok
    for game, want in zip(inside, expected, strict=True):
        assert_near(game.attribute(x, 1), want, 1e-14, what="used outside afterwards")


def _scale_in_place(model):
    with torch.no_grad():
        model.block[0].weight.mul_(-0.5)


def _replace_data(model):
    model.block[0].weight.data = model.block[0].weight.data.flip(0).contiguous()


def _write_data(model):
    model.head.weight.data[0] += 1.0  # `.data` hides the change from the version counter


def _load(model):
    model.load_state_dict({k: v * 0.7 for k, v in model.state_dict().items()})


def _norm_statistics(model):
    model.stem[1].running_mean.add_(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("change", [_scale_in_place, _replace_data, _write_data, _load, _norm_statistics])
def test_never_stale(change):
    """S1: a kept game follows its model's tensors; a play keeps what it was solved with."""
    model, x = small(), photo(2, SIDE)
    kept = games(model)
    before = [game.play(x, 0) for game in kept]
    maps = [play.attribution().clone() for play in before]
    change(model)
    for game, play, old, fresh in zip(kept, before, maps, games(copy.deepcopy(model)), strict=True):
        want = fresh.attribute(x, 0)
        assert (want - old).abs().max() > 1e-6, "the change has to matter"
        assert_near(game.attribute(x, 0), want, 1e-13, what="kept game")
        assert_near(play.attribution(), old, 1e-13, what="old play")


def test_plays_repeat():
    """The same play twice is the same."""
    model, x = small(), photo(2, SIDE)
    for game in games(model):
        assert_near(game.attribute(x, 1), game.attribute(x, 1), 1e-13)


class Counting(nn.Module):
    """A forward pass that changes a tensor of its own; `rewrites` also changes a view of a live one."""

    def __init__(self, rewrites):
        super().__init__()
        self.first, self.last, self.rewrites = nn.Linear(4, 6), nn.Linear(6, 3), rewrites
        self.register_buffer("gain", torch.ones(6))

    def forward(self, x):
        self.gain.mul_(1.25)
        h = self.first(x).relu()
        if self.rewrites:
            h[:, 1:].mul_(0.5)
        return self.last(h * self.gain)


@pytest.mark.parametrize("rewrites", [False, True])
def test_own_side_effects(rewrites):
    """S1: what a forward pass changes in its model is not changed by capture and play, and the play sees it."""
    model = Counting(rewrites).double().eval()
    x, before = torch.randn(2, 4, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    expected = copy.deepcopy(model)(x)[:, 1]
    game = bp.StoppingGame(bp.capture(model, x))
    assert torch.equal(model.gain, before), "capture"
    for _ in range(2):
        play = game.play(x, 1)
        assert_near(play.value, expected, what="value")
        play.attribution()
        assert torch.equal(model.gain, before), "play"


class Rescaling(nn.Module):
    """A forward pass that changes its input in place."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        x *= 3.0
        return self.last(x)


def test_input_changed_in_place():
    """A model that writes over its input is no random one: it is captured, played and compared, the input is left."""
    model = Rescaling().double().eval()
    x = torch.randn(2, 4, dtype=torch.float64)
    kept = x.clone()
    play = bp.StoppingGame(model).play(x, 1)
    assert play.health().ok and torch.equal(x, kept)
    assert_near(play.value, model(x.clone())[:, 1], what="value")
    assert_near(play.attribution(), (3 * model.last.weight[1]).expand(2, 4), what="map")


def test_refresh():
    """S1: a refreshed game makes all that it derives from the weights anew, and its maps stay what they were."""
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.randn(2, 4)
    game = bp.RoutingGame(model)
    before, network = game.attribute(x, 1), game.network(x)
    assert network.weights().nbytes() > 0
    assert game.refresh() is game
    assert network.weights().nbytes() == 0
    assert_near(game.attribute(x, 1), before, 1e-6)
