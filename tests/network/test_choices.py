"""Minima, order statistics and their indices: all mass goes to the chosen element (S3f, S17)."""

import pytest
import torch
import torch.nn.functional as F

import backplay as bp
from against import Between, check_all, inputs, move_rule
from closeness import assert_near

pytestmark = pytest.mark.capture

CHOICES = {
    "minimum": (lambda h: torch.minimum(h, h.flip(-1)), (3, 4)),
    "fmin": (lambda h: torch.fmin(h, h.flip(-1)), (3, 4)),
    "min of two": (lambda h: torch.min(h, h.flip(1)), (3, 4)),
    "amin": (lambda h: h.amin((1, 3)), (3, 4, 2)),
    "min": (lambda h: h.min(-1).values, (3, 4)),
    "argmin": (lambda h: h.gather(-1, h.min(-1, keepdim=True).indices), (3, 4)),
    "topk": (lambda h: h.topk(2, -1).values, (3, 4)),
    "indices of topk": (lambda h: h.flip(-1).gather(-1, h.topk(2, -1).indices), (3, 4)),
    "sort": (lambda h: h.sort(-1, descending=True).values, (3, 4)),
    "stable sort": (lambda h: torch.sort(h, dim=1, stable=True).values, (3, 4)),
    "kthvalue": (lambda h: h.kthvalue(2, 1).values, (3, 4)),
    "median": (lambda h: h.median(1).values, (3, 4)),
    "cummax": (lambda h: h.cummax(1).values, (3, 4)),
    "unpooling": (lambda h: F.max_unpool2d(*F.max_pool2d(h, 2, return_indices=True), 2), (2, 4, 4)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name):
    check_all(*CHOICES[name], move_rule)


def test_the_first_of_equal_minima_wins():
    model = Between(lambda h: (h * 0).amin(-1, keepdim=True), (4,))
    play = bp.RoutingGame(model).play(inputs(), 0)
    assert bool((play.marginal("mul")[:, 1:] == 0).all())


@pytest.mark.parametrize("function", [lambda h: h + h.max(), lambda h: h - h.min(), lambda h: h * h.amin()])
def test_an_extremum_of_the_whole_batch(function):
    """It would compare the samples of a batch."""
    with pytest.raises(bp.BackplayError, match=r"mixes the samples of a batch"):
        bp.capture(Between(function, (3, 4)), inputs())


def test_deeplift_of_a_minimum():
    """Differences add up, as at a maximum."""
    model = Between(lambda h: torch.cat([h.amin(1), torch.minimum(h[:, 0], h[:, 1])], 1), (3, 4))
    x = inputs()
    found = bp.explain(model, x, 1, method="deeplift")
    gap = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    torch.testing.assert_close(found.sum(1), gap.detach(), rtol=1e-10, atol=1e-12)


SWITCHED = {
    "maximum": (lambda a, b: torch.where(a > b, a, b), torch.maximum),
    "minimum": (lambda a, b: torch.where(a > b, b, a), torch.minimum),
    "maximum, sides changed": (lambda a, b: torch.where(b >= a, b, a), torch.maximum),
}


def switched(function):
    """Masks that differ between the input and the baseline, which the biases see to."""
    torch.manual_seed(1)
    return Between(lambda h: function(h[:, 0], h[:, 1]), (2, 8))


@pytest.mark.parametrize("name", SWITCHED)
def test_deeplift_of_a_spelled_out_choice(name):
    """It is the choice that it spells out, and differences add up."""
    x = inputs(8)
    spelled, plain = (switched(function) for function in SWITCHED[name])
    found = bp.explain(spelled, x, 1, method="deeplift")
    assert_near(found, bp.explain(plain, x, 1, method="deeplift"))
    assert_near(found.sum(1), (spelled(x) - spelled(torch.zeros_like(x)))[:, 1].detach())


@pytest.mark.parametrize("function", [lambda a, b: torch.where(a > 0, b, 0.5), lambda a, b: b.masked_fill(a > 0, -1.0)])
def test_deeplift_of_a_choice_against_a_constant(function):
    """What a mask of another tensor switches on and off adds up too."""
    x, model = inputs(8), switched(function)
    found = bp.explain(model, x, 1, method="deeplift")
    assert_near(found.sum(1), (model(x) - model(torch.zeros_like(x)))[:, 1].detach())
