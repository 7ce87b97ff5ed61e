"""Which picture belongs to which object: `.plot()` of a play, of trajectories, of a distance, and so on."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from backplay.circuits.circuit import Circuit
from backplay.circuits.concepts import Concepts
from backplay.errors import InputTypeError
from backplay.games.play import Play
from backplay.games.robustness import Robustness
from backplay.games.subplay import SubPlay
from backplay.games.sweep import Sweep
from backplay.trajectory.certify import Certificate
from backplay.trajectory.hellinger import Hellinger
from backplay.trajectory.matrix import HellingerMatrix
from backplay.trajectory.sampling import Trajectories
from backplay.values.moments import Moments
from backplay.view.certificate import certificate
from backplay.view.circuit import circuit
from backplay.view.clusters import clusters
from backplay.view.concepts import concepts
from backplay.view.distance import distance
from backplay.view.moments import moments
from backplay.view.play import part, summary
from backplay.view.robustness import robustness
from backplay.view.sweep import sweep
from backplay.view.walks import walks


def plot(drawn: Any, **options: Any) -> Figure:
    """The picture of an object that the package makes: a play or a part of one, walks, a distance, a circuit, …"""
    match drawn:
        case Play():
            return summary(drawn, **options)
        case SubPlay():
            return part(drawn, **options)
        case Circuit():
            return circuit(drawn, **options)
        case Concepts():
            return concepts(drawn, **options)
        case Trajectories():
            return walks(drawn, **options)
        case Hellinger():
            return distance(drawn, **options)
        case HellingerMatrix():
            return clusters(drawn, **options)
        case Certificate():
            return certificate(drawn, **options)
        case Sweep():
            return sweep(drawn, **options)
        case Moments():
            return moments(drawn, **options)
        case Robustness():
            return robustness(drawn, **options)
        case _:
            raise InputTypeError(f"plot has no picture of a {type(drawn).__name__}; bp.view.heatmap draws tensors.")
