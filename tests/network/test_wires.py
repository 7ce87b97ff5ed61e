"""Operators that move elements and fill in others: both games, every batch size, walks and distances."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import backplay as bp
from against import Between, check_all, check_values, check_walk, inputs, move_rule
from closeness import assert_near

pytestmark = pytest.mark.capture

MASK = torch.tensor([True, False, True, False])
LOWEST = float("-inf")

MOVES = {
    "pad with a number": (lambda h: F.pad(h, (1, 2), value=0.5), (3, 4)),
    "pad with −∞ before a max": (lambda h: F.max_pool2d(F.pad(h, (1, 1, 1, 1), value=LOWEST), 3, 2), (2, 4, 4)),
    "masked_fill": (lambda h: h.masked_fill(MASK, 2.0), (3, 4)),
    "masked_fill with −∞ before a max": (lambda h: h.masked_fill(MASK, LOWEST).amax(-1), (3, 4)),
    "where": (lambda h: torch.where(MASK, h, 1.5), (3, 4)),
    "tril": (lambda h: h.tril(), (4, 4)),
    "triu": (lambda h: h.triu(1), (4, 4)),
    "unfold with padding": (lambda h: F.unfold(h, 3, padding=1), (2, 4, 4)),
    "index_fill": (lambda h: h.index_fill(1, torch.tensor([0, 2]), 2.0), (3, 4)),
    "scatter": (lambda h: h.scatter(1, torch.zeros(len(h), 1, 4, dtype=torch.long), h[:, 1:2]), (3, 4)),
    "scatter of a number": (lambda h: h.scatter(1, torch.zeros(len(h), 1, 4, dtype=torch.long), 3.0), (3, 4)),
    "select_scatter": (lambda h: torch.select_scatter(h, h[:, 1], 1, 0), (3, 4)),
    "slice_scatter": (lambda h: torch.slice_scatter(h, h[:, 1:], 1, 0, 2), (3, 4)),
    "squeeze": (lambda h: h[:, :1].squeeze().reshape(-1, 4), (3, 4)),
    "squeeze of the batch's axis": (lambda h: h.flatten(1).squeeze(0).reshape(-1, 12), (3, 4)),
    "transposed views": (lambda h: h.mT.flatten(1).T.T.unflatten(1, (4, 3)).reshape(-1, 12), (3, 4)),
    "expand": (lambda h: h[:, :, None].expand(-1, -1, 2, 4), (3, 4)),
    "an empty slice": (lambda h: torch.cat([h[..., :4], h[..., 4:].flip(1)], -1), (3, 4)),
    "an empty part": (lambda h: torch.cat(h.split([0, 4], -1), -1), (3, 4)),
    "a detached value": (lambda h: torch.cat([h, h.detach() ** 2], 1), (3, 4)),
    "a live index": (lambda h: h.gather(1, h.argmax(1, keepdim=True)), (3, 4)),
    "a live mask": (lambda h: torch.where(h > 0, h, h.flip(-1)), (3, 4)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    check_all(*MOVES[name], move_rule)


def sliced(h):
    h[:, 0] = 0
    return h


def into_zeros(h):
    z = h.new_zeros(len(h), 4, 4)
    z[:, 1:] = h
    return z


def into_rows_of_ones(h):
    z = torch.zeros(len(h), 4, 4, dtype=h.dtype)
    z[:, 0] = 1
    z[:, 1:] = h
    return z


def by_index(h):
    h[:, :, torch.tensor([0, 2])] = h[:, :, torch.tensor([1, 3])]
    return h


def by_mask(h):
    h[..., MASK] = 0.0
    return h


def through_a_reshaped_view(h):
    h.view(-1, 12)[:, 3:5].copy_(torch.ones(2, dtype=h.dtype))
    return h


def through_a_transposed_view(h):
    h.transpose(1, 2)[:, 0].fill_(0.5)
    return h


def an_earlier_view(h):
    view = h[:, 0]
    h[:, 0, :2] = h[:, 1, :2]
    return view


def a_clone(h):
    c = h.clone()
    c[:, 0] = c[:, 1]
    return torch.cat([c, h], 1)


def a_part(h):
    q, k = h.chunk(2, -1)
    q.copy_(k)
    return h


def piece_by_piece(h):
    out = torch.empty_like(h)
    out[:, 0::2] = h[:, 0::2]
    out[:, 1::2] = h[:, 1::2].flip(-1)
    return out


def the_diagonal(h):
    h.diagonal(dim1=1, dim2=2).zero_()
    return h


PLAIN = {
    a_part: lambda h: torch.cat([h[..., 2:], h[..., 2:]], -1),
}
ASSIGNMENTS = (
    sliced,
    into_zeros,
    into_rows_of_ones,
    by_index,
    by_mask,
    through_a_reshaped_view,
    through_a_transposed_view,
    an_earlier_view,
    a_clone,
    a_part,
    piece_by_piece,
    the_diagonal,
)


@pytest.mark.parametrize("function", ASSIGNMENTS)
def test_assignments(function):
    check_all(function, (3, 4), move_rule, plain=PLAIN.get(function))


def test_in_place_arithmetic_on_a_view():
    """`+=` on a slice is an addition and an assignment."""

    def written(h):
        h[:, 0] += h[:, 1]
        h.mul_(2)
        h[:, 2].relu_()
        return h

    model = Between(written, (3, 4))
    x = inputs().requires_grad_()
    (expected,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
    play = bp.StoppingGame(model).play(x.detach(), 1)
    assert_near(play.attribution(), expected)
    assert play.health().ok


def test_a_constant_that_is_changed_after_it_was_read():
    def changed(h):
        z = torch.zeros(4, dtype=h.dtype)
        first = h + z
        z += 1
        return torch.cat([first, h + z], 1)

    model = Between(changed, (3, 4))
    assert bp.RoutingGame(model).play(inputs(), 0).health().ok


class Padded(nn.Module):
    """A convolution behind padding."""

    def __init__(self, value):
        super().__init__()
        self.value, self.conv, self.head = value, nn.Conv2d(2, 3, 3), nn.Linear(48, 4)
        self.double().eval()

    def forward(self, x):
        return self.head(self.conv(F.pad(x, (1, 1, 1, 1), value=self.value)).relu().flatten(1))


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_padding_with_a_number_is_a_terminal(game):
    """Zeros around an image are no predecessors (S6); any other border is a constant that takes its share (S26)."""
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    assert float(game(Padded(0.0)).play(x, 1).constant.abs().max()) == 0
    model = Padded(0.5)
    play = game(model).play(x, 1)
    twin = nn.Module()
    border = torch.full((1, 2, 6, 6), 0.5, dtype=torch.float64)

    def beside_constants(x):
        rows = border[:, :, :1, 1:5].expand(len(x), -1, -1, -1)
        columns = border[:, :, :, :1].expand(len(x), -1, -1, -1)
        return torch.cat([columns, torch.cat([rows, x, rows], 2), columns], 3)

    twin.forward = lambda x: model.head(model.conv(beside_constants(x)).relu().flatten(1))
    twin.model = model
    other = game(twin.eval()).play(x, 1)
    assert float(play.constant.min()) > 0.01
    assert_near(play.constant, other.constant)
    assert_near(play.attribution(), other.attribution())
    check = bp.hellinger(play, game(model).play(x + 0.1, 1))
    assert bool(torch.isfinite(check.distance).all())


def test_live_indices_that_differ():
    """Two inputs whose argmax differs share no walk through the element that it chooses."""
    model = Between(lambda h: h.gather(1, h.argmax(1, keepdim=True)), (4,))
    x = inputs(8)
    chosen = model.before(x).argmax(1)
    first = 0
    second = int((chosen != chosen[0]).nonzero()[0])
    game = bp.StoppingGame(model)
    found = bp.hellinger(game.play(x[first][None], 0), game.play(x[second][None], 0))
    assert float(found.bc) == 0
    check_walk(game)


def test_a_value_that_only_lends_its_type():
    table = torch.arange(4)
    model = Between(lambda h: h + table.type_as(h) + table.to(h).expand_as(h), (3, 4))
    assert bp.RoutingGame(model).play(inputs(), 0).health().ok


def test_a_detached_value_is_a_constant():
    """Added it is a bias, multiplied a diagonal (S3d); integers and counts are told likewise."""

    def detached(h):
        return h * h.detach().sigmoid() + h.detach() + torch.nn.functional.one_hot(h.argmax(-1), 4) + h.long()

    model = Between(detached, (3, 4))
    x = inputs().requires_grad_()
    (expected,) = torch.autograd.grad(model(x)[:, 2].sum(), x)
    play = bp.StoppingGame(model).play(x.detach(), 2)
    assert_near(play.attribution(), expected)
    assert play.health().ok
    kinds = [n.kind for n in play.network.nodes if n in play.network.reached]
    assert "sum" not in kinds
    assert "product" not in kinds


def test_a_comparison_as_a_factor_is_decomposed():
    """What a mask makes of itself on the way to its product holds no pair below it: it is told."""
    model = Between(lambda h: torch.cat([h * (h > 0).to(h.dtype), h + h.round()], 1), (3, 4))
    check_values(bp.capture(model, inputs()), model)
