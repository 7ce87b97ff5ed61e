"""The ten outlines of the zoo's pictures, each as a signed distance: below 0 inside, above 0 outside.

Every outline lies in the unit disc. At the pixels, the arithmetic is +, −, ×, ÷, √, min and max alone, which IEEE 754
rounds alike on every machine.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating[Any]]  # a value at each pixel; float32 throughout
Outline = Callable[[Field, Field], Field]


def _length(u: Field, v: Field) -> Field:
    return np.sqrt(u * u + v * v)


def _along(u: Field, v: Field, angle: float) -> Field:
    """The coordinate in direction `angle`."""
    return u * math.cos(angle) + v * math.sin(angle)


def ball(u: Field, v: Field) -> Field:
    return _length(u, v) - 0.9


def ring(u: Field, v: Field) -> Field:
    return np.abs(_length(u, v) - 0.74) - 0.22


def triangle(u: Field, v: Field) -> Field:
    sides = [_along(u, v, k * math.tau / 3) for k in range(3)]
    return np.maximum(np.maximum(sides[0], sides[1]), sides[2]) - 0.5


def box(u: Field, v: Field) -> Field:
    return np.maximum(np.abs(u), np.abs(v)) - 0.69


def star(u: Field, v: Field) -> Field:
    """Five points: the plane is folded into one tenth of it, where the outline is a straight line."""
    v = np.abs(v)
    for angle in (math.tau / 5, math.tau / 10):  # mirrors between neighbouring points
        beyond = 2 * np.maximum(_along(u, v, angle + math.pi / 2), 0)
        u = u - beyond * math.cos(angle + math.pi / 2)
        v = v - beyond * math.sin(angle + math.pi / 2)
        v = np.abs(v)
    dent = (0.42 * math.cos(math.tau / 10), 0.42 * math.sin(math.tau / 10))
    normal = math.atan2(1 - dent[0], dent[1])
    return _along(u, v, normal) - math.cos(normal)


def cross(u: Field, v: Field) -> Field:
    u, v = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(u - 0.95, v - 0.27), np.maximum(u - 0.27, v - 0.95))


def moon(u: Field, v: Field) -> Field:
    return np.maximum(_length(u, v) - 0.95, 0.78 - _length(u - 0.5, v))


def heart(u: Field, v: Field) -> Field:
    """Two discs with a notch between them, and their tangents down to a tip."""
    u = np.abs(u)
    lobes = _length(u - 0.42, v - 0.35) - 0.42
    tip = np.maximum(_along(u, v + 0.95, -2 * math.atan2(0.42, 1.3)), v - 0.1)
    middle = np.maximum(u - 0.42, np.abs(v - 0.1) - 0.25)
    return np.minimum(np.minimum(lobes, tip), middle)


def flower(u: Field, v: Field) -> Field:
    """Five petals around a disc."""
    nearest = _length(u, v) - 0.12
    for k in range(5):
        angle = k * math.tau / 5
        nearest = np.minimum(nearest, _length(u - 0.66 * math.cos(angle), v - 0.66 * math.sin(angle)))
    return nearest - 0.31


def arrow(u: Field, v: Field) -> Field:
    """Pointing along u: a triangular head on a shaft."""
    v = np.abs(v)
    normal = math.atan2(0.95, 0.75)  # of the head's side, from (0.95, 0) to (0, 0.75)
    head = np.maximum(_along(u, v, normal) - 0.95 * math.cos(normal), -u)
    shaft = np.maximum(np.maximum(v - 0.22, u - 0.1), -0.95 - u)
    return np.minimum(head, shaft)


OUTLINES: dict[str, Outline] = {
    f.__name__: f for f in (ball, ring, triangle, box, star, cross, moon, heart, flower, arrow)
}
CLASSES = tuple(OUTLINES)


def outline(kinds: NDArray[np.int64], u: Field, v: Field) -> Field:
    """(n, height, width): the signed distance to the outline of each picture's kind, an index into `CLASSES`."""
    distance = np.empty_like(u)
    for kind in np.unique(kinds):
        chosen = kinds == kind
        distance[chosen] = OUTLINES[CLASSES[kind]](u[chosen], v[chosen])
    return distance
