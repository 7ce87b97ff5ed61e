"""Averages over transformed inputs (S36, app:equivariant-averaging)."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp
import hand
from backplay.games.reynolds import Draws
from backplay.progress import Progress
from closeness import assert_near, l1_relative

pytestmark = pytest.mark.usefixtures("without_gradients")


class Recorder:
    """A method whose map is a function of its input; it keeps what it was given."""

    def __init__(self, function=lambda x: x):
        self.function, self.seen, self.targets = function, [], []

    def attribute(self, x, target=None):
        self.seen.append(x.clone())
        self.targets.append(target)
        return self.function(x)


class Single:
    """A game that plays its samples one by one."""

    def __init__(self, game):
        self.game = game

    def attribute(self, x, target=None):
        return torch.cat([self.game.attribute(one[None], label) for one, label in zip(x, target, strict=True)])


class Pointwise(nn.Module):
    """1×1 convolutions and a sum over pixels: its gradient at a pixel depends on that pixel alone."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.mix, self.head = nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(torch.relu(self.mix(self.relu(self.conv(x)))).sum((2, 3)))


class Circular(nn.Module):
    """Circular 3×3 convolutions with mirror-symmetric kernels and a global mean: equivariant to flips and shifts."""

    def __init__(self):
        super().__init__()
        options = {"padding": 1, "padding_mode": "circular", "bias": False}
        self.conv, self.deep = nn.Conv2d(1, 6, 3, **options), nn.Conv2d(6, 5, 3, **options)
        self.head = nn.Linear(5, 3)
        with torch.no_grad():
            for layer in (self.conv, self.deep):
                layer.weight.copy_(layer.weight + layer.weight.flip(-1))

    def forward(self, x):
        return self.head(torch.relu(self.deep(torch.relu(self.conv(x)))).mean((2, 3)))


def smooth(size):
    """A smooth image of 1 channel."""
    grid = torch.linspace(0, 2 * math.pi, size, dtype=torch.float64)
    return (torch.sin(grid)[:, None] * torch.cos(grid / 2)[None, :] + grid[None, :] / 6)[None, None]


class TestEquivariant:
    """The average of an equivariant model's maps is its single map, where it is defined."""

    def test_stopping_game_full_image(self):
        """S36: flips and whole-pixel shifts of an image with content up to its border; fill is left out."""
        model, x = Pointwise().double().eval(), torch.randn(2, 3, 10, 10, dtype=torch.float64)
        game = bp.StoppingGame(model)
        average = bp.Reynolds(game, n=12, max_angle=0, max_shift=0.3).attribute(x, [1, 2])
        single = game.attribute(x, [1, 2])
        assert_near(average, single)
        assert single.std() > 1e-2

    @pytest.mark.parametrize("tau", [1.0, 0.5])
    def test_routing_game(self, tau):
        """S36: a circular CNN on an image with an empty margin, so that a shift with fill is a cyclic one."""
        model, x = Circular().double().eval(), torch.zeros(1, 1, 14, 14, dtype=torch.float64)
        x[..., 4:10, 4:10] = torch.randn(6, 6)
        game = bp.RoutingGame(model, tau=tau)
        single = game.attribute(x, 1)
        average = bp.Reynolds(game, n=10, max_angle=0, max_shift=0.15).attribute(x, 1)
        assert single.abs().max() > 0
        assert_near(average, single)

    def test_a_model_that_is_not_equivariant_differs(self):
        """The tests above can fail: a dense layer sees where things are."""
        model = nn.Sequential(nn.Flatten(), hand.mlp(100, 8, 3)).double().eval()
        x = torch.randn(1, 1, 10, 10, dtype=torch.float64)
        game = bp.StoppingGame(model)
        average = bp.Reynolds(game, n=10, max_angle=0, max_shift=0.2).attribute(x, 1)
        assert l1_relative(average, game.attribute(x, 1)) > 0.1

    def test_target_is_fixed(self):
        """S36: the target is that of the untransformed input, for every draw and sample."""
        model, x = Pointwise().double().eval(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
        chosen = model(x).argmax(1)
        game = bp.StoppingGame(model)
        options = {"n": 6, "max_angle": 0, "max_shift": 0.4}
        assert_near(bp.Reynolds(game, **options).attribute(x), bp.Reynolds(game, **options).attribute(x, chosen))
        assert_near(bp.Reynolds(game, **options).attribute(x), game.attribute(x, chosen))


class TestTransforms:
    """What is drawn, and how maps come back."""

    def test_undefined_is_left_out(self):
        """S36: a map of ones stays 1 wherever some draw defines it; zero fill would pull the border down."""
        x = torch.randn(1, 1, 20, 20, dtype=torch.float64)
        average = bp.Reynolds(Recorder(torch.ones_like), n=20, max_angle=10, max_shift=0.2).attribute(x, 0)
        assert_near(average, torch.ones_like(average), 1e-9)

    def test_fill_is_not_shown(self):
        """S36: what a method says about the fill of a transformed image never reaches the average."""
        x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
        average = bp.Reynolds(Recorder(), n=16, max_angle=20, max_shift=0.25)
        draws, filled = Draws(average, x.shape[-2:]), 0
        for k in range(average.n):
            moved, fill = draws.apply(k, x), draws.apply(k, torch.ones_like(x), mirrored=False) == 0
            spoiled, plain = (draws.undo(k, torch.where(fill, said, moved)) for said in (1e6, 0.0))
            assert_near(spoiled[0], plain[0], 1e-12)
            assert_near(spoiled[1], plain[1], 1e-12)
            filled += int(fill.sum())
        assert filled > 0

    def test_no_edge_is_made(self):
        """S36: an image of one colour stays one, however it is moved, and a method that looks for edges finds none."""
        x = torch.full((1, 3, 16, 16), 2.0, dtype=torch.float64)
        edges = Recorder(lambda image: functional.pad(image.diff(dim=-1), (0, 1)).abs())
        average = bp.Reynolds(edges, n=16, max_angle=20, max_shift=0.25).attribute(x, 0)
        assert_near(torch.cat(edges.seen), x.expand(16, -1, -1, -1), 1e-12)
        assert average.abs().max() < 1e-12

    def test_flips_and_shifts_are_exact(self):
        """S36: each draw is a flip and a whole-pixel shift within its limit, both of them drawn, and maps come back."""
        x = torch.randn(1, 2, 20, 20, dtype=torch.float64)
        recorder = Recorder()
        average = bp.Reynolds(recorder, n=40, max_angle=0, max_shift=0.1, flip=0.5).attribute(x, 0)
        assert_near(average, x)
        found = []
        for moved in torch.cat(recorder.seen):
            matches = [
                (flip, rows, columns)
                for flip in (False, True)
                for rows in range(-2, 3)
                for columns in range(-2, 3)
                if torch.allclose(moved, shifted(x[0].flip(-1) if flip else x[0], rows, columns), atol=1e-12)
            ]
            assert len(matches) == 1
            found += matches
        assert len(found) == 40
        assert 8 <= sum(f for f, _, _ in found) <= 32
        assert {r for _, r, _ in found} == {c for _, _, c in found} == set(range(-2, 3))

    @pytest.mark.parametrize("flip, share", [(0.0, 0.0), (1.0, 1.0)])
    def test_flip_is_a_probability(self, flip, share):
        """S36: never, and always."""
        x, recorder = torch.randn(1, 1, 6, 6, dtype=torch.float64), Recorder()
        bp.Reynolds(recorder, n=9, max_angle=0, max_shift=0, flip=flip).attribute(x, 0)
        flipped = [torch.allclose(seen, x[0].flip(-1), atol=1e-12) for seen in torch.cat(recorder.seen)]
        assert sum(flipped) == 9 * share

    @pytest.mark.parametrize("shape", [(40, 40), (40, 64)])
    def test_rotation(self, shape):
        """S36: a rotation and its inverse (bilinear) bring a smooth map back, on oblong images too."""
        x = smooth(64)[..., : shape[0], : shape[1]]
        recorder = Recorder()
        average = bp.Reynolds(recorder, n=8, max_angle=20, max_shift=0, flip=0).attribute(x, 0)
        inner = (..., slice(14, -14), slice(14, -14))
        assert l1_relative(average[inner], x[inner]) < 2e-3
        assert l1_relative(torch.cat(recorder.seen)[0][inner[0], 14:-14, 14:-14], x[0][inner[0], 14:-14, 14:-14]) > 1e-2

    def test_rotation_is_one(self):
        """S36: a turned image keeps distances: a disc stays, and an oblong frame does not shear it."""
        rows, columns = torch.meshgrid(torch.arange(41.0), torch.arange(61.0), indexing="ij")
        radius = ((rows - 20) ** 2 + (columns - 30) ** 2).sqrt().double()
        disc = torch.exp(-(radius**2) / 60)[None, None]
        recorder = Recorder()
        bp.Reynolds(recorder, n=6, max_angle=90, max_shift=0, flip=0).attribute(disc, 0)
        for seen in torch.cat(recorder.seen):
            assert (seen - disc[0])[:, radius < 19].abs().max() < 0.02

    def test_seed(self):
        """S36: a seed fixes every draw, noise included; another gives others; the global generator is untouched."""
        model, x = Pointwise().double().eval(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
        game = bp.RoutingGame(model)
        state = torch.random.get_rng_state()
        options = {"n": 5, "noise": 0.5, "max_shift": 0.3}
        first = bp.Reynolds(game, seed=3, **options).attribute(x, 1)
        torch.manual_seed(99)
        second = bp.Reynolds(game, seed=3, **options).attribute(x, 1)
        other = bp.Reynolds(game, seed=4, **options).attribute(x, 1)
        assert_near(second, first, 1e-12)
        assert not torch.allclose(first, other)
        torch.random.set_rng_state(state)
        bp.Reynolds(game, **options).attribute(x, 1)
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_a_sample_alone_and_in_a_batch(self):
        """Samples never interact."""
        model, x = Pointwise().double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
        average = bp.Reynolds(bp.RoutingGame(model), n=4, noise=0.3)
        assert_near(average.attribute(x, 1)[1:], average.attribute(x[1:], 1))


class TestNoise:
    """S36: `x_t = (1−t) x + √(1−(1−t)²) ε`, `t ~ U[0, noise]`."""

    def test_distribution(self):
        """Every draw's `t` is read off by regression on the image; the residual has the variance that `t` says."""
        x, recorder = torch.randn(1, 3, 40, 40, dtype=torch.float64) * 30, Recorder()
        bp.Reynolds(recorder, n=200, max_angle=0, max_shift=0, flip=0, noise=0.5).attribute(x, 0)
        moved = torch.cat(recorder.seen)
        keep = (moved * x).sum((1, 2, 3)) / x.square().sum()
        t = 1 - keep
        residual = (moved - keep[:, None, None, None] * x).square().mean((1, 2, 3))
        expected = 1 - keep.square()
        assert (residual - expected).abs().max() < 5 * math.sqrt(2 / 4800) + 0.01
        assert t.min() > -0.003 and t.max() < 0.503 and t.max() > 0.45 and t.min() < 0.05
        assert abs(float(t.mean()) - 0.25) < 5 * 0.5 / math.sqrt(12 * 200)
        assert abs(float(t.var()) - 0.25 / 12) < 0.006
        other = (moved[0] - keep[0] * x[0], moved[1] - keep[1] * x[0])
        assert abs(float(torch.corrcoef(torch.stack([o.flatten() for o in other]))[0, 1])) < 0.1

    def test_none_by_default(self):
        """S36: the Routing Game's default is without noise."""
        x, recorder = torch.randn(1, 1, 6, 6, dtype=torch.float64), Recorder()
        bp.Reynolds(recorder, n=3, max_angle=0, max_shift=0, flip=0).attribute(x, 0)
        for seen in torch.cat(recorder.seen):
            assert_near(seen, x[0], 1e-12)


@pytest.mark.parametrize(
    "keywords",
    [
        {"n": 0}, {"n": -1}, {"n": 2.5}, {"n": True}, {"max_angle": -1}, {"max_angle": float("nan")},
        {"max_angle": 181}, {"max_shift": -0.1}, {"max_shift": 1.5}, {"flip": -0.1}, {"flip": 1.1}, {"noise": -0.1},
        {"noise": 1.5}, {"noise": "much"}, {"seed": "a"}, {"seed": 1.5}, {"seed": None},
    ],
)  # fmt: skip
def test_bad_keywords(keywords):
    """api.md: a value outside its range is a ValueError that names the keyword."""
    (name,) = keywords
    with pytest.raises(ValueError, match=name) as error:
        bp.Reynolds(Recorder(), **keywords)
    assert isinstance(error.value, bp.BackplayError)


def test_refusals():
    """Only maps of images are averaged, only of things that attribute; without a game there is no target to fix."""
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    with pytest.raises(TypeError, match="attribute"):
        bp.Reynolds(object())
    with pytest.raises(TypeError):
        bp.Reynolds(Recorder(), angle=3)
    with pytest.raises(ValueError, match="image"):
        bp.Reynolds(Recorder()).attribute(x[0], 0)
    with pytest.raises(ValueError, match="target"):
        bp.Reynolds(Recorder()).attribute(x)
    for target in ("cat", ["cat"], object()):
        with pytest.raises(bp.BackplayError, match="target"):
            bp.Reynolds(Recorder()).attribute(x, target)


def test_one_bar_for_all_images(monkeypatch):
    """A bar of its own for each image would start its patience anew, and never be seen on small ones."""
    heard = []
    monkeypatch.setattr(Progress, "advance", lambda bar, steps: heard.append((id(bar), bar.total, steps)))
    bp.Reynolds(Recorder(), n=20).attribute(torch.randn(3, 1, 6, 6), 0)
    assert [steps for *_, steps in heard] == [16, 4, 16, 4, 16, 4]
    assert len({bar for bar, *_ in heard}) == 1 and {total for _, total, _ in heard} == {60}


def test_defaults():
    """api.md: n=50, ±10°, ±5 %, flip 0.5, no noise, seed 0; the repr reads like the call."""
    average = bp.Reynolds(bp.RoutingGame(hand.mlp(3, 2), tau=0.5))
    found = (average.n, average.max_angle, average.max_shift, average.flip, average.noise, average.seed)
    assert found == (50, 10, 0.05, 0.5, 0, 0)
    scope = {"Reynolds": bp.Reynolds, "RoutingGame": bp.RoutingGame, "Sequential": hand.mlp(3, 2)}
    assert repr(eval(repr(average), scope)) == repr(average)
    assert "tau=0.5" in repr(average) and "n=50" in repr(average)


def shifted(image, rows, columns):
    """The image moved down and right by whole pixels; its mirror image comes in."""
    wide = torch.as_tensor(np.pad(image.numpy(), ((0, 0), (9, 9), (9, 9)), mode="symmetric"))
    height, width = image.shape[-2:]
    return wide[:, 9 - rows : 9 - rows + height, 9 - columns : 9 - columns + width]


class TestMethods:
    """Any registered method can be averaged: an `Explainer` is one with its parameters on a model."""

    def test_the_routing_game_by_name(self):
        """rg_eq is the Reynolds average of rg, and an Explainer of rg is the game; the target may be left out."""
        model, x = Circular().double().eval(), torch.randn(2, 1, 10, 10, dtype=torch.float64)
        by_name = bp.Reynolds(bp.Explainer(model, "rg", tau=0.5), n=4, seed=1).attribute(x)
        assert_near(by_name, bp.Reynolds(bp.RoutingGame(model, tau=0.5), n=4, seed=1).attribute(x))
        assert_near(by_name, bp.explain(model, x, method="rg_eq", tau=0.5, n=4, seed=1))

    def test_maps_of_one_channel(self):
        """A map of (B, 1, H, W) comes back as one: Grad-CAM of a circular network commutes with shifts."""
        model, x = Circular().double().eval(), torch.zeros(1, 1, 14, 14, dtype=torch.float64)
        x[..., 4:10, 4:10] = torch.randn(6, 6)
        method = bp.Explainer(model, "gradcam", layer="conv")
        average = bp.Reynolds(method, n=6, max_angle=0, max_shift=0.15).attribute(x, 1)
        assert average.shape == (1, 1, 14, 14)
        assert_near(average, method.attribute(x, 1))
        assert repr(method) == "Explainer(Circular, 'gradcam', layer='conv')"


class Folded(nn.Module):
    """Channels as samples of their own: the batch dimension of the convolution holds 64 times as many."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 64, 3, padding=1), nn.Linear(64, 2)

    def forward(self, x):
        inner = torch.relu(self.conv(x.flatten(0, 1)[:, None]))
        return self.head(inner.mean((2, 3)).unflatten(0, x.shape[:2]).mean(1))


class Long(nn.Module):
    """Attention over 1024 places, whose weights are larger than any of its values."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        tokens = x.flatten(2).mT
        return self.head(self.mix(tokens, tokens, tokens, need_weights=False)[0].mean(1))


def wide(channels):
    """One layer of that many channels."""
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))
    return nn.Sequential(nn.Conv2d(1, channels, 1), nn.ReLU(), *pool)


class TestTogether:
    """As many samples run at once as leave every value of the network a moderate block: 16, or 24 MB of the largest."""

    @pytest.mark.parametrize("channels, n, at_once", [(2, 18, 16), (3000, 7, 5), (8000, 3, 1)])
    def test_draws_are_batched(self, monkeypatch, channels, n, at_once):
        model, x, played = wide(channels).eval(), torch.randn(1, 1, 20, 20), []
        game, begin = bp.RoutingGame(model), bp.RoutingGame.attribute

        def attribute(self, x, target):
            played.append(len(x))
            return begin(self, x, target)

        monkeypatch.setattr(bp.RoutingGame, "attribute", attribute)
        average = bp.Reynolds(game, n=n, max_angle=0).attribute(x, 0)
        monkeypatch.undo()
        assert played == [at_once] * (n // at_once) + [n % at_once] * (n % at_once > 0)
        one_by_one = bp.Reynolds(Single(game), n=n, max_angle=0).attribute(x, 0)
        assert_near(average, one_by_one, 1e-5)

    @pytest.mark.parametrize("method, params, at_once", [
        ("smoothgrad", {"n": 18}, 5), ("integrated_gradients", {"steps": 18}, 5), ("lime", {"n": 18, "segments": 4}, 5),
        ("rg_eq", {"n": 18}, 5),
    ])  # fmt: skip
    def test_methods(self, monkeypatch, method, params, at_once):
        """Every method that runs many inputs runs as many of them at once."""
        model, x, ran = wide(3000).eval(), torch.randn(1, 1, 20, 20), []
        network = bp.capture(model, x)
        model.register_forward_pre_hook(lambda _, given: ran.append(len(given[0])))
        begin = bp.RoutingGame.attribute
        monkeypatch.setattr(bp.RoutingGame, "attribute", lambda self, x, t: ran.append(x.batch) or begin(self, x, t))
        bp.explain(network, x, 0, method=method, **params)
        assert max(ran) == at_once and ran.count(at_once) == 18 // at_once

    def test_what_counts(self):
        """Values that hold several entries for each sample, weights inside an attention, and the present precision."""
        x = torch.randn(2, 64, 32, 32)
        assert bp.capture(Folded().eval(), x).together(x) == 1  # 64 · 64 · 32 · 32 floats are 16.8 MB
        x = torch.randn(2, 16, 32, 32)
        assert bp.capture(Long().eval(), x).together(x) == 1  # 4 · 1024 · 1024 floats are 16.8 MB
        model, x = wide(3000).eval(), torch.randn(2, 1, 20, 20)
        game = bp.RoutingGame(model)
        assert (game.together(x), bp.Explainer(model, "gradient").together(x)) == (5, 5)
        model.double()
        assert game.together(x.double()) == 2


class TestChanges:
    """S1: every draw looks at the model's tensors, which costs next to nothing."""

    def test_changes_between_averages_are_seen(self):
        model, x = wide(2).eval(), torch.randn(1, 1, 20, 20)
        average = bp.Reynolds(bp.RoutingGame(model), n=3)
        average.attribute(x, 0)
        with torch.no_grad():
            model[-1].weight.neg_()
        assert_near(average.attribute(x, 0), bp.Reynolds(bp.RoutingGame(model), n=3).attribute(x, 0), 1e-6)

    @pytest.mark.parametrize("layer", [0, -1])
    def test_changes_between_draws_are_seen(self, layer):
        """S1: never silently stale, also for a game that moves the weights itself from draw to draw."""

        class Restless(bp.RoutingGame):
            def attribute(self, x, target=None):
                with torch.no_grad():
                    model[layer].weight.neg_()
                return super().attribute(x, target)

        model, x = wide(8000).eval(), torch.randn(1, 1, 20, 20)  # so wide that draws run one by one
        found = bp.Reynolds(Restless(model), n=3, max_angle=0).attribute(x, 0)
        model[layer].weight.data.neg_()
        assert_near(found, bp.Reynolds(Single(Restless(model)), n=3, max_angle=0).attribute(x, 0), 1e-6)

    def test_after_a_failure(self, monkeypatch):
        """What fails in the middle leaves the network as it was: the next map sees new weights."""
        model, x = wide(2).eval(), torch.randn(1, 1, 20, 20)
        game = bp.RoutingGame(model)
        game.attribute(x, 0)
        monkeypatch.setattr(Draws, "undo", None)
        with pytest.raises(bp.BackplayError, match="not callable"):
            bp.Reynolds(game, n=3).attribute(x, 0)
        with torch.no_grad():
            model[-1].weight.neg_()
        assert_near(game.attribute(x, 0), bp.RoutingGame(model).attribute(x, 0), 1e-6)
