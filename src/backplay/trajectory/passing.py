"""Trajectories through chosen states, drawn without one in vain however few of all pass there (S26c, S30, S32)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from backplay.entry import entries
from backplay.errors import InputError, list_words
from backplay.kernels.kernel import WALK_DIFFERENCE
from backplay.network import Node
from backplay.network.mass import Mass
from backplay.network.nodes import Input
from backplay.trajectory.sampling import Trajectories, draw, nowhere
from backplay.trajectory.survival import root_given_survival
from backplay.trajectory.through import Ahead, PassingPass, joint, log_total


@entries
@dataclass(kw_only=True)
class PassingTrajectories(Trajectories):
    """Trajectories that all pass chosen states; `share` is the share of such walks that reach the input."""

    walk: PassingPass = field(repr=False)
    ahead: Ahead = field(repr=False)  # at each state, the probability of passing the states still due

    def __repr__(self) -> str:
        names = " and then ".join(repr(n.name) for n in self.walk.itinerary.order)
        return f"{super().__repr__()[:-1]}; all pass chosen states of {names})"

    @property
    def log_share(self) -> Tensor:
        """(B,) the logarithm of the share of the walks through the chosen states that reach the input."""
        arrived = [m for n, m in self.walk.standing.items() if isinstance(n, Input)]
        like = self.play.value
        return log_total(arrived, like) - log_total(self.walk.there, like)

    def expected(self, name: str | Node = "input") -> Tensor:
        """What `frequencies` tend to, float64: the sub-play's marginal among those walks that were drawn."""
        node = self._node(name)
        mass = joint(self.walk, self.ahead, node)
        log = log_total(self.walk.there, self.play.value) + (self.log_share if self.arriving else 0.0)
        return Mass(mass.value.double(), mass.exponent - log / math.log(2), node.layout).plain()


def sample_passing(walk: PassingPass, n: int, seed: int, arriving: bool) -> PassingTrajectories:
    """`n` trajectories of each sample, drawn from the walk given that it passes (eq:conditioned-kernel)."""
    play = walk.itinerary.play
    ahead = Ahead(walk.itinerary, arriving)
    walks = PassingTrajectories(play, n, nowhere(play, n), arriving, walk=walk, ahead=ahead)
    _check(log_total(walk.there, play.value), "passes the chosen states")
    if arriving:
        _check(walks.log_share, "passes the chosen states and reaches the input")
    root = play.root(WALK_DIFFERENCE)
    first = root_given_survival(play, ahead.at(play.start)).copysign(root)
    return draw(walks, first, ahead.kernel, seed)


def _check(log_share: Tensor, what: str) -> None:
    never = (log_share == -math.inf).nonzero()[:, 0].tolist()
    if never:
        raise InputError(
            f"no walk of samples {list_words(never)} {what}, so there is none to draw;\n"
            "choose states that play.marginal(node) shows to be visited."
        )
