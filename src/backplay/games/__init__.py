"""Which kernel each node gets, and the game solved on an input."""

from backplay.games.play import Occupation, Play
from backplay.games.routing import RoutingGame
from backplay.games.stopping import StoppingGame

__all__ = ["Occupation", "Play", "RoutingGame", "StoppingGame"]
