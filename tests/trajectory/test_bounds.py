"""Randomisation bounds and the cemetery floor (S35)."""

import math

import pytest
import torch
from torch import nn

from alike import alike
from backplay import RoutingGame, StoppingGame, bounds, hellinger


def test_formulas():
    assert bounds.stopping_bound(0.5, 16) == 2.0**-16
    assert bounds.routing_bound(0.25, 0.5, 3) == (0.75 * 0.5) ** 3
    floor = bounds.cemetery_floor(dead=0.2, alive=0.5, delta=0.5)  # the paper's VGG-16
    assert floor.cemetery == pytest.approx(0.1 / 0.55) and floor.ordinary == 0
    assert floor.distance == pytest.approx(math.sqrt(1 - 0.1 / 0.55))
    finite = bounds.cemetery_floor(0.2, 0.5, 0.5, 4)
    assert finite.ordinary == pytest.approx(0.45**4) and finite.bc < 1
    assert bounds.surviving_distance(0.02, 0.1, 0.4) == pytest.approx(math.sqrt(0.9))
    with pytest.raises(ValueError, match="delta"):
        bounds.stopping_bound(1.7, 2)


def test_bounds_hold_on_average():
    """Two independent random networks: the mean ordinary overlap lies below both bounds, Routing's rows below 1."""
    x = torch.randn(1, 12, dtype=torch.float64)

    def fresh():
        layers = [layer for _ in range(3) for layer in (nn.Linear(12, 12, bias=False), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(12, 2, bias=False)).double().eval()

    ordinary = {StoppingGame: [], RoutingGame: []}
    rows = []
    for _ in range(6):
        for game, found in ordinary.items():
            options = {} if game is StoppingGame else {"epsilon": 0.0}
            a, b = (game(alike(m, x), **options).play(x, 0) for m in (fresh(), fresh()))
            h = hellinger(a, b)
            found.append(float(h.bc - h.cemetery_overlap))
            if game is RoutingGame:
                rows.append(bounds.largest_row_overlap(a, b))
    # a ReLU behind symmetric weights lives with probability 1/2
    assert sum(ordinary[StoppingGame]) / 6 <= bounds.stopping_bound(0.5, 3)
    assert sum(ordinary[RoutingGame]) / 6 <= bounds.routing_bound(0.5, max(rows), 3)
    assert max(rows) < 1
