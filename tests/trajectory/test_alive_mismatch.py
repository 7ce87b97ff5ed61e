"""Gates that are open in one play and shut in the other carry no overlap."""

import copy

import pytest
import torch
from torch import nn

import backplay as bp
from backplay.kernels.geometric import geometric
from backplay.kernels.kernel import WALK
from backplay.trajectory.passes import run
from backplay.trajectory.roots import OverlapPass
from closeness import assert_near

F64 = torch.float64


def two_plays(game, **options):
    """A network and a copy with noisy weights, on one input."""
    torch.manual_seed(1)
    x = torch.randn(2, 5, dtype=F64)
    layers = [nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)]
    models = [nn.Sequential(*layers).double().eval()]
    models.append(copy.deepcopy(models[0]))
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.add_(0.5 * parameter.std() * torch.randn_like(parameter))
    network = bp.capture(models[0], x)
    return [game(network.on(model), **options).play(x, 1) for model in models]


@pytest.mark.parametrize("game, options", [(bp.StoppingGame, {}), (bp.RoutingGame, {"epsilon": 0.5})])
def test_alive_mismatch(game, options):
    """lem:alive-mismatch: R̃ = 0, exactly, in the symmetric difference of the alive sets; 1 elsewhere at a gate.

    In the whole pass no overlap stands behind such a gate, nor has any of it ended there in common.
    """
    a, b = two_plays(game, **options)
    overlap = OverlapPass(a, b, lambda node: (a.kernel(node), b.kernel(node)))
    overlap.keep = True  # what stands at a node stays written down
    run(overlap)
    for name in ("1", "3"):
        gate = a.network.find(name)
        alive = [play.solved[gate.operand] > 0 for play in (a, b)]
        differ = alive[0] != alive[1]
        assert differ.any() and (alive[0] & alive[1]).any() and (~alive[0] & ~alive[1]).any()
        kernel = geometric(a.kernel(gate), b.kernel(gate), name)
        ones = torch.ones_like(a.solved[gate])
        (moved,), ended = kernel.pull(ones, WALK), kernel.lost(ones)
        assert torch.equal((moved + ended) == 0, differ), "R̃ = 0 there and nowhere else"
        assert_near(moved, (alive[0] & alive[1]).double())
        assert_near(ended, (~alive[0] & ~alive[1]).double())
        behind, before = overlap.standing[gate.operand].plain(), overlap.standing[gate].plain()
        assert bool((behind[differ] == 0).all())
        assert bool((behind[alive[0] & alive[1]] > 0).any())
        if game is bp.StoppingGame:  # a walk of the Routing Game comes to dead neurons never
            assert bool((before[differ] > 0).any()), "overlap stood there before the gate"
