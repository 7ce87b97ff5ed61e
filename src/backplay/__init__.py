"""backplay explains neural networks by playing them backward."""

import importlib
from typing import TYPE_CHECKING, Any

# first of all: what follows asks torch for names that an older one does not have
from backplay import supported  # noqa: F401  # pyright: ignore[reportUnusedImport]

# isort: split
from backplay.circuits import Circuit, Concepts, circuit, concepts
from backplay.errors import BackplayError
from backplay.games import (
    PRESETS as presets,
)
from backplay.games import (
    Occupation,
    Play,
    Preset,
    Reynolds,
    RoutingGame,
    StoppingGame,
    SubPlay,
    preset,
    sweep,
)
from backplay.games.robustness import Robustness, robustness
from backplay.methods import Explainer, MethodInfo, explain, methods
from backplay.methods import rules as lrp
from backplay.network import Network, Node, capture
from backplay.symmetry import transforms
from backplay.trajectory import bounds
from backplay.trajectory.certify import Certificate, certify
from backplay.trajectory.hellinger import Hellinger, hellinger
from backplay.trajectory.matrix import HellingerMatrix, hellinger_matrix
from backplay.values.decomposition import Decomposition, decompose
from backplay.values.moments import moments

if TYPE_CHECKING:
    from backplay import sanity, text, view
    from backplay.sanity import randomise

__version__ = "0.1.0"

__all__ = [
    "BackplayError",
    "Certificate",
    "Circuit",
    "Concepts",
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
    "Robustness",
    "RoutingGame",
    "StoppingGame",
    "SubPlay",
    "bounds",
    "capture",
    "certify",
    "circuit",
    "concepts",
    "decompose",
    "explain",
    "hellinger",
    "hellinger_matrix",
    "lrp",
    "methods",
    "moments",
    "preset",
    "presets",
    "randomise",
    "robustness",
    "sanity",
    "sweep",
    "text",
    "transforms",
    "view",
]


def __getattr__(name: str) -> Any:
    """Rooms around the core are imported when somebody enters them: `bp.view` brings matplotlib along, for one."""
    if name in ("sanity", "text", "view"):
        return importlib.import_module(f"backplay.{name}")
    if name == "randomise":
        return importlib.import_module("backplay.sanity").randomise
    raise AttributeError(f"module 'backplay' has no attribute {name!r}")
