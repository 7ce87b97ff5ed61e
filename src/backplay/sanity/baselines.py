"""What a distance is read against: two networks that know nothing, noise on the input, other inputs.

Double-random pairs (tab:double-random-hellinger), noise (fig:hellinger-input-noise) and pairs of images and of Gaussian
noise (tab:hellinger-input-random).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import InputError, KeywordError
from backplay.keywords import SEED, Number
from backplay.network import Model, Network
from backplay.sanity.randomise import Which, check_which, randomise
from backplay.sanity.walks import (
    Compared,
    Names,
    Unchanged,
    aim_at,
    aim_of,
    captured,
    check_batch,
    listed,
    meet,
    mixed,
    network_of,
    played,
    read_names,
)

SIGMAS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
PAIRS = ("intraclass", "interclass", "clean-random", "random-random")
BOTH = ("sg", "rg")
_LABEL = Number(0)


# -------------------------------------------------------------------- networks that know nothing


@dataclass(frozen=True, kw_only=True)
class Round(Compared):
    """Two copies of a network, both drawn anew, compared on one image; tensors are of one sample."""

    number: int
    image: int  # which of the given inputs


@entry
def double_random(
    model: Model,
    x: Tensor,
    target: Any = None,
    *,
    rounds: int = 500,
    games: Names = BOTH,
    further: Names = (),
    which: Which = "weights",
    seed: int = 0,
) -> Iterator[Round]:
    """Round after round two fresh copies of a network on an image drawn by lot (sec:lmp-rand-double-random).

    >>> found = torch.cat([r.distance["sg"] for r in bp.sanity.double_random(model, x, rounds=4)])
    >>> found.mean(), found.std()

    With `which="weights"`, as in the paper, norms and biases stay as they were learned.
    """
    both, asked = read_names(games, further)
    _check_count("rounds", rounds)
    check_which(which)
    check_batch(x, "double_random")
    seed = SEED.check("seed", seed)
    network = network_of(model, x, "double_random")
    return _rounds(network, x, aim_of(network, x, target), rounds, both, asked, which, seed)


def _rounds(
    network: Network,
    x: Tensor,
    aim: Any,
    rounds: int,
    games: Sequence[str],
    further: Sequence[str],
    which: Which,
    seed: int,
) -> Iterator[Round]:
    for number in range(rounds):
        image = image_of(number, len(x), seed)
        one, own = x[image : image + 1], aim_at(aim, image, len(x))
        yield random_round(network, one, own, number, image, games, further, which, seed)


def image_of(number: int, images: int, seed: int) -> int:
    """The image of a round, with replacement."""
    generator = torch.Generator().manual_seed(mixed("image", seed, number))
    return int(torch.randint(images, (1,), generator=generator))


def random_round(
    network: Network,
    x: Tensor,
    aim: Any,
    number: int,
    image: int,
    games: Sequence[str],
    further: Sequence[str],
    which: Which,
    seed: int,
) -> Round:
    """One round on its image `x` (1, …): the copies depend on the seed and the number of the round alone."""
    twins = [randomise(network, seed=mixed("copy", seed, number, side), which=which) for side in "AB"]
    sides = [captured(network, twin, x) for twin in twins]
    pairs = {game: (played(sides[0], game, x, aim), played(sides[1], game, x, aim)) for game in games}
    return Round(number=number, image=image, **meet(pairs, further))


# -------------------------------------------------------------------- noise on the input


@dataclass(frozen=True, kw_only=True)
class NoiseLevel(Compared):
    """One network on clean inputs and on the same with noise."""

    sigma: float


@entry
def input_noise(
    model: Model,
    x: Tensor,
    target: Any = None,
    *,
    sigmas: Sequence[float] = SIGMAS,
    games: Names = BOTH,
    further: Names = (),
    seed: int = 0,
) -> Iterator[NoiseLevel]:
    """`H(Π(x), Π(x + σε))` for growing σ (sec:input-noise-hellinger).

    >>> for level in bp.sanity.input_noise(model, x):
    ...     print(level.sigma, level.distance["sg"].mean())

    Each image has one Gaussian ε, the same for all σ. Without a target both sides are asked about the class that is
    found in the clean input.
    """
    both, asked = read_names(games, further)
    levels = _read_sigmas(sigmas)
    check_batch(x, "input_noise")
    seed = SEED.check("seed", seed)
    network = network_of(model, x, "input_noise")
    own = Unchanged(network, x, aim_of(network, x, target))
    return (
        NoiseLevel(sigma=sigma, **own.compared_with(network, noisy(x, sigma, seed, range(len(x))), both, asked))
        for sigma in levels
    )


def _read_sigmas(sigmas: Any) -> list[float]:
    found = listed("sigmas", sigmas, "standard deviations, numbers from 0 up")
    if not found:
        raise KeywordError("sigmas=[] is out of range: give one standard deviation or more.")
    for sigma in found:
        if isinstance(sigma, bool) or not isinstance(sigma, Real) or not 0 <= float(sigma) < math.inf:
            raise KeywordError(f"sigmas has {sigma!r}: a standard deviation is a number from 0 up.")
    return [float(sigma) for sigma in found]


def noisy(x: Tensor, sigma: float, seed: int, numbers: Sequence[int]) -> Tensor:
    """Inputs with noise; that of an input depends on the seed and on its number alone."""
    return x + sigma * torch.stack([gaussian(one, seed, "noise", k) for one, k in zip(x, numbers, strict=True)])


def gaussian(like: Tensor, *key: object) -> Tensor:
    """Standard Gaussian numbers in the shape of a tensor, the same wherever they are drawn."""
    generator = torch.Generator().manual_seed(mixed("gaussian", *key))
    return torch.randn(like.shape, generator=generator, dtype=torch.float32).to(like)


# -------------------------------------------------------------------- other inputs


@dataclass(frozen=True, kw_only=True)
class InputPair(Compared):
    """One network on two inputs; tensors are of one sample."""

    kind: str  # one of PAIRS
    number: int
    images: tuple[int, int]  # which of the given inputs; −1 stands for Gaussian noise


@entry
def separability(
    model: Model,
    x: Tensor,
    labels: Sequence[int] | Tensor,
    *,
    pairs: int = 200,
    games: Names = BOTH,
    further: Names = (),
    seed: int = 0,
) -> Iterator[InputPair]:
    """Pairs of one class, of two classes, of an image and noise, of noise and noise (tab:hellinger-input-random).

    >>> for pair in bp.sanity.separability(model, torch.cat([x, y, x]), [0, 1, 0], pairs=2):
    ...     print(pair.kind, pair.images, pair.distance["sg"])

    Both sides are asked about the class that the network finds in the first of them: walks that start at different
    classes share nothing, whatever the inputs are. Every image is paired with noise once.
    """
    both, asked = read_names(games, further)
    _check_count("pairs", pairs)
    check_batch(x, "separability")
    seed = SEED.check("seed", seed)
    known = [_LABEL.check("label", label) for label in listed("labels", labels, "class numbers")]
    if len(known) != len(x):
        raise InputError(f"separability has {len(x)} inputs and {len(known)} labels: give one label for each input.")
    network = network_of(model, x, "separability")
    drawn = {kind: pairs_of(kind, known, pairs, seed) for kind in PAIRS}
    return (
        InputPair(
            kind=kind,
            number=number,
            images=images,
            **pairs_met(network, *sides_of(lambda k: x[k], x[0], kind, number, images, seed), both, asked),
        )
        for kind, found in drawn.items()
        for number, images in enumerate(found)
    )


def pairs_of(kind: str, labels: Sequence[int], count: int, seed: int) -> list[tuple[int, int]]:
    """Which inputs are compared; −1 stands for noise. Pairs of images are drawn by lot, with replacement."""
    if kind == "clean-random":
        return [(k, -1) for k in range(len(labels))]
    if kind == "random-random":
        return [(-1, -1)] * count
    same = kind == "intraclass"
    partners = [[j for j, y in enumerate(labels) if j != i and (y == label) is same] for i, label in enumerate(labels)]
    firsts = [i for i, found in enumerate(partners) if found]
    if not firsts:
        wanted = "two inputs of one class" if same else "inputs of two classes"
        raise InputError(f"{kind} pairs need {wanted}, and there are none among these {len(labels)}; give more inputs.")
    generator = torch.Generator().manual_seed(mixed(kind, seed))
    draws = torch.rand(count, 2, generator=generator, dtype=torch.float64).tolist()
    chosen = [(firsts[int(u * len(firsts))], v) for u, v in draws]
    return [(i, partners[i][int(v * len(partners[i]))]) for i, v in chosen]


def sides_of(
    image: Callable[[int], Tensor], like: Tensor, kind: str, number: int, images: tuple[int, int], seed: int
) -> tuple[Tensor, Tensor]:
    """Both inputs (1, …) of a pair; noise is drawn `like` an input and depends on the seed, the kind and the number."""
    first, second = (
        (image(k) if k >= 0 else gaussian(like, seed, kind, number, side))[None]
        for k, side in zip(images, "AB", strict=True)
    )
    return first, second


def pairs_met(
    network: Network, a: Tensor, b: Tensor, games: Sequence[str], further: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields of a `Compared` of pairs of inputs, (B, …) each; asked about the class found in the first ones."""
    return Unchanged(network, a, aim_of(network, a, None)).compared_with(network, b, games, further)


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KeywordError(f"{name} must be a whole number from 1 up, got {value!r}.")
