"""Which kernel each node gets, and the game solved on an input."""

from backplay.games.decompose import decompose
from backplay.games.moments import moments
from backplay.games.play import Occupation, Play
from backplay.games.routing import RoutingGame
from backplay.games.stopping import StoppingGame
from backplay.values.decomposition import Decomposition

__all__ = ["Decomposition", "Occupation", "Play", "RoutingGame", "StoppingGame", "decompose", "moments"]
