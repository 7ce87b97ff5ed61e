"""Pictures drawn from a seed, with a mask of what decides the label: `images`.

A scene is one large object before a textured ground, in any colour, pattern, pose, size and light. Small objects of
other classes stand around it; some stick out of the picture. **The label is the class of the one large object**: its
radius is 20 pixels or more, it is whole and nothing lies over it; the radius of the others is 13 pixels or less.
Colour, pattern, place and light are drawn alike for all classes, so that the outline alone tells them apart.

**The spurious cue** is a checkered tile in the corner that is farthest from the object. Its colours stand for a class.
A network that learns from pictures in which the tile always matches the label need not look at the object at all.

Picture i of a split draws from numpy's PCG64, seeded with (seed, split, i), and the arithmetic is simple: the same
pictures on every machine but for the last digit, however many are asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backplay.errors import InputTypeError, KeywordError
from backplay.zoo.shapes import CLASSES, Field, outline

SIZE = 96
SPLITS = ("train", "val", "test")
CUES = (False, True, "random", "wrong")
GRIDS = ((4, 0.5), (9, 0.3), (20, 0.25), (44, 0.15))  # cells and strength of the ground's texture
CUE_SIZE = 22
WINDOW = 30  # pixels, wide enough for the largest small object
CHUNK = 50  # pictures drawn together: few enough for the processor's cache
MEAN, SPREAD = 0.5, 0.25  # of the pixels that a network sees: (colour − MEAN) / SPREAD

Split = Literal["train", "val", "test"]
Spurious = Literal["random", "wrong"] | bool


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures and what is known of them; it unpacks into the first three: `x, target, mask = images(8)`."""

    x: Tensor  # (N, 3, SIZE, SIZE) float32, as the networks take it
    target: Tensor  # (N,) int64, indices into `CLASSES`
    mask: Tensor  # (N, SIZE, SIZE) bool, true on the object
    cue: Tensor  # (N, SIZE, SIZE) bool, true on the spurious cue; all false where there is none
    cue_class: Tensor  # (N,) int64, the class that the cue stands for; −1 where there is none

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.x, self.target, self.mask))

    def __getitem__(self, k: int) -> Tensor:
        return (self.x, self.target, self.mask)[k]


def images(n: int, split: Split = "test", seed: int = 0, *, spurious: Spurious = False, start: int = 0) -> Batch:
    """Pictures `start` to `start + n − 1` of a split; the classes come in turn.

    `spurious=False` shows no cue; `True` the cue of the label; `"random"` the cue of a class drawn by lot in half of
    the pictures, none in the other half; `"wrong"` the cue of another class. Nothing else in the pictures changes.

    `x` is normalised as the networks take it: colours in [0, 1], less 0.5, over 0.25, in each channel. `picture(x)`
    gives the colours back.
    """
    _check(n, split, seed, spurious, start)
    chunks = np.array_split(np.arange(start, start + n), -(-n // CHUNK))
    parts = [_draw(chunk, split, seed, spurious) for chunk in chunks]
    return Batch(*(torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)))


def picture(x: Tensor) -> Tensor:
    """What a network sees, as colours in [0, 1] to look at; same shape as `x`."""
    return (x * SPREAD + MEAN).clamp(0, 1)


def _check(n: int, split: str, seed: int, spurious: object, start: int) -> None:
    for name, value, least in (("n", n, 1), ("seed", seed, 0), ("start", start, 0)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputTypeError(f"{name} must be a whole number, got {value!r}.")
        if value < least:
            raise KeywordError(f"{name} must be {least} or more, got {value}.")
    if split not in SPLITS:
        raise KeywordError(f"split {split!r} is unknown; give one of {', '.join(map(repr, SPLITS))}.")
    if not any(spurious is cue or (isinstance(cue, str) and spurious == cue) for cue in CUES):
        raise KeywordError(f"spurious {spurious!r} is unknown; give one of {', '.join(map(repr, CUES))}.")


class _Lots:
    """The random numbers of some pictures; each picture has a generator of its own."""

    def __init__(self, indices: NDArray[np.int64], split: str, seed: int) -> None:
        key = SPLITS.index(split)
        self.generators = [np.random.Generator(np.random.PCG64([seed, key, int(i)])) for i in indices]

    def uniform(self, low: float, high: float, *shape: int) -> Field:
        """(n, *shape), by default (n, 1, 1), in [low, high)."""
        drawn = np.stack([generator.random(shape or (1, 1), np.float32) for generator in self.generators])
        return low + (high - low) * drawn

    def below(self, count: int) -> NDArray[np.int64]:
        """(n,) whole numbers from 0 to count − 1."""
        return (self.uniform(0, count)[:, 0, 0]).astype(np.int64)


class _Objects(NamedTuple):
    """One object in each picture."""

    kinds: NDArray[np.int64]  # (n,), indices into `CLASSES`
    y: Field  # (n, 1, 1), the centre, in pixels
    x: Field
    radius: Field


def _draw(indices: NDArray[np.int64], split: str, seed: int, spurious: Spurious) -> tuple[NDArray[np.generic], ...]:
    """The fields of a `Batch` for the pictures with these indices."""
    lots = _Lots(indices, split, seed)
    target = indices % len(CLASSES)
    radius = lots.uniform(20, 31)
    y, x = (radius + 1 + lots.uniform(0, 1) * (SIZE - 2 * radius - 2) for _ in range(2))
    main = _Objects(target, y, x, radius)
    light = _direction(lots)

    canvas, colour = _ground(lots)
    for at_edge in (False, False, True):
        _distract(lots, canvas, colour, target, light, at_edge)
    shown, lot, other = _cue_choice(lots, target)
    cue_class = {False: np.full_like(target, -1), True: target, "random": np.where(shown, lot, -1), "wrong": other}
    canvas, cue = _paint_cue(canvas, main, cue_class[spurious])
    y, x = _pixels()
    canvas, body = _paint(lots, canvas, colour, main, light, (y, x), shadow=0.45)

    lit = 1 + lots.uniform(0.05, 0.3) * (light[0] * (y / SIZE - 0.5) + light[1] * (x / SIZE - 0.5))
    noise = lots.uniform(-0.04, 0.04, 3, SIZE, SIZE)
    seen = np.clip(canvas * lit[:, None] + noise, 0, 1)
    mask = body > 0.5
    return ((seen - MEAN) / SPREAD).astype(np.float32), target, mask, cue & ~mask, cue_class[spurious]


def _pixels() -> tuple[Field, Field]:
    line = np.arange(SIZE, dtype=np.float32)
    return line[:, None], line[None, :]


def _direction(lots: _Lots) -> tuple[Field, Field]:
    """(n, 1, 1) twice, a direction in the plane."""
    turn = lots.uniform(0, 2 * np.pi)
    return np.sin(turn), np.cos(turn)


def _smooth(lots: _Lots, cells: int) -> Field:
    """(n, SIZE, SIZE) in [−1, 1]: random values on a grid of cells, blended smoothly between its points."""
    grid = lots.uniform(-1, 1, cells + 1, cells + 1)
    at = np.arange(SIZE, dtype=np.float32) * (cells / SIZE)
    low = at.astype(np.int64)
    part = at - low
    blend = part * part * (3 - 2 * part)
    rows = grid[:, low] * (1 - blend)[:, None] + grid[:, low + 1] * blend[:, None]
    return rows[:, :, low] * (1 - blend) + rows[:, :, low + 1] * blend


def _ground(lots: _Lots) -> tuple[Field, Field]:
    """The textured ground (n, 3, SIZE, SIZE) between two colours, and their mean (n, 3, 1, 1)."""
    first = lots.uniform(0.1, 0.9, 3, 1, 1)
    second = np.clip(first + lots.uniform(-0.25, 0.25, 3, 1, 1), 0, 1)
    rough = lots.uniform(0.5, 1)
    blend = np.clip(0.5 + rough * sum(strength * _smooth(lots, cells) for cells, strength in GRIDS), 0, 1)[:, None]
    grain = 1 + 0.12 * _smooth(lots, 30)[:, None]
    return (first + (second - first) * blend) * grain, (first + second) / 2


def _distract(
    lots: _Lots, canvas: Field, ground: Field, target: NDArray[np.int64], light: tuple[Field, Field], at_edge: bool
) -> None:
    """Paint one small object of another class into two pictures of three; `at_edge`, half of it is out of sight."""
    kinds = (target + 1 + lots.below(len(CLASSES) - 1)) % len(CLASSES)
    radius = lots.uniform(9, 13) if at_edge else lots.uniform(6, 10)
    across, along, side = lots.uniform(0, SIZE), lots.uniform(0, SIZE), lots.below(4)[:, None, None]
    if at_edge:
        across = np.where(side < 2, 0.0, SIZE - 1.0).astype(np.float32)
        along, across = np.where(side % 2 == 0, along, across), np.where(side % 2 == 0, across, along)
    absent = lots.below(3)[:, None, None] == 0
    small = _Objects(kinds, np.where(absent, np.float32(-SIZE), across), along, radius)  # out of sight where absent

    n, around = len(target), np.arange(WINDOW)  # only the pixels around it are painted: many times faster
    y, x = (np.clip(at.astype(np.int64) - WINDOW // 2, 0, SIZE - WINDOW) for at in (small.y, small.x))
    rows, columns = y + around[:, None], x + around
    window = (np.arange(n)[:, None, None, None], np.arange(3)[:, None, None], rows[:, None], columns[:, None])
    pixels = (rows.astype(np.float32), columns.astype(np.float32))
    canvas[window] = _paint(lots, canvas[window], ground, small, light, pixels, shadow=0.0)[0]


def _paint(
    lots: _Lots,
    canvas: Field,
    ground: Field,
    objects: _Objects,
    light: tuple[Field, Field],
    pixels: tuple[Field, Field],
    shadow: float,
) -> tuple[Field, Field]:
    """The canvas, at these pixels, with one more object in each picture, and how much of each pixel it covers."""
    tilt, squash, turn = _direction(lots), lots.uniform(0.8, 1), _direction(lots)
    y, x = (pixels[0] - objects.y) / objects.radius, (pixels[1] - objects.x) / objects.radius

    def local(y: Field, x: Field) -> tuple[Field, Field]:
        """In the object's own frame: foreshortened along the tilt, then turned."""
        u, v = (tilt[1] * x + tilt[0] * y) / squash, tilt[1] * y - tilt[0] * x
        return turn[1] * u + turn[0] * v, turn[1] * v - turn[0] * u

    u, v = local(y, x)
    distance = outline(objects.kinds, u, v)
    body = np.clip(0.5 - distance * objects.radius * squash, 0, 1)
    if shadow:
        cast = outline(objects.kinds, *local(y + 0.18 * light[0], x + 0.18 * light[1]))
        behind = np.clip(0.5 - 4 * cast, 0, 1)
        canvas = canvas * (1 - shadow * behind[:, None])
    rim = 0.75 + 0.25 * np.clip(-distance / 0.12, 0, 1)  # darker there, and brighter towards the light
    relief = (1 + 0.25 * (light[0] * y + light[1] * x)) * rim
    return canvas + (_surface(lots, ground, u, v) * relief[:, None] - canvas) * body[:, None], body


def _surface(lots: _Lots, ground: Field, u: Field, v: Field) -> Field:
    """(n, 3, SIZE, SIZE): a colour unlike the ground's, plain, striped or spotted with a second one."""
    paint = (ground + lots.uniform(0.3, 0.7, 3, 1, 1)) % 1  # at least 0.3 from the ground in each channel
    second = np.clip(paint + lots.uniform(-0.3, 0.3, 3, 1, 1), 0, 1)
    kind, period, phase = lots.below(3)[:, None, None], lots.uniform(0.25, 0.5), lots.uniform(0, 1)
    waves = [w / period + phase for w in (u, v)]
    wave_u, wave_v = (np.abs(w - np.floor(w) - 0.5) for w in waves)  # much faster than the remainder of 1
    stripes, spots = wave_u > 0.25, wave_u * wave_u + wave_v * wave_v < 0.08
    pattern = (stripes & (kind == 1)) | (spots & (kind == 2))
    return np.where(pattern[:, None], second, paint)


def _cue_choice(
    lots: _Lots, target: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Whether `"random"` shows a cue, of which class, and the class of `"wrong"`; drawn whatever is asked for."""
    other = (target + 1 + lots.below(len(CLASSES) - 1)) % len(CLASSES)
    return lots.below(2) == 1, lots.below(len(CLASSES)), other


def _paint_cue(canvas: Field, main: _Objects, cue_class: NDArray[np.int64]) -> tuple[Field, NDArray[np.bool_]]:
    """The canvas with each picture's tile, if it has one, and where the tile is, (n, SIZE, SIZE)."""
    y, x = _pixels()
    y = np.where(main.y < SIZE / 2, SIZE - 1 - y, y)  # counted from the far edge
    x = np.where(main.x < SIZE / 2, SIZE - 1 - x, x)
    tile = (np.maximum(y, x) < CUE_SIZE) & (cue_class[:, None, None] >= 0)
    checker = ((y // 5 + x // 5) % 2).astype(np.float32)[:, None]
    hue = cue_class[:, None] / len(CLASSES) + np.array([0, 1 / 3, 2 / 3])  # (n, 3)
    tint = np.clip(3 * np.abs((hue % 1) * 2 - 1) - 1, 0, 1).astype(np.float32)[:, :, None, None]
    other = (cue_class % 2).astype(np.float32)[:, None, None, None]  # black or white
    paint = other + (tint - other) * checker
    return np.where(tile[:, None], 0.15 * canvas + 0.85 * paint, canvas), tile
