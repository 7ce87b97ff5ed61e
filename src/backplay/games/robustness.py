"""`bp.robustness`: how the walk and the map answer to input noise in networks of softer and softer gates.

ReLU gates are replaced by Softplus(θ) (app:softplus-dombrowski): players who are not sure change their minds slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import KeywordError, UnsupportedError
from backplay.games.game import Model
from backplay.games.play import Play
from backplay.games.stopping import StoppingGame
from backplay.inputs import Target
from backplay.keywords import SEED, Number
from backplay.network.arguments import Arguments, Inputs
from backplay.pictured import Pictured
from backplay.progress import Progress
from backplay.trajectory.curvature import curvature
from backplay.trajectory.hellinger import hellinger

THETAS = (0.0, 0.1, 0.3, 1.0)


@dataclass(frozen=True, repr=False)
class Robustness(Pictured):
    """What `n` draws of noise do to the play of each of B samples, for each of T values of θ; float64.

    θ = 0 stands for the network itself, with ReLU gates.
    """

    thetas: tuple[float, ...]
    noise: float  # standard deviation
    shift: Tensor  # (B, n) ‖x' − x‖
    distance: Tensor  # (T, B, n) `H` between the walks on x and on x'
    size: Tensor  # (T, B) ‖map‖ on x, the gradient
    change: Tensor  # (T, B, n) ‖map on x' − map on x‖
    curvature: Tensor | None  # (T, B) no more than this times `shift` can `change` be (`bp.bounds.curvature`)
    refusal: str = ""  # why no curvature is known, where it is None

    @property
    def relative(self) -> Tensor:
        """(T, B, n) the change of the map in units of its size: 0 where there is none, ∞ where the map was 0."""
        size = self.size[..., None]
        return torch.where(self.change == 0, 0, self.change / size)

    @property
    def measured(self) -> Tensor:
        """(T, B, n) the change of the map for each unit of noise: what `curvature` bounds."""
        return self.change / self.shift

    def __repr__(self) -> str:
        rows = [
            f"θ = {theta:g}: H {float(h.median()):.3f}, map {float(change.median()):.1%}"
            for theta, h, change in zip(self.thetas, self.distance, self.relative, strict=True)
        ]
        return f"Robustness(noise {self.noise:g}, {self.shift.shape[1]} draws; medians at {'; '.join(rows)})"


@entry
def robustness(
    model: Model,
    x: Inputs,
    target: Target = None,
    *,
    thetas: Sequence[float] = THETAS,
    noise: float = 0.1,
    n: int = 8,
    seed: int = 0,
    additional_forward_args: Any = None,
) -> Robustness:
    """How far the Stopping Game's walk and map move under Gaussian noise on the input, for each θ of `thetas`.

    >>> found = bp.robustness(model, x, thetas=[0.0, 0.1, 1.0], noise=0.05)
    >>> found.distance.median(-1), found.relative.median(-1), found.plot()

    `noise` is the standard deviation; all θ see the same `n` draws. The target is fixed on the input without noise.
    """
    thetas = _read(thetas)
    noise = Number(0.1, 0.0, strict=True).check("noise", noise)
    n, seed = Number(8, 1).check("n", n), SEED.check("seed", seed)
    game = StoppingGame(model)
    network, inputs = game.prepare(x, additional_forward_args)
    noisy = list(_noisy(inputs, noise, n, seed))
    with Progress("playing with noise", len(thetas) * n) as progress:
        answers = [_answer(game.replace(softplus=t or None), network, inputs, target, noisy, progress) for t in thetas]
    bounds = [row.curvature for row in answers]
    known = [b for b in bounds if isinstance(b, Tensor)]
    return Robustness(
        thetas,
        noise,
        torch.stack([_size([a - b for a, b in zip(_tensors(y), _tensors(inputs), strict=True)]) for y in noisy], 1),
        torch.stack([row.distance for row in answers]),
        torch.stack([row.size for row in answers]),
        torch.stack([row.change for row in answers]),
        torch.stack(known) if len(known) == len(bounds) else None,
        next((b for b in bounds if isinstance(b, str)), ""),
    )


def _read(thetas: Any) -> tuple[float, ...]:
    thetas = thetas.tolist() if hasattr(thetas, "tolist") else thetas
    if isinstance(thetas, str) or not isinstance(thetas, Sequence) or not thetas:
        raise KeywordError(
            f"thetas={thetas!r} is out of range: it must be a list of numbers >= 0, e.g. [0.0, 0.1, 1.0]."
        )
    return tuple(Number(0.1, 0.0).check("thetas", theta) for theta in thetas)


def _noisy(inputs: Arguments, noise: float, n: int, seed: int) -> Iterator[Arguments]:
    """The inputs with noise on all that is explained, `n` times."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        moved: dict[Any, Any] = {}
        for key in inputs.explained:
            given = inputs[key]
            drawn = torch.randn(given.shape, generator=generator, dtype=torch.float64)
            moved[key] = given + noise * drawn.to(given)
        yield inputs.with_values(moved)


@dataclass(frozen=True)
class _Answer:
    """At one θ: (B, n), (B,), (B, n), and (B,) or the reason why there is none."""

    distance: Tensor
    size: Tensor
    change: Tensor
    curvature: Tensor | str


def _answer(
    game: StoppingGame, network: Any, inputs: Arguments, target: Target, noisy: list[Arguments], progress: Progress
) -> _Answer:
    play = Play(game, network, inputs, target)
    maps, distances, changes = play.maps(), list[Tensor](), list[Tensor]()
    for y in noisy:
        other = Play(game, network, y, play.aim.given)
        distances.append(hellinger(play, other).distance)
        changes.append(_size([a.double() - b.double() for a, b in zip(other.maps(), maps, strict=True)]))
        progress.advance(1)
    try:
        bound: Tensor | str = curvature(play)
    except UnsupportedError as error:
        bound = str(error)
    return _Answer(torch.stack(distances, 1), _size(maps), torch.stack(changes, 1), bound)


def _tensors(inputs: Arguments) -> list[Tensor]:
    return [inputs[key].double() for key in inputs.explained]


def _size(parts: Sequence[Tensor]) -> Tensor:
    """(B,) the Euclidean norm over all elements of all inputs."""
    return torch.stack([p.double().flatten(1).square().sum(1) for p in parts]).sum(0).sqrt()
