"""Walks through the V projection inside an attention composite (eq:attn-Gamma-V-corollary, S23, S32)."""

import pytest
import torch

import backplay as bp
from attention_blocks import drawn
from closeness import assert_near


@pytest.mark.parametrize("arriving", [False, True])
@pytest.mark.parametrize("name", ["fused, additive", "patches, packed", "grouped, fused"])
def test_sampled_walks(name, arriving):
    """Sampled walks cross the projection as often as `Γ^V` of the undiscounted walk says, all and arriving ones."""
    block, network, x, _ = drawn(name, 2, 0.0)
    play = bp.RoutingGame(network, epsilon=0.2).play(block.shaped(x), 0)
    projection = "qkv" if hasattr(block, "qkv") else "v"
    walks = play.sample(4000, seed=1, arriving=arriving)
    assert bool((walks.check(projection) > 1e-3).all())
    assert bool((walks.frequencies(projection).flatten(1).sum(1) > 0.01).all())  # enough of them to be a test
    if not arriving:
        assert_near(walks.expected(projection), play.marginal(projection), what="marginal at V")
    crossed = walks.states[network.find(projection).name] >= 0
    assert bool((walks.players[network.find(projection).name][crossed] != 0).all())


class Beside(torch.nn.Module):
    """Attention whose values the head reads twice: mixed, and as they are."""

    def __init__(self):
        super().__init__()
        self.v, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(6, 2)
        self.double().eval()

    def forward(self, x):
        value = self.v(x)
        mixed = (x @ x.transpose(1, 2)).softmax(-1) @ value
        return self.head(torch.cat([mixed, value], -1).sum(1))


@pytest.mark.parametrize("arriving", [False, True])
def test_both_routes(arriving):
    """Walks that cross the projection and walks that stand there are counted together, and none twice."""
    torch.manual_seed(3)
    model, x = Beside(), torch.randn(2, 4, 3, dtype=torch.float64)
    play = bp.RoutingGame(model, epsilon=0.3).play(x, 0)
    standing = play.visited()[play.network.find("v")].total()
    assert bool((play.marginal("v").flatten(1).sum(1) > standing + 0.05).all())
    walks = play.sample(4000, seed=2, arriving=arriving)
    assert bool((walks.check("v") > 1e-3).all())
