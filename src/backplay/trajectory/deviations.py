"""Deviations at linear states: log payoff plus `τ` times entropy (thm:routing-forward, app:attention-subgame).

Payoffs are contributions, read off the network's weights and the observed values; policies are read off the kernels.
The attention composite is two such states in a row: a key, with the outside option, then an input of its projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backplay.kernels.attention import ValueRouting
from backplay.kernels.draws import at_states, gather
from backplay.kernels.kernel import WALK
from backplay.kernels.linear import Sharing
from backplay.kernels.streams import RoutingLinear, Stream
from backplay.network import Node
from backplay.network.attention import Attention
from backplay.network.nodes import Affine, Mix
from backplay.values.risk import averse_weights

if TYPE_CHECKING:
    from backplay.games.play import Play

MIXTURES = 16  # random deviations that are tried at each state


@dataclass
class Sampled:
    """States of one node that are put to the test."""

    play: Play
    node: Node
    states: Tensor  # flat indices
    generator: torch.Generator


def relative(gain: Tensor, value: Tensor) -> Tensor:
    """A gain in units of max(1, |value|)."""
    return gain.clamp(min=0) / value.abs().clamp(min=1)


def try_linear(sampled: Sampled, node: Affine, kernel: RoutingLinear) -> Tensor:
    """Gain at both streams of an affine state."""
    absorbed = None if node.bias is None else node.bias(sampled.play.solved)
    gains = [
        _try_stream(
            sampled,
            kernel.stream(side),
            _contributions(sampled.play, node, sampled.states, side),
            kernel.contributions.scores(side, sampled.states, sampled.play.solved[node].shape)[1].double(),
            None if absorbed is None else side * absorbed,
        )
        for side in (1, -1)
    ]
    return torch.maximum(*gains)


def try_sharing(sampled: Sampled, node: Mix, kernel: Sharing) -> Tensor:
    """One stream without outside option (S18)."""
    payoff = _contributions(sampled.play, node, sampled.states, 1)
    shape = sampled.play.solved[node].shape
    index, row = gather(node, kernel.weight, sampled.states, (kernel.value.shape, shape))
    inverse = at_states(kernel.inverse, sampled.states, shape)
    return _try_choice(sampled, payoff, (row * kernel.value.flatten()[index]).double() * inverse[:, None])


def try_attention(sampled: Sampled, node: Attention, kernel: ValueRouting) -> Tensor:
    """Gain at the key choice and, from one random key of each state, at the input choice (S23).

    With payoffs `log A ṽ` the entropy makes `E log ṽ − KL(π‖A)` of the key choice (eq:attn-value-routing,
    lem:kl-legendre-fenchel).
    """
    play, states, gains = sampled.play, sampled.states, list[Tensor]()
    shapes = play.solved[node.operand].shape, play.solved[node].shape
    for side in (1, -1):
        weights = gather(node, _oracle(node, play), states, shapes)[1].double()
        keys, scores = kernel.key_scores(side, states, shapes[1])
        worth = _key_values(node, play, side).flatten()[keys]
        bias = _key_bias(node, play)
        gains.append(
            _try_stream(
                sampled,
                kernel.stream(side),
                weights * worth,
                scores.double(),
                None if bias is None else side * bias,
            )
        )
        gains.append(_try_input(sampled, node, kernel, keys, side))
    return torch.stack(gains).amax(0)


def _try_input(sampled: Sampled, node: Attention, kernel: ValueRouting, keys: Tensor, side: int) -> Tensor:
    """From the V-projection state of a key to an input of the projection: no outside option there."""
    assert node.projection is not None
    play, total = sampled.play, kernel.totals[0 if side > 0 else 1]
    draws = torch.rand(keys.shape, generator=sampled.generator, dtype=torch.float64, device=keys.device)
    chosen = keys.gather(1, draws.argmax(1, keepdim=True))[:, 0]
    states = kernel.states_of_keys(chosen)
    size = at_states(total, states, total.shape)[:, None]
    scores = kernel.projection.scores(side, states, total.shape)[1].double()
    policy = torch.where(size > 0, scores / size, 0)
    return _try_choice(sampled, _contributions(play, node.projection, states, side), policy)


def _try_choice(sampled: Sampled, payoff: Tensor, policy: Tensor) -> Tensor:
    """A choice among contributions alone; one among nothing decides nothing."""
    tau: float = sampled.play.game.modes.at(sampled.node).tau
    return torch.where(payoff.sum(1) > 0, _soft_gain(payoff, policy, tau, sampled.generator), 0.0)


def _try_stream(sampled: Sampled, stream: Stream, payoff: Tensor, scores: Tensor, bias: Tensor | None) -> Tensor:
    """A stream state: outside option and absorbed bias are actions beside the contributions."""
    modes, states = sampled.play.game.modes.at(sampled.node), sampled.states
    shape = sampled.play.solved[sampled.node].shape
    entry, leak = at_states(stream.entry, states, shape), stream.leak()
    policy = scores * at_states(stream.coefficient(WALK), states, shape)[:, None]
    leaks = at_states(leak, states, shape) if leak is not None else torch.zeros_like(entry)
    outside = at_states(stream.outside(), states, shape) - leaks
    policy = torch.cat([policy, outside[:, None], leaks[:, None]], 1) / entry.clamp(min=1e-300)[:, None]
    absorbed = torch.zeros_like(entry)
    if leak is not None and bias is not None:
        absorbed = at_states(bias, states, shape).clamp(min=0)
    alive = (payoff.sum(1) > 0) & (entry > 0)  # an empty stream, and one that is never entered, decide nothing
    payoff = torch.cat([payoff, torch.full_like(entry, modes.epsilon)[:, None], absorbed[:, None]], 1)
    return torch.where(alive, _soft_gain(payoff, policy, modes.tau, sampled.generator), 0.0)


# ---------------------------------------------------------------- payoffs, from the network


def _contributions(play: Play, node: Affine, states: Tensor, side: int) -> Tensor:
    """`[a_i W_ij]^σ` from the network's own weights and the observed values, (states, predecessors)."""
    value = play.solved.observed[node.operand]
    index, row = gather(node, node.weight(play.solved), states, (value.shape, play.solved[node].shape))
    return (side * row.double() * value.flatten()[index].double()).clamp(min=0)


def _oracle(node: Attention, play: Play) -> Tensor:
    """The oracle's weights, averse to uncertain keys if the game is (S24)."""
    values, modes = play.solved, play.game.modes.at(node)
    if modes.attention_risk == 0:
        return node.weight(values)
    assert values.moments is not None
    return averse_weights(node, values, values.moments, modes.attention_risk, modes.attention_score)


def _key_values(node: Attention, play: Play, side: int) -> Tensor:
    """`ṽ^σ` in the values' layout: sums of contributions, or their soft values where players know `τ` (S19, S23)."""
    assert node.projection is not None
    projection, values, modes = node.projection, play.solved, play.game.modes.at(node)
    weight, value = projection.weight(values).double(), values.observed[projection.operand].double()
    tau = modes.tau if modes.tau_forward and values.deformed else 1.0
    total = torch.zeros((), dtype=torch.float64, device=value.device)
    for sign in (1, -1):
        parts = (sign * value).clamp(min=0).pow(1 / tau), (side * sign * weight).clamp(min=0).pow(1 / tau)
        total = total + projection.map.apply(*parts)
    return node.through(total.pow(tau), values)


def _key_bias(node: Attention, play: Play) -> Tensor | None:
    """The projection's bias as the mixing carries it to its output."""
    assert node.projection is not None
    if node.projection.bias is None:
        return None
    spread = node.projection.bias(play.solved).expand(play.solved[node.projection].shape)
    return node.map.apply(node.through(spread, play.solved), node.weight(play.solved))


# ---------------------------------------------------------------- what a deviation gains


def _soft_gain(payoff: Tensor, policy: Tensor, tau: float, generator: torch.Generator) -> Tensor:
    """Largest `exp Q(π') − exp Q(π)` over pure and random `π'`, with `Q(π) = Σ π log c + τ H(π)`.

    The largest `Q` is `τ log Σ c^{1/τ}` (eq:optimal-linear, eq:legendre-fenchel-app).
    """
    log = payoff.log()
    size = policy.sum(1, keepdim=True)
    policy = policy / size.clamp(min=1e-300)
    own = _soft_value(log, policy, tau)
    best = log.amax(1)  # pure routes: no entropy
    for k in range(MIXTURES):
        draws = torch.rand(payoff.shape, generator=generator, dtype=torch.float64, device=payoff.device)
        mixed = -draws.log() if k % 2 else policy * torch.exp(0.1 * (draws - 0.5))
        mixed = torch.where(payoff > 0, mixed, 0)
        mixed = torch.where(mixed.sum(1, keepdim=True) > 0, mixed, (payoff > 0).double())
        best = torch.maximum(best, _soft_value(log, mixed / mixed.sum(1, keepdim=True), tau))
    gain = torch.where(own > -math.inf, own.exp() * torch.expm1(best - own), best.exp())
    # what is no probability is no policy: the missing or surplus mass counts as gain
    return relative(gain, own.exp()) + (size[:, 0] - 1).abs()


def _soft_value(log: Tensor, policy: Tensor, tau: float) -> Tensor:
    paid = torch.where(policy > 0, policy * log, 0).sum(1)
    return paid + tau * torch.special.entr(policy).sum(1)
