"""Which picture belongs to which object: `.plot()` of a play, of trajectories, of a distance, and so on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure

from backplay.circuits.circuit import Circuit
from backplay.circuits.concepts import Concepts
from backplay.errors import InputTypeError, KeywordError, instead
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

_PICTURES: dict[type, Callable[..., Figure]] = {
    Play: summary,
    SubPlay: part,
    Circuit: circuit,
    Concepts: concepts,
    Trajectories: walks,
    Hellinger: distance,
    HellingerMatrix: clusters,
    Certificate: certificate,
    Sweep: sweep,
    Moments: moments,
    Robustness: robustness,
}


def plot(drawn: Any, **options: Any) -> Figure:
    """The picture of an object that the package makes: a play or a part of one, walks, a distance, a circuit, …"""
    draw = next((draw for kind, draw in _PICTURES.items() if isinstance(drawn, kind)), None)
    if draw is None:
        raise InputTypeError(f"plot has no picture of a {type(drawn).__name__}; bp.view.heatmap draws tensors.")
    check_options(drawn, options, list(inspect.signature(draw).parameters)[1:])  # the first one is what is drawn
    return draw(drawn, **options)


def check_options(drawn: Any, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that the picture of an object does not have."""
    for name in options:
        if name not in known:
            raise KeywordError(
                f"unknown option {name!r} of the picture of a {type(drawn).__name__}{instead(name, known, 'it takes')}."
            )
