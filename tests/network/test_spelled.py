"""Operators that are what they spell out have the maps of the calls that they stand for (S3f)."""

import pytest
import torch
import torch.nn.functional as F

import backplay as bp
from against import Between, check_all, check_walk, inputs, mix_rule
from alike import alike
from closeness import assert_near

pytestmark = pytest.mark.capture

ROW = torch.arange(1, 5, dtype=torch.float64)
WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 1.4], dtype=torch.float64)


def cosine(a, b):
    sizes = (torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(1e-8) for v in (a, b))
    left, right = (v / size for v, size in zip((a, b), sizes, strict=True))
    return (left * right).sum(-1)


TWINS = {
    "glu": (lambda h: F.glu(h, 2), lambda h: h[..., :2] * h[..., 2:].sigmoid()),
    "cosine_similarity": (
        lambda h: F.cosine_similarity(h[:, :2], h[:, 1:], dim=-1),
        lambda h: cosine(h[:, :2], h[:, 1:]),
    ),
    "cosine_similarity with a constant": (lambda h: F.cosine_similarity(h, ROW, dim=-1), lambda h: cosine(h, ROW)),
    "addcmul": (lambda h: torch.addcmul(h[:, :1], h[:, 1:], ROW, value=2), lambda h: h[:, :1] + h[:, 1:] * ROW * 2),
    "addcmul of constants": (lambda h: torch.addcmul(h, ROW, ROW, value=2), lambda h: h + 2 * (ROW * ROW)),
    "addcmul to a constant": (lambda h: torch.addcmul(ROW, h, ROW), lambda h: ROW + h * ROW),
    "addcmul of two live": (lambda h: torch.addcmul(ROW, h, h.flip(1)), lambda h: ROW + h * h.flip(1)),
    "addcdiv": (lambda h: torch.addcdiv(h[:, :1], h[:, 1:], ROW), lambda h: h[:, :1] + h[:, 1:] / ROW),
    "GELU by erfc": (lambda h: h * 0.5 * torch.erfc(-h / 2**0.5), F.gelu),
    "GELU by the normal distribution": (lambda h: h * torch.special.ndtr(h), F.gelu),
    "GELU by another name of erf": (lambda h: h * 0.5 * (1 + torch.special.erf(h / 2**0.5)), F.gelu),
    "SiLU by another name of sigmoid": (lambda h: h * torch.special.expit(h), F.silu),
    "another name of softmax": (
        lambda h: torch.special.softmax(h, -1) * h.flip(1),
        lambda h: h.softmax(-1) * h.flip(1),
    ),
    # operators that torch itself spells out
    "broadcast_to": (lambda h: torch.broadcast_to(h[:, :1], h.shape) + h, lambda h: h[:, :1].expand_as(h) + h),
    "broadcast_tensors": (lambda h: sum(torch.broadcast_tensors(h[:, :1], h)), lambda h: h[:, :1].expand_as(h) + h),
    "multiply, subtract and divide": (
        lambda h: torch.multiply(torch.subtract(h, ROW), torch.divide(h.flip(1), ROW)),
        lambda h: (h - ROW) * (h.flip(1) / ROW),
    ),
    "diff": (lambda h: torch.diff(h, dim=-1), lambda h: h[..., 1:] - h[..., :-1]),
    "column_stack": (
        lambda h: torch.column_stack([h[:, 0], h[:, 1]]),
        lambda h: torch.cat([h[:, 0], h[:, 1]], 1),
    ),
    "lerp to a constant": (lambda h: torch.lerp(h, ROW, 0.3), lambda h: h * 0.7 + ROW * 0.3),
    "lerp by a live weight": (
        lambda h: torch.lerp(h[:, 0], h[:, 1], h[:, 2].sigmoid()),
        lambda h: h[:, 0] * (1 - h[:, 2].sigmoid()) + h[:, 1] * h[:, 2].sigmoid(),
    ),
}


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
@pytest.mark.parametrize("name", TWINS)
def test_twins(name, game):
    function, spelled = TWINS[name]
    model = Between(function, (3, 4))
    twin = Between(spelled, (3, 4))
    twin.load_state_dict(model.state_dict())
    x = inputs()
    found, play = game(alike(model, x)), game(alike(twin, x)).play(x, [0, 1, 2])
    assert_near(found.play(x, [0, 1, 2]).attribution(), play.attribution())
    assert found.play(x[:1], 0).health().ok
    check_walk(found)


@pytest.mark.parametrize("positive", [False, True])
def test_lerp(positive):
    """Of two live operands it is a mix."""
    check_all(lambda h: torch.lerp(h[:, 0], h[:, 1], 0.3), (2, 4), mix_rule, positive)


@pytest.mark.parametrize("positive", [False, True])
def test_lerp_by_a_constant_tensor(positive):
    """Weights beyond [0, 1] have both signs: an affine node."""
    check_all(lambda h: torch.lerp(h[:, 0], h[:, 1], WEIGHTS), (2, 4), mix_rule, positive)
