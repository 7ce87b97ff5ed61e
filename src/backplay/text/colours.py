"""Colours of scores: zero is white, negative is blue, positive is red, and the text on them can be read.

The ramp is ColorBrewer's RdBu (Brewer, 2003): blue against red is told apart by readers of every kind of colour vision,
and both ends get darker alike. matplotlib's `RdBu_r` runs through the same colours.
"""

from __future__ import annotations

_RAMP = ("053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f").split()
_ANCHORS = [tuple(int(colour[k : k + 2], 16) for k in (0, 2, 4)) for colour in _RAMP]

Colour = tuple[int, int, int]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


def colour(share: float) -> Colour:
    """The colour of a score as a share of the largest, −1 to 1."""
    place = (min(1.0, max(-1.0, share)) + 1) / 2 * (len(_ANCHORS) - 1)
    left = min(int(place), len(_ANCHORS) - 2)
    weight = place - left
    mixed = [round((1 - weight) * a + weight * b) for a, b in zip(_ANCHORS[left], _ANCHORS[left + 1], strict=True)]
    return mixed[0], mixed[1], mixed[2]


def ink(background: Colour) -> Colour:
    """Black or white, whichever stands out more."""
    return max((BLACK, WHITE), key=lambda text: contrast(text, background))


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2, 1 to 21; from 4.5 on a text is easy to read."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def css(colour: Colour) -> str:
    """`#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
