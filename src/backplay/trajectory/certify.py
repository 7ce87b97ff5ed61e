"""`bp.certify`: subgame perfection checked by trying to do better (thm:forward-stopping, thm:routing-forward).

At sampled states the payoffs are read off the network and the observed values, the policy off the play's kernels. Then
one player deviates once: no pure action, no random mixture may pay more than the policy does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.errors import KeywordError
from backplay.kernels.kernel import WALK, Duel, Stopping, Winner
from backplay.kernels.linear import RoutingLinear, Sharing
from backplay.kernels.rows import gather
from backplay.kernels.streams import ByProduct, ByWeight, Contributions, Stream
from backplay.network import Node
from backplay.network.nodes import Affine, Gate, Max, Mix
from backplay.trajectory.comparable import check_play
from backplay.values.gates import normal_cdf, resolve_options

if TYPE_CHECKING:
    from backplay.games.play import Play

MIXTURES = 16  # random deviations that are tried at each state

Regulariser = Callable[[Tensor], Tensor]


class Certificate(float):
    """The largest gain of a deviation, in linear units relative to max(1, |value|); what was tried stands beside it."""

    checked: int
    skipped: int
    worst: str  # the node of the largest gain
    kinds: dict[str, int]  # checked states by kind

    def __new__(cls, gain: float, worst: str, kinds: Counter[str], skipped: int) -> Certificate:
        made = super().__new__(cls, gain)
        made.checked, made.skipped, made.worst, made.kinds = sum(kinds.values()), skipped, worst, dict(kinds)
        return made

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        place = f" at {self.worst!r}" if self.worst else ""
        return f"Certificate(gain {float(self):.1e}{place}; checked {counts or 'nothing'}; skipped {self.skipped})"


@dataclass
class Sampled:
    """States of one node that are put to the test."""

    play: Play
    node: Node
    states: Tensor  # flat indices
    generator: torch.Generator


def certify(play: Play, states: int = 200, seed: int = 0) -> Certificate:
    """One-shot deviations at `states` random states; the result is a float, the largest gain found.

    >>> bp.certify(play) <= 1e-9

    Covered are ReLU, max and linear states, Softplus and SiLU gates (Shannon entropy), GELU and noisy gates (probit
    regulariser); others are skipped and counted. Chance moves (signs, sums, Stopping weights) are no decisions.
    """
    check_play(play, "certify takes a play")
    if isinstance(states, bool) or not isinstance(states, int) or states < 1:
        raise KeywordError(f"states={states!r} is out of range: it must be an integer >= 1.")
    with torch.inference_mode(False), torch.no_grad():
        return _certify(play, states, seed)


def _certify(play: Play, states: int, seed: int) -> Certificate:
    generator = torch.Generator(device=play.value.device).manual_seed(seed)
    nodes = [n for n in play.network.nodes if n in play.visited() and _decides(play, n)]
    best, worst, kinds, skipped = 0.0, "", Counter[str](), 0
    if not nodes:
        return Certificate(best, worst, kinds, skipped)
    share = torch.randint(len(nodes), (states,), generator=generator, device=play.value.device).bincount(
        minlength=len(nodes)
    )
    for node, count in zip(nodes, share.tolist(), strict=True):
        size = play.values[node].numel()
        chosen = torch.randint(size, (count,), generator=generator, device=play.value.device)
        tried = _try(Sampled(play, node, chosen, generator)) if count else None
        if tried is None:
            skipped += count
            continue
        kind, gains = tried
        kinds[kind] += len(gains)
        gain = float(gains.amax()) if len(gains) else 0.0
        if gain > best or math.isnan(gain):
            best, worst = gain, node.name
    return Certificate(best, worst, kinds, skipped)


def _decides(play: Play, node: Node) -> bool:
    """Whether players choose there: gates, maxima, and the streams of the Routing Game."""
    return isinstance(node, (Gate, Max)) or (isinstance(node, (Affine, Mix)) and hasattr(play.game.modes, "epsilon"))


def _try(sampled: Sampled) -> tuple[str, Tensor] | None:
    """Kind and gain of each state, relative to max(1, |value|); None where the state is not covered."""
    kernel = sampled.play.kernel(sampled.node)
    match sampled.node, kernel:
        case Gate(), Stopping():
            return _try_gate(sampled, sampled.node, kernel)
        case Max(), Winner() | Duel():
            return "max", _try_max(sampled, sampled.node, kernel)
        case Affine(), RoutingLinear():
            gains = [_try_stream(sampled, sampled.node, kernel, side) for side in (1, -1)]
            return "linear", torch.maximum(*gains)
        case Mix(), Sharing():
            return "linear", _try_sharing(sampled, sampled.node, kernel)
        case _:
            return None


def _relative(gain: Tensor, value: Tensor) -> Tensor:
    return gain.clamp(min=0) / value.abs().clamp(min=1)


# ---------------------------------------------------------------- gates


def _try_gate(sampled: Sampled, node: Gate, kernel: Stopping) -> tuple[str, Tensor] | None:
    """Continue with probability `c` for `c z + R(c)`; stopping pays 0."""
    known = _regulariser(node, sampled.play)
    if known is None:
        return None
    kind, bonus = known
    z = _payoff(node, sampled.play).expand(sampled.play.values[node].shape).flatten()[sampled.states].double()
    policy = kernel.slope.expand(sampled.play.values[node].shape).flatten()[sampled.states].double()
    value = policy * z + bonus(policy)
    other = torch.rand(len(z), MIXTURES, generator=sampled.generator, dtype=torch.float64, device=z.device)
    near = (policy[:, None] + 0.01 * (other - 0.5)).clamp(0, 1)
    pure = torch.tensor([0.0, 1.0], dtype=torch.float64, device=z.device).expand(len(z), 2)
    tried = torch.cat([pure, other, near], 1)
    gains = (tried * z[:, None] + bonus(tried)).amax(1) - value
    return kind, _relative(gains, value)


def _payoff(node: Gate, play: Play) -> Tensor:
    """What continuing pays: the pre-activation, as the player perceives it."""
    z, modes = play.game.pre_activation(node, play.values), play.game.modes
    if node.gate == "relu" and modes.gate == "noisy" and modes.risk != 0:
        assert play.values.moments is not None
        z = z + modes.risk * play.values.moments.variance(node.operand).sqrt()
    return z


def _regulariser(node: Gate, play: Play) -> tuple[str, Regulariser] | None:
    """Kind of the gate and what mixing is worth there; None where no dual is known."""
    modes: Any = play.game.modes
    if node.gate == "relu" and getattr(modes, "softplus", None) is not None:
        return "softplus", lambda c: modes.softplus * _shannon(c)
    if node.gate == "relu" and modes.gate == "noisy":
        return "noisy", lambda c: modes.gate_noise * _probit(c)
    if modes.risk != 0 and node.nonnegative:  # such gates follow V_λ, not a payoff of this state
        return None
    options = resolve_options(node, play.values)
    if node.gate == "relu":
        return "relu", torch.zeros_like
    if node.gate in ("softplus", "silu"):
        weight = 1 / options.get("beta", 1.0) if node.gate == "softplus" else 1.0
        return node.gate, lambda c: weight * _shannon(c)
    if node.gate == "gelu" and options.get("approximate", "none") == "none":
        return "gelu", _probit
    return None


def _shannon(c: Tensor) -> Tensor:
    return torch.special.entr(c) + torch.special.entr(1 - c)


def _probit(c: Tensor) -> Tensor:
    """`φ(Φ⁻¹(c))` (eq:noisy-gate-regulariser)."""
    quantile = torch.special.ndtri(c)
    # one Newton step: the library's quantile has not all digits, which the derivative of the payoff would show
    finite = quantile.abs() < 8
    density = torch.exp(-quantile.square() / 2) / math.sqrt(2 * math.pi)
    quantile = torch.where(finite, quantile - (normal_cdf(quantile) - c) / density.clamp(min=1e-300), quantile)
    return torch.exp(-quantile.square() / 2) / math.sqrt(2 * math.pi)


# ---------------------------------------------------------------- maxima


def _try_max(sampled: Sampled, node: Max, kernel: Winner | Duel) -> Tensor:
    """The winner's value against that of every competitor, which is the node's own value."""
    values, states = sampled.play.values, sampled.states
    best = values[node].flatten()[states].double()
    if isinstance(kernel, Winner):
        paid = values[node.inputs[0]].flatten()[kernel.index.flatten()[states]]
    else:
        left, right = (values[n].flatten()[states] for n in node.inputs)
        paid = torch.where(kernel.first.flatten()[states], left, right)
    return _relative(best - paid.double(), best)


# ---------------------------------------------------------------- linear states


def _try_stream(sampled: Sampled, node: Affine, kernel: RoutingLinear, side: int) -> Tensor:
    """Log payoff of a contribution plus `τ` times entropy; outside option and absorbed bias are actions too."""
    modes: Any = sampled.play.game.modes
    values, states, shape = sampled.play.values, sampled.states, sampled.play.values[node].shape
    payoff = _contributions(sampled, node, side)
    stream = kernel.plus if side > 0 else kernel.minus
    assert isinstance(stream, Stream)
    entry = _at(stream.entry, states, shape)
    policy = _scores(kernel.contributions, sampled, side) * _at(stream.coefficient(WALK), states, shape)[:, None]
    leak = stream.leak()
    bias = _at(leak, states, shape) if leak is not None else torch.zeros_like(entry)
    outside = _at(stream.outside(), states, shape) - bias
    policy = torch.cat([policy, outside[:, None], bias[:, None]], 1) / entry.clamp(min=1e-300)[:, None]
    absorbed = torch.zeros_like(entry)
    if leak is not None and node.bias is not None:
        absorbed = (side * _at(node.bias(values), states, shape)).clamp(min=0)
    payoff = torch.cat([payoff, torch.full_like(entry, modes.epsilon)[:, None], absorbed[:, None]], 1)
    alive = (payoff[:, :-2].sum(1) > 0) & (entry > 0)  # an empty stream, and one that is never entered, decide nothing
    return torch.where(alive, _soft_gain(payoff, policy, modes.tau, sampled.generator), 0.0)


def _try_sharing(sampled: Sampled, node: Mix, kernel: Sharing) -> Tensor:
    """One stream without outside option (S18)."""
    payoff = _contributions(sampled, node, 1)
    shape = sampled.play.values[node].shape
    index, row = gather(kernel.linear, kernel.weight, sampled.states, (kernel.value.shape, shape))
    inverse = _at(kernel.inverse, sampled.states, shape)
    policy = (row * kernel.value.flatten()[index]).double() * inverse[:, None]
    tau: float = sampled.play.game.modes.tau  # type: ignore[attr-defined]
    return torch.where(payoff.sum(1) > 0, _soft_gain(payoff, policy, tau, sampled.generator), 0.0)


def _contributions(sampled: Sampled, node: Affine, side: int) -> Tensor:
    """`[a_i W_ij]^σ` from the network's own weights and the observed values, (states, predecessors)."""
    values = sampled.play.values
    value = values.observed[node.operand]
    shapes = value.shape, values[node].shape
    index, row = gather(node.map, node.weight(values), sampled.states, shapes)
    return (side * row.double() * value.flatten()[index].double()).clamp(min=0)


def _scores(given: Contributions, sampled: Sampled, side: int) -> Tensor:
    assert isinstance(given, (ByWeight, ByProduct))
    shapes = given.value.shape, sampled.play.values[sampled.node].shape
    if isinstance(given, ByWeight):
        weight, sign = (given.positive if side > 0 else given.negative), 1
    else:
        weight, sign = given.weight, side
    index, row = gather(given.linear, weight, sampled.states, shapes)
    return (sign * row * given.value.flatten()[index]).clamp(min=0).double()


def _at(value: Tensor | float, states: Tensor, shape: torch.Size) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full(states.shape, value, dtype=torch.float64, device=states.device)
    return value.expand(shape).flatten()[states].double()


def _soft_gain(payoff: Tensor, policy: Tensor, tau: float, generator: torch.Generator) -> Tensor:
    """Largest `exp Q(π') − exp Q(π)` over pure and random `π'`, with `Q(π) = Σ π log c + τ H(π)`."""
    log = payoff.log()
    size = policy.sum(1, keepdim=True)
    policy = policy / size.clamp(min=1e-300)
    own = _soft_value(log, policy, tau)
    best = log.amax(1)  # pure routes: no entropy
    for k in range(MIXTURES):
        draws = torch.rand(payoff.shape, generator=generator, dtype=torch.float64, device=payoff.device)
        mixed = -draws.log() if k % 2 else policy * torch.exp(0.1 * (draws - 0.5))
        mixed = torch.where(payoff > 0, mixed, 0)
        best = torch.maximum(best, _soft_value(log, mixed / mixed.sum(1, keepdim=True), tau))
    gain = torch.where(own > -math.inf, own.exp() * torch.expm1(best - own), best.exp())
    # what is no probability is no policy: the missing or surplus mass counts as gain
    return _relative(gain, own.exp()) + (size[:, 0] - 1).abs()


def _soft_value(log: Tensor, policy: Tensor, tau: float) -> Tensor:
    paid = torch.where(policy > 0, policy * log, 0).sum(1)
    return paid + tau * torch.special.entr(policy).sum(1)
