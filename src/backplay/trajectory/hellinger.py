"""`bp.hellinger`: how far apart two plays walk, and at which pixels (app:path-divergence, S27-S31)."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from backplay.entry import entries, entry
from backplay.errors import KeywordError
from backplay.kernels.kernel import WALK, WALK_DIFFERENCE
from backplay.kernels.tags import pull_tagged
from backplay.network import Node
from backplay.network.mass import Mass, aligned
from backplay.network.nodes import Input
from backplay.pictured import Pictured
from backplay.trajectory.comparable import check_comparable, check_play
from backplay.trajectory.comparison import Comparison, Ends
from backplay.trajectory.overlap import Meeting, Surviving, prefixes
from backplay.trajectory.passes import apart, arrived, beside, nothing
from backplay.words import list_words

if TYPE_CHECKING:
    from backplay.games.play import Play

KINDS = ("trajectory", "marginal", "fraction")


@entries
class Hellinger(Pictured, Comparison):
    """The trajectory laws of two plays compared; one number for each pair of samples, always float64.

    With `conditioning="post-hoc"` the law given survival comes from one pass and a normalisation
    (eq:conditioned-bc-posthoc), with `"kernel"` from Doob-transformed kernels (eq:conditioned-geom-kernel).
    """

    def __init__(self, a: Play, b: Play, conditioning: str = "post-hoc") -> None:
        self.a, self.b, self.conditioning = a, b, conditioning
        self.meeting = Meeting(a, b)
        with torch.inference_mode(False), torch.no_grad():
            own = [Ends(arrived(p.passed(WALK), p), p.cemetery, p.constant) for p in (a, b)]
            found, curve = prefixes(self.meeting)
        assert found.cemetery is not None
        assert found.constant is not None
        met = own[0] if a is b else Ends(arrived(found, a), found.cemetery, found.constant)
        super().__init__(own[0], own[1], met)
        self.by_layer: list[tuple[str, Tensor]] = [
            (name, torch.ones_like(bc) if a is b else (bc / self._size).clamp(max=1)) for name, bc in curve
        ]

    def __repr__(self) -> str:
        return f"Hellinger(distance {_shown(self.distance)}, surviving {_shown(self.surviving)})"

    # ---------------------------------------------------------------- given survival

    def _log_survival(self, side: int) -> Tensor:
        if self.conditioning == "kernel":
            return (self._surviving.log2_b if side else self._surviving.log2_a) * math.log(2)
        return super()._log_survival(side)

    @cached_property
    def _surviving(self) -> Surviving:
        with torch.inference_mode(False), torch.no_grad():
            return self.meeting.surviving()

    @cached_property
    def _given_survival(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.conditioning == "kernel":
            s = self._surviving
            met = s.alpha_a if self.a is self.b else s.beta
            return s.alpha_a.double().plain(), s.alpha_b.double().plain(), met.double().plain()
        return self._normalised()

    # ---------------------------------------------------------------- maps

    @property
    def disagreement(self) -> Any:
        """Like x: `h²`, tags summed (eq:per-pixel-h2)."""
        return self.map()

    @property
    def cemetery_disagreement(self) -> Tensor:
        """(B,) `h²(†)`."""
        return ((self.a.cemetery + self.b.cemetery) / 2 - self.cemetery_overlap).clamp(min=0)

    @property
    def constant_disagreement(self) -> Tensor:
        """(B,) `h²` of the constant elements."""
        return ((self.a.constant + self.b.constant) / 2 - self.constant_overlap).clamp(min=0)

    def map(self, kind: Literal["trajectory", "marginal", "fraction"] = "trajectory", conditioned: bool = False) -> Any:
        """Like x, float64: where the plays disagree, if `conditioned` then among surviving trajectories only.

        `"trajectory"` is `h²` (eq:per-pixel-h2), which sums to `H²` less what † and constants hold; `"marginal"` its
        lower bound from the marginals alone (eq:marginal-h2); `"fraction"` is `h²` over the mass (eq:fraction-h2).
        """
        if kind not in KINDS:
            raise KeywordError(f"kind={kind!r} is out of range: it must be one of {', '.join(map(repr, KINDS))}.")
        return self.a.inputs.pack(apart(self._map(kind, conditioned), self.a))

    def _map(self, kind: str, conditioned: bool) -> Tensor:
        """(B, elements) the map, all inputs side by side."""
        if kind == "marginal":
            return self._marginal_map(conditioned)
        if conditioned:
            alpha_a, alpha_b, beta = self._given_survival
        else:
            alpha_a, alpha_b, beta = (e.alive.double().plain() for e in (self._a, self._b, self._both))
        mass = (alpha_a + alpha_b) / 2
        squared = (mass - beta).clamp(min=0)
        return squared if kind == "trajectory" else torch.where(mass == 0, 0, squared / mass).clamp(max=1)

    def _marginal_map(self, conditioned: bool) -> Tensor:
        """Per tag, then summed."""
        parts: list[Tensor] = []
        for a, b in zip(self._tagged[0], self._tagged[1], strict=True):
            if conditioned:
                logs = self.log_survival_a / math.log(2), self.log_survival_b / math.log(2)
                a, b = (Mass(m.value, m.exponent - log, m.layout) for m, log in zip((a, b), logs, strict=True))
            p, q = a.double().plain(), b.double().plain()
            parts.append((p.sqrt() - q.sqrt()).square() / 2)
        return torch.stack(parts).sum(0)

    @cached_property
    def _tagged(self) -> tuple[tuple[Mass, Mass], tuple[Mass, Mass]]:
        with torch.inference_mode(False), torch.no_grad():
            return tagged_marginals(self.a), tagged_marginals(self.b)

    # ---------------------------------------------------------------- the other route

    def bc_forward(self) -> Tensor:
        """(B,) BC by the forward pass, which must agree with `bc` (eq:hellinger-cross-identity)."""
        with torch.inference_mode(False), torch.no_grad():
            return self.meeting.forward()[0] / self._size


def tagged_marginals(play: Play) -> tuple[Mass, Mass]:
    """Walk mass of each player at the inputs, all of them side by side."""
    output, root = play.network.output, play.root(WALK_DIFFERENCE)
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
    masses: dict[Node, tuple[Mass, Mass]] = {}
    masses[output] = Mass(root.clamp(min=0), zeros, output.layout), Mass((-root).clamp(min=0), zeros, output.layout)
    for node in reversed(play.network.nodes):
        if node not in masses or isinstance(node, Input):
            continue
        pair, common = aligned([m.normalised() for m in masses.pop(node)])
        step = play.kernel(node)
        for operand, moved in zip(step.carriers or node.carriers, pull_tagged(step, *pair), strict=True):
            arrived = [Mass(m, common, operand.layout) for m in moved]
            if operand in masses:
                arrived = [m.plus(n) for m, n in zip(masses[operand], arrived, strict=True)]
            masses[operand] = arrived[0], arrived[1]
    empty = [(nothing(play, n),) * 2 for n in play.network.inputs]
    plus, minus = zip(*(masses.get(n, e) for n, e in zip(play.network.inputs, empty, strict=True)), strict=True)
    return beside(plus), beside(minus)


@entry
def hellinger(
    play_a: Play,
    play_b: Play,
    *,
    invariant: Literal["permutation"] | None = None,
    conditioning: Literal["post-hoc", "kernel"] = "post-hoc",
) -> Hellinger:
    """Compare two plays of one game on one graph: two models, two inputs, two targets, or all of these.

    >>> h = bp.hellinger(game.play(x), game.play(y))
    >>> h.distance, h.surviving, h.disagreement

    A batch is compared pairwise. With `invariant="permutation"` hidden channels of B may first be renamed to fit A:
    `H_perm`, found by linear assignments from several starts, an upper bound of the true minimum (S33).
    """
    for play in (play_a, play_b):
        check_play(play, "hellinger takes two plays")
    if conditioning not in ("post-hoc", "kernel"):
        raise KeywordError(f"conditioning={conditioning!r} is out of range: it must be one of 'post-hoc', 'kernel'.")
    if invariant not in (None, "permutation"):
        raise KeywordError(f"invariant={invariant!r} is out of range: it must be None or 'permutation'.")
    check_comparable(play_a, play_b)
    if invariant is None:
        return Hellinger(play_a, play_b, conditioning)
    from backplay.trajectory.nearest import nearest
    from backplay.trajectory.permutation import candidates

    return nearest(play_a, candidates(play_a, play_b), conditioning)


def _shown(values: Tensor) -> str:
    return list_words([f"{v:.4f}" for v in values.tolist()])
