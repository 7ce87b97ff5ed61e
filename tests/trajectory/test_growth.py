"""Growth of the distance layer by layer, and the randomisation theorems in their own set-up (S31, S35)."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from closeness import assert_near
from enumerated import solved
from oracles import laws
from oracles.dag import Dag
from oracles.walks import Stopping

X = torch.linspace(-1.0, 1.5, 16, dtype=torch.float64)[None]


def dense(seed):
    """Three ReLU layers of four neurons on three inputs, as a graph that can be enumerated."""
    generator, dag, i = np.random.default_rng(seed), Dag((3,)), 0
    for _ in range(3):
        i = dag.gate(dag.linear(i, generator.normal(size=(4, dag.size(i)))), "relu")
    dag.linear(i, generator.normal(size=(1, 4)))
    return dag


def test_cemetery_recursion():
    """eq:cem-recursion: what the cemetery overlap grows by is the overlap that stands at gates dead in both plays."""
    x = np.array([[1.0, 0.5, -0.7]])
    sides = []
    for seed in (1, 2):
        dag = dense(seed)
        nodes, (values,) = solved(dag, x)
        play = bp.StoppingGame(bp.capture(dag.module(), torch.as_tensor(x))).play(torch.as_tensor(x), 0)
        sides.append((play, values, laws.law(Stopping(nodes, values), 0)))
    (a, values_a, p), (b, values_b, q) = sides
    affine = [i for i, node in enumerate(nodes) if node.kind == "affine"][::-1]
    h = bp.hellinger(a, b)
    assert len(h.growth) == len(affine) == 4

    def dead_in_both(state):
        if state == laws.DAGGER:
            return False
        z = nodes[state[0]].inputs[0]
        return values_a[z][state[1]] <= 0 and values_b[z][state[1]] <= 0

    increments = []
    for k, i in enumerate(affine[:-1]):
        stands = laws.overlap_at(laws.prefix(p, i), laws.prefix(q, i), dead_in_both)
        increments.append(float(h.growth[k + 1].cemetery - h.growth[k].cemetery))
        assert_near(increments[-1], stands, scale=1.0, what=f"growth of β(†) behind {h.growth[k].name}")
    assert max(increments) > 0.01


def test_shares_of_gates():
    """`δ`, `p`, `q` of every gate, counted from the two forward passes; in the order of the walk."""
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).double())
    h = bp.hellinger(*(bp.StoppingGame(m.eval()).play(x, 0) for m in models))
    assert [g.name for g in h.gates] == ["3", "1"]
    for gate, k in zip(h.gates, (4, 2), strict=True):
        a, b = (m[:k](x) > 0 for m in models)
        for found, expected in ((gate.differ, a != b), (gate.alive, b), (gate.dead, ~a)):
            assert_near(found, expected.double().mean(1), what=gate.name)


def test_measured_floor():
    """eq:cemetery-floor: with the same shares at every gate the recursion is the closed form; else it follows them."""
    shares = [torch.full((2,), v, dtype=torch.float64) for v in (0.5, 0.4, 0.2)]
    gates = [bp.bounds.GateShares(str(k), *shares) for k in range(5)]
    for n, layer in enumerate(bp.bounds.measured_floor(gates)):
        closed = bp.bounds.cemetery_floor(dead=0.2, alive=0.4, delta=0.5, layers=n + 1)
        assert_near(layer.cemetery, [closed.cemetery] * 2)
        assert_near(layer.ordinary, [closed.ordinary] * 2)
    same = [
        torch.zeros(1, dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    ]
    last = bp.bounds.measured_floor([gates[0], bp.bounds.GateShares("all live, all alike", *same)])[-1]
    assert_near(last.bc, bp.bounds.measured_floor(gates[:1])[0].bc)


LAYERS, WIDTH, DRAWS = 4, 16, 12


def trained():
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3, bias=False)).double().eval()


def randomised(model, layer, seed):
    """One layer replaced by independent symmetric weights (sec:lmp-randomization), all others kept."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        twin[2 * layer].weight.normal_(0, WIDTH**-0.5, generator=generator)
    return twin


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_one_random_layer(game, layer):
    """thm:rand-adf and thm:rand-routing in their own set-up: the ordinary overlap decays with the measured `δ`.

    Above the replaced layer all gates are affected, below it none. In the Stopping Game `BC` itself lies far above the
    bound, near the floor that the measured shares give (rem:adf-cemetery-floor).
    """
    model, options = trained(), {} if game is bp.StoppingGame else {"epsilon": 0.0}
    a = game(alike(model, X), **options).play(X, 0)
    found = [bp.hellinger(a, game(alike(randomised(model, layer, s), X), **options).play(X, 0)) for s in range(DRAWS)]
    affected = [torch.stack([h.gates[k].differ for h in found]).mean() for k in range(LAYERS - layer)]
    assert all(float(h.gates[k].differ) == 0 for h in found for k in range(LAYERS - layer, LAYERS))
    delta = float(min(affected))
    assert delta > 0.05
    rows = 1.0 if game is bp.StoppingGame else max(bp.bounds.largest_row_overlap(a, h.b) for h in found)
    curve = torch.stack([torch.stack([g.ordinary for g in h.growth]) for h in found]).mean(0)[:, 0]
    for k in range(LAYERS - layer):  # eq:ord-recursion at every affected gate
        assert curve[k + 1] <= (1 - delta) * curve[k] + 1e-12
    bound = bp.bounds.routing_bound(delta, rows, LAYERS - layer)
    assert curve[-1] <= bound
    cemetery = float(torch.stack([h.cemetery_overlap for h in found]).mean())
    everything = float(torch.stack([h.bc for h in found]).mean())
    floor = torch.stack([bp.bounds.measured_floor(h.gates)[-1].bc for h in found]).mean()
    if game is bp.StoppingGame:
        assert everything > bound  # the cemetery is no part of what the theorem bounds
        assert abs(float(floor) - everything) < 0.1  # a mean-field estimate
    else:
        assert cemetery == 0  # at ε = 0 no walk comes to a dead neuron
