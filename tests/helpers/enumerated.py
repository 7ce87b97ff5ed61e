"""Plays against enumerated trajectories: what the tests on drawn networks share."""

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, assume, currently_in_test_context, settings
from hypothesis import strategies as st

from closeness import assert_near, unscaled
from oracles import strategies
from oracles.dag import is_delicate, values
from oracles.walks import MINUS, PLUS


def examples(n):
    """`n` networks, the same in every run; they are small already, and shrinking would export hundreds more."""
    return settings(
        max_examples=n,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def require(condition):
    """Give up on a drawn network; a network written by hand has to be good."""
    if currently_in_test_context():
        assume(condition)
    assert condition


def solved(dag, x):
    """Dense nodes and the values of each sample, or give up on inputs that a rounding error could change."""
    nodes = dag.nodes()
    found = [values(nodes, sample) for sample in x]
    require(not any(is_delicate(nodes, v) for v in found))
    return nodes, found


def tensor(dag, x):
    """Flat samples as the input of the module."""
    return torch.as_tensor(x).reshape(len(x), *dag.shape(0))


def draw_inputs(data, dag):
    """Two flat samples and a target for each."""
    x = data.draw(strategies.inputs(dag, batch=2))
    return x, draw_targets(data, dag, x)


def draw_targets(data, dag, x):
    return [data.draw(st.integers(0, dag.size(len(dag.steps) - 1) - 1)) for _ in x]


def compare_play(play, outcomes, logits, addresses, slack=0.0):
    """Value, occupation of both players, difference, marginal and ends of a play, at every node with a path.

    `slack` is added to the sizes that errors are relative to: a unit of mass stands at the root, so rounding may leave
    1e-17 of it anywhere.
    """
    assert_near(play.value, logits, scale=np.abs(logits).max() + 1, what="value")
    for path, n in addresses:
        occupation = play.occupation(path)
        expected = np.stack([o.occupation[n] for o in outcomes])
        largest = expected.max() + slack
        for player, found in ((PLUS, occupation.plus), (MINUS, occupation.minus)):
            found = unscaled(found, occupation.log_scale)
            assert_near(found, expected[:, player], scale=largest, what=f"Γ of player {player} at {path}")
        difference = np.stack([o.difference(n) for o in outcomes])
        scale = np.abs(difference).max() + 1e-3 * largest + slack
        signed = unscaled(occupation.difference, occupation.difference_log_scale)
        assert_near(signed, difference, scale=scale, what=f"Γ₊ − Γ₋ at {path}")
        marginal = np.stack([o.marginal[n] for o in outcomes])
        assert_near(play.marginal(path), marginal, scale=1.0, what=f"marginal at {path}")
    assert_near(play.cemetery, [o.cemetery for o in outcomes], scale=1.0, what="cemetery")
    assert_near(play.constant, [o.constant for o in outcomes], scale=1.0, what="constant")
    health = play.health()
    assert health.ok and health.mass_error < 1e-10, health
    assert_near(health.bias_leak, max(o.bias_leak for o in outcomes), scale=1.0, what="bias leak")
