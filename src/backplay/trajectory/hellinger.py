"""`bp.hellinger`: how far apart two plays walk, and at which pixels (app:path-divergence, S27-S31)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError, KeywordError
from backplay.kernels.kernel import WALK
from backplay.kernels.tags import pull_tagged
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.trajectory.comparable import check_comparable
from backplay.trajectory.overlap import Meeting, Surviving, prefixes

if TYPE_CHECKING:
    from backplay.games.play import Play

KINDS = ("trajectory", "marginal", "fraction")


class Hellinger:
    """The trajectory laws of two plays compared; one number for each pair of samples, always float64.

    With `conditioning="post-hoc"` the law given survival comes from one pass and a normalisation
    (eq:conditioned-bc-posthoc), with `"kernel"` from Doob-transformed kernels (eq:conditioned-geom-kernel).
    """

    def __init__(self, a: Play, b: Play, conditioning: str = "post-hoc") -> None:
        self.a, self.b, self.conditioning = a, b, conditioning
        self.meeting = Meeting(a, b)
        with torch.inference_mode(False), torch.no_grad():
            self._alpha = a.mass("input", WALK), b.mass("input", WALK)
            self._found, curve = prefixes(self.meeting)
        self._beta = self._found.masses[a.network.input]
        # passes round: dividing by the masses that both walks really carried makes a play's distance to itself 0
        self._size = (self._weight(a) * self._weight(b)).sqrt()
        self.by_layer: list[tuple[str, Tensor]] = [(name, (bc / self._size).clamp(max=1)) for name, bc in curve]

    def __repr__(self) -> str:
        return f"Hellinger(distance {_shown(self.distance)}, surviving {_shown(self.surviving)})"

    def _weight(self, play: Play) -> Tensor:
        return play.mass("input", WALK).total() + play.constant + play.cemetery

    # ---------------------------------------------------------------- numbers

    @property
    def cemetery_overlap(self) -> Tensor:
        """(B,) `β(†)`."""
        assert self._found.cemetery is not None
        return self._found.cemetery

    @property
    def constant_overlap(self) -> Tensor:
        """(B,) `β` of the constant elements (S26)."""
        assert self._found.constant is not None
        return self._found.constant

    @property
    def bc(self) -> Tensor:
        """(B,) Bhattacharyya coefficient of the trajectory laws (eq:bc-def)."""
        total = self._beta.total() + self._found.ended()
        return (total / self._size).clamp(max=1)

    @property
    def distance(self) -> Tensor:
        """(B,) `H = √(1 − BC)` (eq:hellinger-def)."""
        return (1 - self.bc).sqrt()

    @property
    def survival_a(self) -> Tensor:
        """(B,) `Z_A`, the probability of reaching an input element."""
        return self.log_survival_a.exp()

    @property
    def survival_b(self) -> Tensor:
        """(B,) `Z_B`."""
        return self.log_survival_b.exp()

    @property
    def log_survival_a(self) -> Tensor:
        """(B,) natural logarithm of `Z_A`, right even where `Z_A` is below any float."""
        return self._log_survival(0)

    @property
    def log_survival_b(self) -> Tensor:
        """(B,) natural logarithm of `Z_B`."""
        return self._log_survival(1)

    def _log_survival(self, side: int) -> Tensor:
        if self.conditioning == "kernel":
            return (self._surviving.log2_b if side else self._surviving.log2_a) * math.log(2)
        mass = self._alpha[side]
        return mass.layout.sum(mass.value).log() + mass.log_scale

    @property
    def bc_surviving(self) -> Tensor:
        """(B,) BC of the laws given survival (eq:conditioned-bc-posthoc); NaN where a play never survives."""
        alpha_a, alpha_b, beta = self._given_survival
        a, b, both = (alpha_a.flatten(1).sum(1), alpha_b.flatten(1).sum(1), beta.flatten(1).sum(1))
        return (both / (a * b).sqrt()).clamp(max=1)

    @property
    def surviving(self) -> Tensor:
        """(B,) `H_surv` (eq:conditioned-h2)."""
        return (1 - self.bc_surviving).sqrt()

    @cached_property
    def _surviving(self) -> Surviving:
        with torch.inference_mode(False), torch.no_grad():
            return self.meeting.surviving()

    @cached_property
    def _given_survival(self) -> tuple[Tensor, Tensor, Tensor]:
        """`α_A`, `α_B`, `β` at the input given survival, float64."""
        if self.conditioning == "kernel":
            s = self._surviving
            return s.alpha_a.double().plain(), s.alpha_b.double().plain(), s.beta.double().plain()
        a, b = self._alpha
        z_a, z_b = (m.layout.sum(m.value) for m in (a, b))
        # powers of two cancel before anything is rounded to 0
        shift = self._beta.exponent - (a.exponent + b.exponent) / 2
        beta = Mass(self._beta.value.double(), shift, self._beta.layout).plain()
        spread = a.layout.spread
        return (
            a.value.double() / spread(z_a, a.value),
            b.value.double() / spread(z_b, b.value),
            beta / spread((z_a * z_b).sqrt(), beta),
        )

    # ---------------------------------------------------------------- maps

    @property
    def disagreement(self) -> Tensor:
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

    def map(
        self, kind: Literal["trajectory", "marginal", "fraction"] = "trajectory", conditioned: bool = False
    ) -> Tensor:
        """Like x, float64: where the plays disagree, if `conditioned` then among surviving trajectories only.

        `"trajectory"` is `h²` (eq:per-pixel-h2), which sums to `H²` less what † and constants hold; `"marginal"` its
        lower bound from the marginals alone (eq:marginal-h2); `"fraction"` is `h²` over the mass (eq:fraction-h2).
        """
        if kind not in KINDS:
            raise KeywordError(f"kind={kind!r} is out of range: it must be one of {', '.join(map(repr, KINDS))}.")
        if kind == "marginal":
            return self._marginal_map(conditioned)
        if conditioned:
            alpha_a, alpha_b, beta = self._given_survival
        else:
            alpha_a, alpha_b = (m.double().plain() for m in self._alpha)
            beta = self._beta.double().plain()
        mass = (alpha_a + alpha_b) / 2
        squared = (mass - beta).clamp(min=0)
        return squared if kind == "trajectory" else torch.where(mass > 0, squared / mass, 0).clamp(max=1)

    def _marginal_map(self, conditioned: bool) -> Tensor:
        """Per tag, then summed."""
        total = torch.zeros_like(self.a.x, dtype=torch.float64)
        for a, b in zip(self._tagged[0], self._tagged[1], strict=True):
            if conditioned:
                logs = self.log_survival_a / math.log(2), self.log_survival_b / math.log(2)
                a, b = (Mass(m.value, m.exponent - log, m.layout) for m, log in zip((a, b), logs, strict=True))
            p, q = a.double().plain(), b.double().plain()
            total += (p.sqrt() - q.sqrt()).square() / 2
        return total

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
    """Walk mass of each player at the input."""
    output, source = play.network.output, play.network.input
    zeros = torch.zeros(len(play.value), dtype=torch.float64, device=play.value.device)
    masses: dict[Node, tuple[Mass, Mass]] = {}
    root = play.root()
    masses[output] = Mass(root, zeros, output.layout), Mass(torch.zeros_like(root), zeros, output.layout)
    for node in reversed(play.network.nodes):
        if node not in masses or isinstance(node, Input):
            continue
        plus, minus = (m.normalised() for m in masses.pop(node))
        common = torch.maximum(plus.exponent, minus.exponent)
        pair = [m.times((m.exponent - common).clamp(min=-1000)) for m in (plus, minus)]
        step = play.kernel(node)
        for operand, moved in zip(step.carriers or node.carriers, pull_tagged(step, *pair), strict=True):
            arrived = [Mass(m, common, operand.layout) for m in moved]
            if operand in masses:
                arrived = [m.plus(n) for m, n in zip(masses[operand], arrived, strict=True)]
            masses[operand] = arrived[0], arrived[1]
    return masses[source]


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
    from backplay.games.play import Play

    for play in (play_a, play_b):
        if not isinstance(play, Play):
            raise InputTypeError(f"hellinger takes two plays, got {type(play).__name__}; solve one with game.play(x).")
    if conditioning not in ("post-hoc", "kernel"):
        raise KeywordError(f"conditioning={conditioning!r} is out of range: it must be one of 'post-hoc', 'kernel'.")
    if invariant not in (None, "permutation"):
        raise KeywordError(f"invariant={invariant!r} is out of range: it must be None or 'permutation'.")
    check_comparable(play_a, play_b)
    if invariant is None:
        return Hellinger(play_a, play_b, conditioning)
    from backplay.trajectory.permutation import candidates

    found = [Hellinger(play_a, candidate, conditioning) for candidate in candidates(play_a, play_b)]
    return min(found, key=lambda h: float(h.distance.mean()))


@dataclass(frozen=True)
class HellingerMatrix:
    """All pairs: tensors of shape (rows, columns), with the batch as last dimension if plays hold several samples."""

    distance: Tensor
    bc: Tensor
    surviving: Tensor
    cemetery_overlap: Tensor


def hellinger_matrix(plays_a: Sequence[Play], plays_b: Sequence[Play]) -> HellingerMatrix:
    """Compare every play of one list with every play of another; one pair's kernels are held at a time.

    >>> bp.hellinger_matrix([game.play(x) for x in images], [game.play(y) for y in others]).distance
    """
    if not plays_a or not plays_b:
        raise InputError("hellinger_matrix needs at least one play on each side.")
    names = ("distance", "bc", "surviving", "cemetery_overlap")
    columns: dict[str, list[Tensor]] = {name: [] for name in names}
    for a in plays_a:
        for b in plays_b:
            found = hellinger(a, b)
            for name in names:
                columns[name].append(getattr(found, name))
    shape = (len(plays_a), len(plays_b), -1)
    tensors = {name: torch.stack(values).view(shape) for name, values in columns.items()}
    return HellingerMatrix(**{k: t[..., 0] if t.shape[-1] == 1 else t for k, t in tensors.items()})


def _shown(values: Tensor) -> str:
    return ", ".join(f"{v:.4f}" for v in values.tolist())
