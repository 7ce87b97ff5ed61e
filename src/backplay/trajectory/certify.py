"""`bp.certify`: subgame perfection checked by trying to do better (thm:forward-stopping, thm:routing-forward).

At sampled states the payoffs are read off the network and the observed values, the policy off the play's kernels. Then
one player deviates once: no pure action, no random mixture may pay more than the policy does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import KeywordError
from backplay.kernels.attention import ValueRouting
from backplay.kernels.draws import Standing
from backplay.kernels.kernel import WALK_DIFFERENCE, Kernel
from backplay.kernels.linear import Sharing
from backplay.kernels.streams import RoutingLinear
from backplay.network import Node
from backplay.network.attention import Attention
from backplay.network.choices import Max
from backplay.network.nodes import Affine, Gate, Mix
from backplay.pictured import Pictured
from backplay.trajectory.comparable import check_play
from backplay.trajectory.deviations import MIXTURES, Sampled, relative, try_attention, try_linear, try_sharing
from backplay.values.gaussian import normal_cdf

if TYPE_CHECKING:
    from backplay.games.play import Play

Regulariser = Callable[[Tensor], Tensor]


_DIGITS = {torch.float64: 1e-9, torch.float32: 1e-4}  # what rounding alone may seem to gain


class Certificate(Pictured, float):
    """The largest gain of a deviation, in linear units relative to `max(1, |value|)`, with what was tried.

    `ok`, also its truth, is the verdict: no deviation gains more than rounding in the play's dtype explains.
    """

    checked: int
    skipped: int
    worst: str  # the node of the largest gain
    kinds: dict[str, int]  # checked states by kind
    tolerance: float

    def __new__(cls, gain: float, worst: str, kinds: Counter[str], skipped: int, tolerance: float) -> Certificate:
        made = super().__new__(cls, gain)
        made.tolerance = tolerance
        made.checked, made.skipped, made.worst, made.kinds = sum(kinds.values()), skipped, worst, dict(kinds)
        return made

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        place = f" at {self.worst!r}" if self.worst else ""
        return (
            f"Certificate({self.verdict}: gain {float(self):.1e}{place}, tolerance {self.tolerance:.0e}; "
            f"checked {counts or 'nothing'}; skipped {self.skipped})"
        )

    __str__ = __repr__

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether something was checked, and no deviation gains more than rounding explains."""
        return self.checked > 0 and float(self) <= self.tolerance

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.checked:
            return "nothing to certify"
        return "nobody gains by deviating" if self.ok else "SOMEBODY GAINS by deviating"


@entry
def certify(play: Play, states: int = 200, seed: int = 0) -> Certificate:
    """One-shot deviations at `states` random states; the result is a float, the largest gain found, and a verdict.

    >>> assert bp.certify(play).ok  # at the tolerance of the play's dtype

    Covered are ReLU, max and linear states, the attention composite (a key, then from a random key an input of the V
    projection, as one state), Softplus and SiLU gates (Shannon entropy), GELU and noisy gates (probit regulariser);
    others are skipped and counted. Chance moves (signs, sums, Stopping weights) are no decisions.
    """
    check_play(play, "certify takes a play")
    if isinstance(states, bool) or not isinstance(states, int) or states < 1:
        raise KeywordError(f"states={states!r} is out of range: it must be an integer >= 1.")
    play.check_unchanged("certify it")
    generator = torch.Generator(device=play.value.device).manual_seed(seed)
    nodes = [n for n in play.network.nodes if n in play.visited() and _decides(play, n)]
    best, worst, kinds, skipped = 0.0, "", Counter[str](), 0
    tolerance = _DIGITS.get(play.value.dtype, 1e-4)
    if not nodes:
        return Certificate(best, worst, kinds, skipped, tolerance)
    share = torch.randint(len(nodes), (states,), generator=generator, device=play.value.device).bincount(
        minlength=len(nodes)
    )
    for node, count in zip(nodes, share.tolist(), strict=True):
        size = play.solved[node].numel()
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
    return Certificate(best, worst, kinds, skipped, tolerance)


def _decides(play: Play, node: Node) -> bool:
    """Whether players choose there: gates, maxima, and the streams of the Routing Game."""
    return isinstance(node, (Gate, Max)) or (isinstance(node, (Affine, Mix)) and play.game.streams)


def _try(sampled: Sampled) -> tuple[str, Tensor] | None:
    """Kind and gain of each state, relative to `max(1, |value|)`; None where the state is not covered."""
    kernel = sampled.play.kernel(sampled.node)
    match sampled.node, kernel:
        case Gate(), _:
            return _try_gate(sampled, sampled.node, kernel)
        case Max(), _:
            return "max", _try_max(sampled, sampled.node, kernel)
        case Attention(), ValueRouting():
            return "attention", try_attention(sampled, sampled.node, kernel)
        case Affine(), RoutingLinear():
            return "linear", try_linear(sampled, sampled.node, kernel)
        case Mix(), Sharing():
            return "linear", try_sharing(sampled, sampled.node, kernel)
        case _:
            return None


# ---------------------------------------------------------------- gates


def _try_gate(sampled: Sampled, node: Gate, kernel: Kernel) -> tuple[str, Tensor] | None:
    """Continue with probability `c` for `c z + R(c)`; stopping pays 0 (eq:bellman).

    Without `R` the best answer is unique up to ties at `z = 0`, with it always: rem:adf-spne-uniqueness,
    rem:routing-spne-uniqueness, rem:softplus-uniqueness.
    """
    known = _regulariser(node, sampled.play)
    if known is None:
        return None
    kind, bonus = known
    z = _payoff(node, sampled.play).expand(sampled.play.solved[node].shape).flatten()[sampled.states].double()
    (slope,) = kernel.pull(torch.ones_like(sampled.play.solved[node]), WALK_DIFFERENCE)
    policy = slope.flatten()[sampled.states].double()
    value = policy * z + bonus(policy)
    other = torch.rand(len(z), MIXTURES, generator=sampled.generator, dtype=torch.float64, device=z.device)
    near = (policy[:, None] + 0.01 * (other - 0.5)).clamp(0, 1)
    pure = torch.tensor([0.0, 1.0], dtype=torch.float64, device=z.device).expand(len(z), 2)
    tried = torch.cat([pure, other, near], 1)
    gains = (tried * z[:, None] + bonus(tried)).amax(1) - value
    return kind, relative(gains, value)


def _payoff(node: Gate, play: Play) -> Tensor:
    """What continuing pays: the pre-activation, as the player perceives it."""
    z, modes = play.game.pre_activation(node, play.solved), play.game.modes.at(node)
    if modes.gate == "noisy" and modes.risk != 0 and play.solved.form(node).name == "relu":
        assert play.solved.moments is not None
        z = z + modes.risk * play.solved.moments.variance(node.operand).sqrt()
    return z


def _regulariser(node: Gate, play: Play) -> tuple[str, Regulariser] | None:
    """Kind of the gate and what mixing is worth there (eq:softplus-soft-bellman, eq:noisy-gate-objective), or None."""
    modes: Any = play.game.modes.at(node)
    form = play.solved.form(node)
    if form.name == "relu" and getattr(modes, "softplus", None) is not None:
        return "softplus", lambda c: modes.softplus * _shannon(c)
    if form.name == "relu" and modes.gate == "noisy":
        return "noisy", lambda c: modes.gate_noise * _probit(c)
    if modes.risk != 0 and node.nonnegative:  # such gates follow V_λ, not a payoff of this state
        return None
    if form.name == "relu":
        return "relu", torch.zeros_like
    if form.name in ("softplus", "silu"):
        weight = 1 / form.options.get("beta", 1.0) if form.name == "softplus" else 1.0
        return form.name, lambda c: weight * _shannon(c)
    if form.name == "gelu" and form.options.get("approximate", "none") == "none":
        return "gelu", _probit
    return None


def _shannon(c: Tensor) -> Tensor:
    return torch.special.entr(c) + torch.special.entr(1 - c)


def _probit(c: Tensor) -> Tensor:
    """`φ(Φ⁻¹(c))` (eq:noisy-gate-regulariser, lem:noisy-gate-dual)."""
    quantile = torch.special.ndtri(c)
    # one Newton step: the library's quantile has not all digits, which the derivative of the payoff would show
    finite = quantile.abs() < 8
    density = torch.exp(-quantile.square() / 2) / math.sqrt(2 * math.pi)
    quantile = torch.where(finite, quantile - (normal_cdf(quantile) - c) / density.clamp(min=1e-300), quantile)
    return torch.exp(-quantile.square() / 2) / math.sqrt(2 * math.pi)


# ---------------------------------------------------------------- maxima


def _try_max(sampled: Sampled, node: Max, kernel: Kernel) -> Tensor:
    """The winner's value against every competitor's; the best is the node's own (prop:routing-maxpool-val)."""
    values, states = sampled.play.solved, sampled.states
    best = values[node].flatten()[states].double()
    step = kernel.draw(Standing(states, values[node].shape, sampled.generator))
    paid = torch.zeros_like(best)
    for k, operand in enumerate(node.carriers):
        here = step.carrier == k
        paid[here] = values[operand].flatten()[step.element[here]].double()
    return relative(best - paid, best)
