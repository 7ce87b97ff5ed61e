"""Sums over chosen elements and resizing: mixes, with each single weight to the power 1/τ (S18)."""

import pytest
import torch
import torch.nn.functional as F

import backplay as bp
from against import Between, affine_rule, check_all, inputs, mix_rule
from closeness import assert_near

pytestmark = pytest.mark.capture

INDEX = torch.tensor([2, 0, 2])
WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 1.4], dtype=torch.float64)
TURN = torch.tensor([[[0.8, 0.3, 0.1], [-0.2, 0.9, 0.0]]], dtype=torch.float64)


def turned(mode):
    def function(h):
        grid = F.affine_grid(TURN.expand(len(h), 2, 3), h.shape, align_corners=False)
        return F.grid_sample(h, grid, mode=mode, align_corners=False)

    return function


def resized(factor, **options):
    return lambda h: F.interpolate(h, scale_factor=factor, **options)


def onto_zeros(h):
    return h.new_zeros(len(h), 4, 4).index_add(1, INDEX, h)


def scattered(h):
    return h.new_zeros(len(h), 4, 4).scatter_add(1, INDEX[None, :, None].expand(len(h), 3, 4), h)


def fewer(h):
    """Places for two lines, and for three elements of each."""
    return INDEX[None, None].expand(len(h), 2, 3)


def put(h):
    return torch.ops.aten.index_put(h[:, :3], [None, INDEX - 3], h[:, 3:], True)


def put_at_pairs(h):
    pairs = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[3, 3], [3, 0]])
    return torch.ops.aten.index_put(h[:, :3], [None, *pairs], h[:, 3:5, :2], True)


def put_samples_last(h):
    return h[:, :3].transpose(0, 1).index_put((INDEX,), h[:, 3:].transpose(0, 1), accumulate=True).transpose(0, 1)


def lines(h):
    return INDEX[None, :, None].expand(len(h), 3, 4)


MIXES = {
    "scatter_add to more lines": (lambda h: h[:, :3].scatter_add(2, fewer(h), h[:, 3:5, :3]), (6, 4)),
    "scatter_add to more zeros": (lambda h: h.new_zeros(len(h), 4, 5).scatter_add(2, fewer(h), h), (2, 3)),
    "scatter_reduce": (lambda h: h[:, :3].scatter_reduce(1, lines(h), h[:, 3:], "sum"), (6, 4)),
    "index_put": (put, (6, 4)),
    "index_put at pairs": (put_at_pairs, (6, 4)),
    "index_put, samples last": (put_samples_last, (6, 4)),
    "cumsum": (lambda h: h.cumsum(1), (3, 4)),
    "cumsum from the end": (lambda h: h.flip(2).cumsum(2), (3, 4)),
    "fold": (lambda h: F.fold(h, (4, 4), 2), (8, 9)),
    "fold with gaps": (lambda h: F.fold(h, (5, 5), 2, stride=3), (8, 4)),
    "index_add to zeros": (onto_zeros, (3, 4)),
    "index_add": (lambda h: h[:, :3].index_add(1, INDEX, h[:, 3:]), (6, 4)),
    "scatter_add to zeros": (scattered, (3, 4)),
    "scatter_add": (lambda h: h[:, :3].scatter_add(2, INDEX[None, :, None].expand(len(h), 3, 4), h[:, 3:]), (6, 4)),
    "linear": (resized(2.0, mode="linear"), (2, 5)),
    "linear to a size": (lambda h: F.interpolate(h, size=7, mode="linear", align_corners=True), (2, 5)),
    "nearest in one dimension": (resized(2.0, mode="nearest"), (2, 5)),
    "nearest-exact": (resized(0.5, mode="nearest-exact"), (2, 5)),
    "bilinear": (resized(2.0, mode="bilinear"), (2, 3, 4)),
    "bilinear, antialiased": (resized(0.5, mode="bilinear", antialias=True), (2, 6, 4)),
    "trilinear": (resized(2.0, mode="trilinear"), (1, 2, 3, 2)),
    "nearest in three dimensions": (resized(2.0, mode="nearest"), (1, 2, 3, 2)),
    "a constant grid": (turned("bilinear"), (2, 4, 4)),
    "an average over a stack": (lambda h: torch.stack(h.unbind(1)).mean(0), (3, 4)),
    "an average, samples second": (lambda h: h.transpose(0, 1).mean(0), (3, 4)),
}
SIGNED = {
    "bicubic": (resized(2.0, mode="bicubic"), (2, 3, 4)),
    "bicubic, antialiased": (resized(0.5, mode="bicubic", antialias=True), (2, 6, 4)),
    "a constant grid, bicubic": (turned("bicubic"), (2, 4, 4)),
}


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("name", MIXES)
def test_mixes(name, positive):
    check_all(*MIXES[name], mix_rule, positive)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("name", SIGNED)
def test_signed_mixes(name, positive):
    """Weights of both signs: an affine node, whose parts by sign are those of each single weight."""
    check_all(*SIGNED[name], affine_rule, positive)


@pytest.mark.parametrize("positive", [False, True])
def test_an_index_smaller_than_what_is_added(positive):
    """The index says how much of it is; torch's own derivative does not know that."""
    check_all(
        lambda h: h[:, :3].scatter_add(2, fewer(h), h[:, 3:]),
        (6, 4),
        mix_rule,
        positive,
        plain=lambda h: h[:, :3].scatter_add(2, fewer(h), h[:, 3:5, :3]),
    )


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
def test_scatter_with_a_sum():
    """It has no derivative in torch, and is what `scatter_add` is."""
    game, x = bp.RoutingGame, inputs()
    model = Between(lambda h: h[:, :3].scatter(1, lines(h), h[:, 3:], reduce="add"), (6, 4))
    twin = Between(lambda h: h[:, :3].scatter_add(1, lines(h), h[:, 3:]), (6, 4))
    twin.load_state_dict(model.state_dict())
    assert_near(game(model).attribute(x, 0), game(twin).attribute(x, 0))


REFUSED = {
    "scatter_reduce": lambda h: h[:, :3].scatter_reduce(1, lines(h), h[:, 3:], "prod"),
    "scatter_reduce without itself": lambda h: h[:, :3].scatter_reduce(
        1, lines(h), h[:, 3:], "sum", include_self=False
    ),
    "index_put": lambda h: torch.ops.aten.index_put(h[:, :3], [None, INDEX], h[:, 3:4], True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_operator(name):
    """Samples keep apart in all of these: that is not what is wrong with them."""
    with pytest.raises(bp.BackplayError, match=name.split()[0]) as caught:
        bp.capture(Between(REFUSED[name], (6, 4)), inputs())
    assert "mixes" not in str(caught.value)
