"""Every metric (app:metrics, tab:metric-configs) against a number that can be worked out on paper."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from backplay.bench import metrics
from backplay.bench.metrics import Meter, Sample, area_under, flipped_at_once, names, normalised, top_pixels

SIDE = 16


class Sum(nn.Module):
    """Two logits: the sum of all pixels of all channels, and minus that."""

    def forward(self, x):
        total = x.sum((1, 2, 3))
        return torch.stack([total, -total], 1)


def sample(mask=None, x=None, **more):
    x = torch.zeros(3, SIDE, SIDE) if x is None else x
    mask = np.zeros((SIDE, SIDE), bool) if mask is None else mask
    return Sample("one", x, 0, mask, **more)


def measure(heat, wanted, mask=None, x=None, explain=None, **more):
    meter = Meter(Sum().eval(), draws=more.pop("draws", 4), seed=more.pop("seed", 0))
    return meter.measure(sample(mask, x, **more), heat, explain or (lambda _: heat), wanted)


@pytest.fixture
def left():
    mask = np.zeros((SIDE, SIDE), bool)
    mask[:, : SIDE // 2] = True
    return mask


@pytest.mark.parametrize(
    "inside,outside,expected", [(1.0, 0.0, 1.0), (1.0, 1.0, 0.5), (0.0, 1.0, 0.0), (-3.0, 1.0, 0.75)]
)
def test_attribution_localisation_is_the_mass_inside(left, inside, outside, expected):
    """Σ|a|m / Σ|a|: absolute values, whatever their sign."""
    values, _ = measure(np.where(left, inside, outside), ["al"], left)
    assert values["al"] == pytest.approx(expected, abs=1e-9)


def test_pointing_game_looks_at_the_largest_absolute_value(left):
    heat = np.full((SIDE, SIDE), 0.1)
    heat[3, 2] = -5.0
    assert measure(heat, ["pg"], left)[0]["pg"] == 1
    heat[3, 12] = 6.0
    assert measure(heat, ["pg"], left)[0]["pg"] == 0


def test_a_tie_in_the_pointing_game_is_a_hit(left):
    heat = np.zeros((SIDE, SIDE))
    heat[0, 0] = heat[5, 14] = 2.0  # one inside, one outside
    assert measure(heat, ["pg"], left)[0]["pg"] == 1


def test_a_tie_is_not_made_by_rounding(left):
    heat = np.zeros((SIDE, SIDE))
    heat[0, 0] = 1.0
    heat[5, 14] = np.nextafter(np.float32(1), np.float32(2))  # the larger one lies outside
    assert measure(heat, ["pg"], left)[0]["pg"] == 0


def test_top_k_is_the_share_of_the_k_largest(left):
    k = top_pixels(SIDE * SIDE)
    assert k == round(1000 * SIDE * SIDE / 224**2) == 5
    heat = np.zeros((SIDE, SIDE))
    heat[0, [0, 1, 2]] = [9, -8, 7]  # three of the five largest lie inside
    heat[0, [12, 13]] = [6, 5]
    heat[1] = 1
    assert measure(heat, ["tk"], left)[0]["tk"] == pytest.approx(3 / 5)


def test_k_is_1000_on_the_images_of_the_paper():
    assert top_pixels(224 * 224) == 1000 and top_pixels(512 * 512) == 1000 and top_pixels(96 * 96) == 184


def test_what_is_ignored_counts_nowhere(left):
    ignored = np.zeros((SIDE, SIDE), bool)
    ignored[:, 4:12] = True
    heat = np.ones((SIDE, SIDE))
    heat[:, 4:12] = 100.0
    heat[2, 2] = 50.0
    heat[:, 12:] = 2.0
    values, _ = measure(heat, ["al", "pg"], left & ~ignored, ignored=ignored)
    inside = 4 * SIDE - 1 + 50
    assert values["al"] == pytest.approx(inside / (inside + 2 * 4 * SIDE), abs=1e-9)
    assert values["pg"] == 1


def test_empty_masks_are_skipped_and_told():
    values, notes = measure(np.ones((SIDE, SIDE)), ["localisation"])
    assert values == {"al": None, "pg": None, "tk": None}
    assert set(notes.values()) == {"empty mask"}


def test_pixel_flipping_of_a_sum():
    """Flipping pixels to the mean of the image: the sum falls by what the flipped features lie above the mean.

    Quantus spreads a map over the three channels and flips a 32nd of the pixels' number of features at each step; its
    `mean` is that of the image as it has become.
    """
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.random((3, SIDE, SIDE)), dtype=torch.float32)
    heat = rng.permutation(SIDE * SIDE).reshape(SIDE, SIDE) + 1.0
    values, _ = measure(heat, ["pf5", "pf20", "pf100"], x=x)
    order = np.argsort(-np.broadcast_to(normalised(heat), (3, SIDE, SIDE)).reshape(-1))
    flat, step, curve = x.double().numpy().reshape(-1).copy(), SIDE * SIDE // 32, []
    for start in range(0, flat.size, step):
        flat[order[start : start + step]] = flat.mean()
        curve.append(np.float32(flat).sum(dtype=np.float64))
    assert len(curve) == 96
    assert values["pf100"] == pytest.approx(np.trapezoid(curve) / 95, rel=1e-5)
    assert values["pf20"] == pytest.approx(np.trapezoid(curve[:20]) / 19, rel=1e-5)
    assert values["pf5"] == pytest.approx(np.trapezoid(curve[:5]) / 4, rel=1e-5)


def test_selectivity_of_a_sum():
    """Patches of 8 × 8: removing the bright one first, which the map points at, leaves the sum of the others."""
    x = torch.zeros(3, SIDE, SIDE)
    x[:, :8, :8] = 4.0  # the mean is 1; with the bright patch at 1, the mean is 0.25
    heat = np.zeros((SIDE, SIDE))
    heat[:8, :8], heat[:8, 8:], heat[8:, :8] = 3, 2, 1
    first, means = 64 * 3 * 1.0, [0.25]
    curve = [first]
    total = first
    for _ in range(3):
        total += 64 * 3 * means[-1]
        curve.append(total)
        means.append(total / (3 * SIDE * SIDE))
    values, _ = measure(heat, ["sel"], x=x)
    assert values["sel"] == pytest.approx(np.trapezoid(curve) / 3, rel=1e-6)


def test_sensitivity_of_a_map_that_does_not_change_is_zero():
    values, _ = measure(np.ones((SIDE, SIDE)) + np.eye(SIDE), ["maxs", "avgs"])
    assert values == {"maxs": 0.0, "avgs": 0.0}


def test_sensitivity_is_the_change_over_the_size_of_the_map():
    """The map jumps to one with a second spot on some draws: |Δ| / |a| is known, the mean is that over the draws."""
    heat, other = np.zeros((SIDE, SIDE)), np.zeros((SIDE, SIDE))
    heat[0, 0] = other[0, 0] = 2.0
    other[5, 5] = 1.0  # half of the largest: a change of 1/2 where the map has norm 1
    calls = []

    def explain(x):
        calls.append(x)
        return other if len(calls) % 4 == 0 else heat

    values, _ = measure(heat, ["maxs", "avgs"], explain=explain, draws=8)
    assert values == {"maxs": pytest.approx(0.5), "avgs": pytest.approx(0.5 * 2 / 8)}
    assert len(calls) == 8  # both metrics look at the same draws
    drawn = torch.cat(calls)
    assert drawn.abs().max() <= 0.2 and drawn.abs().mean() == pytest.approx(0.1, rel=0.05)


def test_draws_are_the_same_in_every_process_and_differ_between_samples():
    def draws(name, seed):
        seen = []
        heat = np.eye(SIDE)
        meter = Meter(Sum().eval(), draws=2, seed=seed)
        one = sample()
        one.name = name
        meter.measure(one, heat, lambda x: (seen.append(x), heat)[1], ["maxs"])
        return torch.cat(seen)

    state = np.random.get_state()[1].copy()
    assert torch.equal(draws("a", 0), draws("a", 0))
    assert not torch.equal(draws("a", 0), draws("b", 0))
    assert not torch.equal(draws("a", 0), draws("a", 1))
    assert (np.random.get_state()[1] == state).all()  # nobody else's numbers change


def test_a_map_of_zeros_has_no_sensitivity(left):
    values, notes = measure(np.zeros((SIDE, SIDE)), ["al", "maxs"], left)
    assert values == {"al": 0.0, "maxs": None} and notes == {"maxs": "map of zeros"}


def test_normalisation_is_by_the_largest_absolute_value():
    assert np.array_equal(normalised(np.array([[-4.0, 2.0]])), [[1.0, 0.5]])
    assert np.array_equal(normalised(np.zeros((1, 2))), [[0.0, 0.0]])


def test_area_is_the_mean_height():
    assert area_under(np.array([4.0, 2.0, 0.0]), 1.0) == 2.0
    assert area_under(np.arange(100.0), 0.05) == 2.0  # points 0 to 4
    assert area_under(np.arange(100.0), 0.001) == 0.5  # two points at least


@pytest.mark.parametrize("side,step", [(224, 1568), (96, 288), (227, 227)])
def test_steps_divide_the_image(side, step):
    assert flipped_at_once(side * side) == step


def test_groups_stand_for_their_metrics():
    assert names(["localisation", "sel"]) == ("al", "pg", "tk", "sel")
    with pytest.raises(ValueError, match="did you mean maxs"):
        names(["max"])


def test_nothing_is_said(left, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(np.where(left, 1.0, 0.5), list(metrics.GROUPS[:3]), left, draws=2)
    said = capsys.readouterr()
    assert said.out == "" and said.err == ""
