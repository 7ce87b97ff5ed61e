"""backplay explains neural networks by playing them backward."""

from backplay.errors import BackplayError
from backplay.games import (
    PRESETS as presets,
)
from backplay.games import (
    Decomposition,
    Occupation,
    Play,
    Preset,
    Reynolds,
    RoutingGame,
    StoppingGame,
    decompose,
    moments,
    preset,
    sweep,
)
from backplay.network import Network, Node, capture

__version__ = "0.1.0"

__all__ = [
    "BackplayError",
    "Decomposition",
    "Network",
    "Node",
    "Occupation",
    "Play",
    "Preset",
    "Reynolds",
    "RoutingGame",
    "StoppingGame",
    "capture",
    "decompose",
    "moments",
    "preset",
    "presets",
    "sweep",
]
