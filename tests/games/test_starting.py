"""Who starts, and where signs come from: two remarks on the Routing Game's discounts."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from closeness import assert_near, unscaled
from enumerated import solved, tensor
from oracles.dag import Dag
from oracles.walks import MINUS, PLUS, Routing, enumerate_walks, other

F64 = torch.float64


def signed(play, name):
    """Γ₊ − Γ₋ in true units."""
    found = play.occupation(name)
    return unscaled(found.difference, found.difference_log_scale)


def convolutional():
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)]
    return nn.Sequential(*layers).double().eval(), (2, 2, 6, 6)


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
@pytest.mark.parametrize("build", [convolutional, lambda: (hand.attention(), (2, 3, 3))], ids=["cnn", "attention"])
def test_the_other_player_starts(game, build):
    """rem:starting-player: weight −1 starts the walk with player −, which swaps Γ₊ and Γ₋ and negates Γ everywhere."""
    torch.manual_seed(2)
    model, shape = build()
    x = torch.randn(shape, dtype=F64)
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=F64)
    ours = game(model)
    first, second = (ours.play(x, w) for w in (weights, -weights))
    classes = ours.play(x, [1, 2])
    seen = 0
    for node in first.network.nodes:
        if node not in first.visited():
            continue
        a, b = first.occupation(node), second.occupation(node)
        assert_near(signed(second, node), -signed(first, node), what=node.name)
        assert_near(signed(first, node), signed(classes, node), what=f"the class itself at {node.name}")
        assert_near(unscaled(b.plus, b.log_scale), unscaled(a.minus, a.log_scale), scale=1 + a.plus.max())
        assert_near(unscaled(b.minus, b.log_scale), unscaled(a.plus, a.log_scale), scale=1 + a.plus.max())
        assert_near(second.marginal(node), first.marginal(node), what="the walk itself is the same")
        seen += bool(np.abs(signed(first, node)).max() > 0)
    assert seen > 4
    assert_near(second.attribution(), -first.attribution())
    assert_near(second.value, -first.value)


class SignedDiscounts(Routing):
    """The walks of the Routing Game with −2β instead of 2β on the negative stream."""

    def affine(self, node, state):
        moves = super().affine(node, state)
        if len(state) == 4:
            return moves
        return [(to, p, -d if d == 2 * self.beta and to[0] != "†" and to[3] == MINUS else d) for to, p, d in moves]


def branched(seed):
    """Two ReLU layers, a sum around the second, an average and a head: small enough to walk every trajectory."""
    generator, dag = np.random.default_rng(seed), Dag((3,))
    first = dag.gate(dag.linear(0, generator.normal(size=(3, 3)), generator.normal(size=3)), "relu")
    second = dag.gate(dag.linear(first, generator.normal(size=(3, 3))), "relu")
    dag.linear(dag.add(first, second), generator.normal(size=(2, 3)))
    return dag


@pytest.mark.parametrize("options", [{}, {"epsilon": 0.0}, {"alpha": 1.5, "beta": 0.5, "tau": 0.5}])
def test_signed_discounts(options):
    """rem:signed-discount-alt: discounts 2α and −2β, players summed, give the same Γ at every node."""
    dag = branched(5)
    x = np.random.default_rng(6).normal(size=(2, 3))
    nodes, found = solved(dag, x)
    play = bp.RoutingGame(bp.capture(dag.module(), tensor(dag, x)), **options).play(tensor(dag, x), [0, 1])
    walks = [enumerate_walks(SignedDiscounts(nodes, v, **options), t) for t, v in enumerate(found)]
    plain = [enumerate_walks(Routing(nodes, v, **options), t) for t, v in enumerate(found)]
    for path, n in dag.addresses():
        summed = np.stack([w.occupation[n][PLUS] + w.occupation[n][MINUS] for w in walks])
        assert_near(signed(play, path), summed, scale=np.abs(summed).max() + 1e-6, what=path)
    assert any(w.occupation[n].min() < 0 for w in walks for n in w.occupation), "no occupation measure any more"
    assert all(w.occupation[n].min() >= 0 for w in plain for n in w.occupation)
    assert other(PLUS) == MINUS
