"""Which kernel each node gets, and the game solved on an input."""

from backplay.games.occupation import Occupation
from backplay.games.play import Play
from backplay.games.presets import PRESETS, Preset, preset
from backplay.games.reynolds import Reynolds
from backplay.games.routing import RoutingGame
from backplay.games.stopping import StoppingGame
from backplay.games.subplay import SubPlay
from backplay.games.sweep import sweep

__all__ = [
    "PRESETS",
    "Occupation",
    "Play",
    "Preset",
    "Reynolds",
    "RoutingGame",
    "StoppingGame",
    "SubPlay",
    "preset",
    "sweep",
]
