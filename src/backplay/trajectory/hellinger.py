"""`bp.hellinger`: how far apart two plays walk, and at which pixels (app:path-divergence, S27-S31)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from backplay.entry import entries, entry
from backplay.errors import KeywordError, list_words
from backplay.kernels.kernel import WALK
from backplay.network.mass import Mass
from backplay.pictured import Pictured
from backplay.trajectory.comparable import check_comparable, check_play
from backplay.trajectory.divergences import relative_entropy
from backplay.trajectory.gates import GateShares, gate_shares
from backplay.trajectory.overlap import Growth, Surviving, TwoPlays, prefixes
from backplay.trajectory.passes import Passed, arrived, by_input, joined
from backplay.trajectory.tags import tagged_marginals

if TYPE_CHECKING:
    from backplay.games.play import Play

KINDS = ("trajectory", "marginal", "fraction")


@dataclass(frozen=True)
class Ends:
    """Where a walk, or the overlap of two, has come to: the input (with its scale), † and constants (B,)."""

    alive: Mass
    cemetery: Tensor
    constant: Tensor

    @staticmethod
    def of(passed: Passed, play: Play) -> Ends:
        """What a walk, or an overlap that was carried through A's network, has come to."""
        return Ends(arrived(passed, play), passed.losses.cemetery.clamp(max=1), passed.losses.constant)

    def total(self) -> Tensor:
        """(B,) all of it."""
        return self.alive.total() + self.constant + self.cemetery

    @staticmethod
    def joined(parts: Sequence[Ends]) -> Ends:
        """The ends of several batches, one behind the other."""
        ends = [torch.cat(tensors) for tensors in zip(*((p.cemetery, p.constant) for p in parts), strict=True)]
        return Ends(joined([p.alive for p in parts]), ends[0], ends[1])


@entries
class Comparison:
    """The trajectory laws of two plays compared; one number for each pair of samples, always float64.

    A play compared with itself overlaps in its own walk: give `both` as that walk, and the distance is 0 because it is
    the same play, however a processor rounds (`√(t·t)` is `t` in IEEE arithmetic).
    """

    def __init__(self, a: Ends, b: Ends, both: Ends) -> None:
        self._a, self._b, self._both = a, b, both
        # passes round: dividing by the masses that both walks really carried takes their roundings back out
        self._size = (a.total() * b.total()).sqrt()

    @property
    def cemetery_overlap(self) -> Tensor:
        """(B,) `β(†)`."""
        return self._both.cemetery

    @property
    def constant_overlap(self) -> Tensor:
        """(B,) `β` of the constant elements (S26)."""
        return self._both.constant

    @property
    def bc(self) -> Tensor:
        """(B,) Bhattacharyya coefficient of the trajectory laws (eq:bc-def)."""
        return (self._both.total() / self._size).clamp(max=1)

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
        mass = (self._a, self._b)[side].alive
        return mass.layout.sum(mass.value).log() + mass.log_scale

    @property
    def bc_surviving(self) -> Tensor:
        """(B,) `BC_ord / √(Z_A Z_B)` (eq:ordinary-bc, eq:conditioned-bc-posthoc); NaN where a play never survives."""
        a, b, both = (part.flatten(1).sum(1) for part in self._given_survival)
        return (both / (a * b).sqrt()).clamp(max=1)

    @property
    def surviving(self) -> Tensor:
        """(B,) `H_surv` (eq:conditioned-h2)."""
        return (1 - self.bc_surviving).sqrt()

    @cached_property
    def _given_survival(self) -> tuple[Tensor, Tensor, Tensor]:
        """`α_A`, `α_B`, `β` at the input given survival, float64."""
        return self._normalised()

    def _normalised(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same by one normalisation of what arrived (eq:conditioned-bc-posthoc)."""
        a, b, both = self._a.alive, self._b.alive, self._both.alive
        z_a, z_b = (m.layout.sum(m.value) for m in (a, b))
        # powers of two cancel before anything is rounded to 0
        shift = both.exponent - (a.exponent + b.exponent) / 2
        beta = Mass(both.value.double(), shift, both.layout).plain()
        spread = a.layout.spread
        return (
            a.value.double() / spread(z_a, a.value),
            b.value.double() / spread(z_b, b.value),
            beta / spread((z_a * z_b).sqrt(), beta),
        )


@entries
class Hellinger(Pictured, Comparison):
    """The trajectory laws of two plays compared; one number for each pair of samples, always float64.

    With `conditioning="post-hoc"` the law given survival comes from one pass and a normalisation
    (eq:conditioned-bc-posthoc), with `"kernel"` from Doob-transformed kernels (eq:conditioned-geom-kernel).
    `growth` is `by_layer` taken apart into ordinary overlap, † and constants (rem:adf-cemetery-floor).
    `plays` are the pairs whose walks are compared, batch behind batch: A and B as they are, unless each sample of B
    was renamed in its own way (S33).
    """

    def __init__(
        self, a: Play, b: Play, conditioning: str = "post-hoc", plays: Sequence[TwoPlays] | None = None
    ) -> None:
        self.a, self.b, self.conditioning = a, b, conditioning
        self.plays = [TwoPlays(a, b)] if plays is None else plays
        ends, curves = zip(*(_compared(p) for p in self.plays), strict=True)
        own_a, own_b, both = (Ends.joined(parts) for parts in zip(*ends, strict=True))
        super().__init__(own_a, own_b, both)
        self.growth: list[Growth] = [Growth.joined(parts, self._size) for parts in zip(*curves, strict=True)]

    def __repr__(self) -> str:
        return f"Hellinger(distance {_shown(self.distance)}, surviving {_shown(self.surviving)})"

    # ---------------------------------------------------------------- layer by layer

    @property
    def by_layer(self) -> list[tuple[str, Tensor]]:
        """For each affine node in the order of the walk, its name and (B,) the prefix `BC` once it is passed (S31)."""
        return [(layer.name, layer.bc) for layer in self.growth]

    @cached_property
    def gates(self) -> list[GateShares]:
        """For each gate in the order of the walk, the shares `δ`, `p`, `q` on which the plays differ (S35)."""
        return [GateShares.joined(parts) for parts in zip(*map(gate_shares, self.plays), strict=True)]

    # ---------------------------------------------------------------- given survival

    def _log_survival(self, side: int) -> Tensor:
        if self.conditioning == "kernel":
            return (self._surviving.log2_b if side else self._surviving.log2_a) * math.log(2)
        return super()._log_survival(side)

    @cached_property
    def _surviving(self) -> Surviving:
        return Surviving.joined([p.surviving() for p in self.plays])

    @cached_property
    def _given_survival(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.conditioning == "kernel":
            s = self._surviving
            return s.alpha_a.double().plain(), s.alpha_b.double().plain(), s.beta.double().plain()
        return self._normalised()

    # ---------------------------------------------------------------- maps

    @property
    def disagreement(self) -> Any:
        """Like x: `h²`, tags summed (thm:per-pixel, eq:per-pixel-h2)."""
        return self.map()

    @property
    def cemetery_disagreement(self) -> Tensor:
        """(B,) `h²(†)`."""
        return ((self._a.cemetery + self._b.cemetery) / 2 - self.cemetery_overlap).clamp(min=0)

    @property
    def constant_disagreement(self) -> Tensor:
        """(B,) `h²` of the constant elements."""
        return ((self._a.constant + self._b.constant) / 2 - self.constant_overlap).clamp(min=0)

    def map(self, kind: Literal["trajectory", "marginal", "fraction"] = "trajectory", conditioned: bool = False) -> Any:
        """Like x, float64: where the plays disagree, if `conditioned` then among surviving trajectories only.

        `"trajectory"` is `h²` (eq:per-pixel-h2, given survival eq:conditioned-per-pixel-h2), which sums to `H²` less
        what † and constants hold (eq:per-pixel-sum, eq:ordinary-h2); `"marginal"` its lower bound from the marginals
        alone (eq:marginal-h2, eq:path-vs-marginal); `"fraction"` is `h²` over the mass (eq:fraction-h2).
        """
        if kind not in KINDS:
            raise KeywordError(f"kind={kind!r} is out of range: it must be one of {', '.join(map(repr, KINDS))}.")
        return self.a.inputs.pack(by_input(self._map(kind, conditioned), self.a))

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
        """Per tag, then summed: the tags are players or streams (eq:rg-T-pixel)."""
        parts: list[Tensor] = []
        for a, b in zip(self._tagged[0], self._tagged[1], strict=True):
            if conditioned:
                logs = self.log_survival_a / math.log(2), self.log_survival_b / math.log(2)
                a, b = (Mass(m.value, m.exponent - log, m.layout) for m, log in zip((a, b), logs, strict=True))
            p, q = a.double().plain(), b.double().plain()
            parts.append((p.sqrt() - q.sqrt()).square() / 2)
        return torch.stack(parts).sum(0)

    @cached_property
    def _tagged(self) -> tuple[list[Mass], list[Mass]]:
        """Of both plays, the walk mass at the inputs for each tag."""
        sides = [[p.a for p in self.plays], [p.b for p in self.plays]]
        a, b = (zip(*(tagged_marginals(p) for p in side), strict=True) for side in sides)
        return [joined(masses) for masses in a], [joined(masses) for masses in b]

    # ---------------------------------------------------------------- other distances

    @property
    def marginal_distance(self) -> Tensor:
        """(B,) Hellinger distance of where the walks end, whatever their way there: never more than `distance`.

        It is what maps can tell of two plays, which are shadows of the trajectories (sec:lmp-rand-shadows).
        """
        squared = self._marginal_map(conditioned=False).flatten(1).sum(1)
        for a, b in ((self._a.cemetery, self._b.cemetery), (self._a.constant, self._b.constant)):
            squared = squared + (a.sqrt() - b.sqrt()).square() / 2
        return squared.clamp(max=1).sqrt()

    @property
    def total_variation(self) -> tuple[Tensor, Tensor]:
        """(B,) each: the least and the most that `½ Σ |Π_A − Π_B|` can be, `H²` and `√(1 − BC²) ≤ √2·H`.

        sec:lmp-hellinger-distance.
        """
        return 1 - self.bc, (1 - self.bc.square()).sqrt()

    @cached_property
    def kl(self) -> Tensor:
        """(B,) `KL(Π_A ‖ Π_B)` in nats, at least `2 H²`; ∞ where a walk of A cannot be one of B.

        For finite values, gates that shut softly and an outside option are needed: a ReLU that is open in A and shut
        in B is enough for ∞.
        """
        return self._relative_entropy([(p.a, p.b) for p in self.plays])

    @cached_property
    def jeffreys(self) -> Tensor:
        """(B,) Jeffreys divergence `KL(Π_A ‖ Π_B) + KL(Π_B ‖ Π_A)` in nats."""
        return self.kl + self._relative_entropy([(p.b, p.a) for p in self.plays])

    def _relative_entropy(self, pairs: Sequence[tuple[Play, Play]]) -> Tensor:
        return torch.cat([relative_entropy(TwoPlays(a, b)) for a, b in pairs])

    # ---------------------------------------------------------------- the other route

    def bc_forward(self) -> Tensor:
        """(B,) BC by the forward pass, which must agree with `bc` (eq:hellinger-cross-identity)."""
        return torch.cat([p.forward()[0] for p in self.plays]) / self._size


def _compared(plays: TwoPlays) -> tuple[tuple[Ends, Ends, Ends], list[Growth]]:
    """The ends of both walks and of their overlap, and the overlap after each layer; a play overlaps with itself."""
    a, b = plays.a, plays.b
    own = [Ends.of(p.passed(WALK), p) for p in (a, b)]
    overlap, curve = prefixes(plays)
    if a is b:
        return (own[0], own[0], own[0]), [replace(layer, bc=own[0].total()) for layer in curve]
    return (own[0], own[1], Ends.of(overlap, a)), curve


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
    return INVARIANT[invariant](play_a, play_b, conditioning)


# by the keyword `invariant`: the distance up to a symmetry of networks; `backplay.symmetry` adds "permutation"
INVARIANT: dict[str, Callable[[Play, Play, str], Hellinger]] = {}


def _shown(values: Tensor) -> str:
    return list_words([f"{v:.4f}" for v in values.tolist()])
