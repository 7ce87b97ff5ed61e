"""backplay explains neural networks by playing them backward."""

from backplay import text, transforms, view
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
from backplay.methods import Explainer, MethodInfo, explain, methods
from backplay.network import Network, Node, capture
from backplay.trajectory import bounds
from backplay.trajectory.certify import Certificate, certify
from backplay.trajectory.hellinger import Hellinger, hellinger
from backplay.trajectory.matrix import HellingerMatrix, hellinger_matrix

__version__ = "0.1.0"

__all__ = [
    "BackplayError",
    "Certificate",
    "Decomposition",
    "Explainer",
    "Hellinger",
    "HellingerMatrix",
    "MethodInfo",
    "Network",
    "Node",
    "Occupation",
    "Play",
    "Preset",
    "Reynolds",
    "RoutingGame",
    "StoppingGame",
    "bounds",
    "capture",
    "certify",
    "decompose",
    "explain",
    "hellinger",
    "hellinger_matrix",
    "methods",
    "moments",
    "preset",
    "presets",
    "sweep",
    "text",
    "transforms",
    "view",
]
