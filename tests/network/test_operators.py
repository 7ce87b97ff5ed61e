"""The table of operators and the functions that read them belong together."""

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.errors import CaptureError
from backplay.network.forms import FACTORS
from backplay.network.operators import ALIASES, OPERATORS, meaning
from backplay.network.reading.calls import READINGS

pytestmark = pytest.mark.capture

UNNAMED = {"other", "clamp", "hardtanh", "hardsigmoid"}  # activations that follow their slope, or lie between bounds


def test_every_row_has_its_reading_and_every_reading_a_row():
    named = {row.reading for row in OPERATORS.values() if row.reading}
    assert named == set(READINGS)


def test_every_activation_is_known_by_name():
    assert {row.gate for row in OPERATORS.values() if row.gate} == {*FACTORS, *UNNAMED}


def test_second_names_lead_to_rows():
    without = {"log_softmax"}  # has no kind: it is read where `exp` undoes it
    assert {name for name in ALIASES.values() if name not in OPERATORS} == without


def test_an_operator_without_a_row_means_nothing():
    assert not meaning("nonexistent").reading and not meaning("nonexistent").moves


class Root(nn.Module):
    """A linear layer, an operator, a linear head."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.erf(self.first(x)))


def test_a_new_operator_is_one_name_in_the_table(monkeypatch):
    """Without its row an operator that torch cannot spell out is refused; with it the map is the gradient."""
    model, x = Root().double(), torch.randn(2, 3, dtype=torch.float64)
    row = OPERATORS["erf"]
    monkeypatch.delitem(OPERATORS, "erf")
    with pytest.raises(CaptureError, match="has no kind"):
        bp.capture(model, x)
    monkeypatch.setitem(OPERATORS, "erf", row)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)
    found = bp.StoppingGame(model).attribute(x, 0)
    torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)
