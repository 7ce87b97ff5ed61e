"""A part of a play: the walks that pass chosen states (S26c)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from backplay.entry import entries
from backplay.errors import NEVER_WALKED, InputError, KeywordError
from backplay.games.batches import check_finite
from backplay.games.occupation import Occupation
from backplay.kernels.kernel import DIFFERENCE, TOTAL, WALK, Measure
from backplay.keywords import SEED, Number
from backplay.network import Node
from backplay.network.groups import check_by, find_grouped, read_states
from backplay.network.mass import Mass
from backplay.pictured import Pictured
from backplay.trajectory.passes import no_mass
from backplay.trajectory.passing import PassingTrajectories, sample_passing
from backplay.trajectory.through import Ahead, Itinerary, PassingPass, joint, log_total, pull_through

if TYPE_CHECKING:
    from backplay.games.play import Play


@entries
class SubPlay(Pictured):
    """The walks of a play that stand in chosen states of one node, or of several in turn.

    Measures are those of the whole walk, so that sub-plays of a partition add up to it: `marginal` is the probability
    of visiting an element and of passing the chosen states, before or after.
    """

    def __init__(self, play: Play, masks: Mapping[Node, Tensor]) -> None:
        self.play, self.masks = play, dict(masks)
        self._walks: dict[Measure, PassingPass] = {}
        self._maps: list[Tensor] | None = None

    def __repr__(self) -> str:
        chosen = [f"{int((m != 0).sum())} of {m.numel()} at {n.name!r}" for n, m in self.masks.items()]
        return f"SubPlay({self.play!r}, through {', then '.join(chosen)})"

    def through(self, name: str | Node, states: Any, by: str = "channel") -> SubPlay:
        """Those of the walks that also stand in chosen states of another node, wherever on their way it lies."""
        by = check_by(by)
        node = find_grouped(self.play.network, name, by)
        if node not in self.play.network.reached:
            raise InputError(f"{name!r} is {NEVER_WALKED}.")
        mask = read_states(self.play.network, node, states, by, self.play.solved)
        mask = self.masks[node] * mask if node in self.masks else mask
        return SubPlay(self.play, self.masks | {node: mask})

    @property
    def itinerary(self) -> Itinerary:
        """The play with the conditions on its walks."""
        self.play.check_can_remake()
        return Itinerary(self.play, self.masks)

    def passed(self, measure: Measure) -> PassingPass:
        """The pass of one measure through the chosen states, run once."""
        if measure not in self._walks:
            self.play.passed(measure)
            self._walks[measure] = pull_through(self.itinerary, None, measure)
        return self._walks[measure]

    @property
    def share(self) -> Tensor:
        """(B,) the share of all walks that pass the chosen states, float64."""
        return self.log_share.exp()

    @property
    def log_share(self) -> Tensor:
        """(B,) its natural logarithm, right even where the share is below any float."""
        return log_total(self.passed(WALK).there, self.play.value)

    def maps(self) -> list[Tensor]:
        """The map of each explained input, in its shape."""
        if self._maps is None:
            play, itinerary = self.play, self.itinerary
            root = play.game.map_root(play.aim, play.solved.logits)
            walk = self._walks.get(DIFFERENCE) if root is None else None
            walk = walk or pull_through(itinerary, root, DIFFERENCE, keep=False)
            arrived = [walk.standing.get(n) or no_mass(play, n) for n in play.network.inputs]
            pairs = zip(arrived, play.network.inputs, strict=True)
            self._maps = [play.game.finish(mass.plain(), n, play) for mass, n in pairs]
        return self._maps

    def attribution(self) -> Any:
        """The part of the map that comes through the chosen states."""
        return self.play.inputs.pack(check_finite(self.maps()))

    def mass(self, name: str | Node, measure: Measure) -> Mass:
        """Mass of a measure at the output of a node or module, of the walks that pass the chosen states."""
        node, walk = self.play.network.find(name), self.passed(measure)
        return joint(walk, self._ahead, node)

    @cached_property
    def _ahead(self) -> Ahead:
        return Ahead(self.itinerary)

    def marginal(self, name: str | Node = "input", log: bool = False) -> Tensor:
        """Probability that the walk passes the chosen states and visits each element; its logarithm with `log`."""
        mass = self.mass(name, WALK)
        return mass.log() if log else mass.plain()

    def occupation(self, name: str | Node) -> Occupation:
        """Both players' discounted visits of these walks at the output of a node or module."""
        return Occupation.of(self.mass(name, TOTAL), self.mass(name, DIFFERENCE))

    @property
    def cemetery(self) -> Tensor:
        """(B,) probability of passing the chosen states and of ending in †."""
        return self.passed(WALK).passed.losses.cemetery.clamp(max=1)

    @property
    def constant(self) -> Tensor:
        """(B,) probability of passing the chosen states and of ending in constant elements (S26)."""
        return self.passed(WALK).passed.losses.constant

    def sample(self, n: int, seed: int = 0, arriving: bool = False) -> PassingTrajectories:
        """`n` trajectories for each sample, all of which pass the chosen states (S30, S32).

        With `arriving` all of them also reach the input.
        """
        n, seed = Number(1, 1).check("n", n), SEED.check("seed", seed)
        if not isinstance(arriving, bool):
            raise KeywordError(f"arriving={arriving!r} is out of range: it must be True or False.")
        return sample_passing(self.passed(WALK), n, seed, arriving)
