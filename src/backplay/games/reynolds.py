"""Averages over transformed inputs (S36, app:equivariant-averaging): the Reynolds operator on maps."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backplay.entry import entry
from backplay.errors import InputError, InputTypeError
from backplay.games.batches import check_size
from backplay.games.neurons import names_neurons, one_a_sample
from backplay.inputs import Target
from backplay.keywords import SEED, Number
from backplay.network.graph import MANY
from backplay.progress import Progress

AVERAGE = {
    "n": Number(50, 1, note="draws"),
    "max_angle": Number(10.0, 0, high=180, note="degrees"),
    "max_shift": Number(0.05, 0, high=1, note="share of the image's side"),
    "flip": Number(0.5, 0, high=1, note="probability"),
    "noise": Number(0.0, 0, high=1, note="largest noise time t"),
    "seed": SEED,
}


class Attributor(Protocol):
    """A game, or anything else with its `attribute`."""

    def attribute(self, x: Tensor, target: Target = None) -> Tensor: ...


class Reynolds:
    """The mean of a map over `n` random rotations, shifts and flips, each carried back by its inverse.

    Beyond its sides an image goes on as its mirror image: zeros there would be edges of their own, and draw the maps to
    the border. A map counts only where it is defined: what an inverse transform brings in from outside is left out.
    Whole-pixel shifts and flips are exact; the target is fixed on the untransformed input; `seed` fixes every draw.
    `noise > 0` adds variance-preserving noise, `x_t = (1−t) x + √(1−(1−t)²) ε` with `t ~ U[0, noise]`.

    >>> Reynolds(RoutingGame(model), n=50).attribute(x)
    """

    def __init__(
        self,
        game: Attributor,
        n: int = 50,
        max_angle: float = 10.0,
        max_shift: float = 0.05,
        flip: float = 0.5,
        noise: float = 0.0,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        if not hasattr(game, "attribute"):
            raise InputTypeError(
                f"Reynolds averages a game or an object with attribute(x, target), got {type(game).__name__}."
            )
        given = {"n": n, "max_angle": max_angle, "max_shift": max_shift, "flip": flip, "noise": noise, "seed": seed}
        checked = {name: AVERAGE[name].check(name, value) for name, value in given.items()}
        self.game, self.progress = game, progress
        self.n, self.max_angle, self.max_shift = checked["n"], checked["max_angle"], checked["max_shift"]
        self.flip, self.noise, self.seed = checked["flip"], checked["noise"], checked["seed"]

    def __repr__(self) -> str:
        words = f"n={self.n}, max_angle={self.max_angle}, max_shift={self.max_shift}, flip={self.flip}"
        return f"Reynolds({self.game!r}, {words}, noise={self.noise}, seed={self.seed})"

    @entry
    def attribute(self, x: Tensor, target: Target = None, internal_batch_size: int | None = None) -> Tensor:
        """The averaged map, in the shape of `x` (B, C, H, W); `internal_batch_size` draws are played at once."""
        check_size(internal_batch_size)
        if not isinstance(x, Tensor) or x.ndim != 4:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"Reynolds averages maps of images: the input must be (B, C, H, W), got {shape}.")
        targets = self._fixed_targets(x, target)
        with Progress("averaging transformed inputs", self.n * len(x), self.progress) as bar:
            pairs = zip(x, targets, strict=True)
            return torch.cat([self._one(image[None], single, bar, internal_batch_size) for image, single in pairs])

    def _fixed_targets(self, x: Tensor, target: Target) -> list[Any]:
        """The class of every sample, fixed on the untransformed input and checked once."""
        if names_neurons(target):  # nothing depends on the input: the game reads them
            return one_a_sample(target, len(x))
        fix: Any = getattr(self.game, "targets", None)
        if callable(fix):
            targets: Any = fix(x, target)
            return list(targets)
        if target is None:
            raise InputError("give a target: this method cannot tell which one it would explain.")
        try:
            classes = torch.as_tensor(target)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputTypeError(f"target {target!r} is no integer or sequence of integers.") from error
        if classes.is_floating_point() or classes.ndim > 1 or (classes.ndim == 1 and len(classes) != len(x)):
            raise InputError(
                f"target {target!r} does not fit {len(x)} samples: give one class, or one for each sample."
            )
        return classes.expand(len(x)).tolist()

    def _one(self, image: Tensor, target: Any, bar: Progress, size: int | None) -> Tensor:
        draws = Draws(self, image.shape[-2:])
        total, weight = torch.zeros((), dtype=image.dtype), torch.zeros_like(image[:, :1])
        game: Any = self.game
        at_once = size or (int(game.together(image)) if hasattr(game, "together") else MANY)
        for start in range(0, self.n, at_once):
            chunk = range(start, min(start + at_once, self.n))
            moved = torch.cat([self._noisy(draws.apply(k, image), draws, k) for k in chunk])
            repeated = torch.stack([target] * len(chunk)) if isinstance(target, Tensor) else [target] * len(chunk)
            with torch.enable_grad():  # another library's method may need derivatives; games switch them off again
                maps = self.game.attribute(moved, repeated).detach()
            if maps.shape[-2:] != moved.shape[-2:]:
                raise InputError(
                    f"Reynolds carries maps of the image's size back, {tuple(moved.shape[-2:])}; these are "
                    f"{tuple(maps.shape)}, as a layer's are: leave the layer out."
                )
            for k, single in zip(chunk, maps, strict=True):
                back, seen = draws.undo(k, single[None])
                total = total + back
                weight += seen
            bar.advance(len(chunk))
        return torch.where(weight > 0, total / weight, 0)

    def _noisy(self, moved: Tensor, draws: Draws, k: int) -> Tensor:
        if self.noise == 0:
            return moved
        t = float(draws.time[k]) * self.noise
        noise = torch.randn(moved.shape, generator=draws.generator, dtype=torch.float64).to(moved)
        return (1 - t) * moved + math.sqrt(1 - (1 - t) ** 2) * noise


class Draws:
    """The transforms of one average: angle, shift in pixels, flip and noise time of every draw."""

    def __init__(self, wanted: Reynolds, size: torch.Size) -> None:
        self.generator = torch.Generator().manual_seed(wanted.seed)
        uniform = torch.rand(5, wanted.n, generator=self.generator, dtype=torch.float64)
        self.angle = (2 * uniform[0] - 1) * math.radians(wanted.max_angle)
        # whole pixels, so that a shift alone is exact
        self.rows = torch.round((2 * uniform[1] - 1) * wanted.max_shift * size[0])
        self.columns = torch.round((2 * uniform[2] - 1) * wanted.max_shift * size[1])
        self.flipped = uniform[3] < wanted.flip
        self.time = uniform[4]

    def apply(self, k: int, image: Tensor, mirrored: bool = True) -> Tensor:
        """Flip, rotate, shift; what comes in from outside is the image's mirror image, or 0."""
        moved = image.flip(-1) if bool(self.flipped[k]) else image
        moved = _rotate(moved, float(self.angle[k]), mirrored)
        return _shift(moved, int(self.rows[k]), int(self.columns[k]), mirrored)

    def undo(self, k: int, image: Tensor) -> tuple[Tensor, Tensor]:
        """A map carried back, weighted by how far it is defined there, and that weight.

        The transformed image shows the original and what comes in from outside; a bilinear value counts by the share
        of it that is the original, so that a border is left out of the average as far as it is undefined, and no
        further.
        """
        visible = self.apply(k, torch.ones_like(image[:, :1]), mirrored=False)
        return self._inverse(k, image * visible), self._inverse(k, visible)

    def _inverse(self, k: int, moved: Tensor) -> Tensor:
        moved = _shift(moved, -int(self.rows[k]), -int(self.columns[k]), mirrored=False)
        moved = _rotate(moved, -float(self.angle[k]), mirrored=False)
        return moved.flip(-1) if bool(self.flipped[k]) else moved


def _rotate(image: Tensor, angle: float, mirrored: bool) -> Tensor:
    """Bilinear rotation about the centre."""
    if angle == 0:
        return image
    height, width = image.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = torch.tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]], dtype=torch.float64)
    theta = matrix.to(image)[None].expand(len(image), -1, -1)
    grid = functional.affine_grid(theta, list(image.shape), align_corners=False)
    fill = "reflection" if mirrored else "zeros"
    return functional.grid_sample(image, grid, padding_mode=fill, align_corners=False)


def _shift(image: Tensor, rows: int, columns: int, mirrored: bool) -> Tensor:
    """Whole-pixel shift."""
    for dim, by in ((-2, rows), (-1, columns)):
        size = image.shape[dim]
        source = torch.arange(size, device=image.device) - by
        within = (source >= 0) & (source < size)
        source = source % (2 * size)  # the plane is tiled with the image and its mirror images
        image = image.index_select(dim, torch.where(source < size, source, 2 * size - 1 - source))
        if not mirrored:
            image = image * within.to(image.dtype).view(-1, *[1] * (-1 - dim))
    return image
