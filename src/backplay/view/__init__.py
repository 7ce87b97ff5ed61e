"""Pictures of maps, walks and games (the `view` extra). Every function returns a matplotlib figure and opens no window.

>>> bp.view.grid(x, {"RG": rg.attribute(x), "SG": sg.attribute(x)}, model=model).savefig("maps.png", dpi=300)
"""

from backplay.errors import MissingLibraryError

try:
    import matplotlib as _matplotlib  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise MissingLibraryError("pictures need matplotlib: pip install 'backplay[view]'.") from error

from backplay.view.cascade import cascade
from backplay.view.certificate import certificate
from backplay.view.circuit import circuit
from backplay.view.clusters import clusters
from backplay.view.concepts import concepts
from backplay.view.distance import distance
from backplay.view.flow import flow
from backplay.view.game import game
from backplay.view.grid import grid
from backplay.view.heatmap import heatmap
from backplay.view.moments import moments
from backplay.view.panels import panels
from backplay.view.players import players
from backplay.view.plot import plot
from backplay.view.robustness import robustness
from backplay.view.sweep import sweep
from backplay.view.tokens import tokens
from backplay.view.walks import walks

__all__ = [
    "cascade",
    "certificate",
    "circuit",
    "clusters",
    "concepts",
    "distance",
    "flow",
    "game",
    "grid",
    "heatmap",
    "moments",
    "panels",
    "players",
    "plot",
    "robustness",
    "sweep",
    "tokens",
    "walks",
]
