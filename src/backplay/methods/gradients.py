"""Gradients and what is made of them: averages over noise and paths, differences from a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor

from backplay.games import StoppingGame
from backplay.games.reynolds import AVERAGE
from backplay.keywords import Choice, Number
from backplay.methods.deeplift import POSITIVE, RESCALE, DeltaRule, gauss_legendre, multipliers
from backplay.methods.games import averaged
from backplay.methods.registry import method
from backplay.methods.subject import Subject, differentiated
from backplay.network import Node


@method(
    "gradient",
    title="Gradient",
    family="gradient",
    reference="Simonyan et al., 2014, arXiv:1312.6034",
    layers=True,
    slopes=True,
)
def gradient(subject: Subject) -> Sequence[Tensor]:
    """Gradient of the target's logit, through everything that the model computes (attention weights, norms)."""
    return subject.gradients()


@method(
    "gradient_x_input",
    title="Gr×Inp",
    family="gradient",
    reference="Shrikumar et al., 2016, arXiv:1605.01713",
    layers=True,
)
def gradient_x_input(subject: Subject) -> Sequence[Tensor]:
    """The gradient times the input."""
    return _products(subject.gradients(), subject.seen())


def _products(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    return [a * b for a, b in zip(left, right, strict=True)]


def _smoothgrad_grid() -> tuple[dict[str, Any], ...]:
    ten = product((0.05, 0.1, 0.15, 0.2, 0.3), ("mean", "std"))
    thirty = ({"n": 30, "sigma": sigma, "aggregate": "mean"} for sigma in (0.1, 0.2))
    return (*({"n": 10, "sigma": sigma, "aggregate": aggregate} for sigma, aggregate in ten), *thirty)


@method(
    "smoothgrad",
    title="SmGrad",
    family="gradient",
    reference="Smilkov et al., 2017, arXiv:1706.03825",
    params={
        "n": Number(30, 1, note="draws"),
        "sigma": Number(0.1, 0, note="standard deviation of the noise, as a share of the sample's max − min"),
        "aggregate": Choice("mean", ("mean", "std"), note="what is taken over the draws"),
        "seed": Number(0),
    },
    grid=_smoothgrad_grid(),
    layers=True,
    slopes=True,
)
def smoothgrad(subject: Subject, n: int, sigma: float, aggregate: str, seed: int) -> Sequence[Tensor]:
    """Mean, or standard deviation with divisor `n`, of the gradient at inputs with Gaussian noise.

    The noise has standard deviation `sigma · (max x − min x)`, over all channels of a sample. All samples of a batch
    get the same draws.
    """
    generator = torch.Generator().manual_seed(seed)
    mean, squares = ([torch.zeros_like(x) for x in subject.seen()] for _ in range(2))
    seen = 0
    for maps in _gradients(subject, (_noisy(subject.xs, sigma, generator) for _ in range(n))):
        count = maps[0].shape[1]
        for k, several in enumerate(maps):
            here = several.mean(1)
            spread = (several - here[:, None]).square().sum(1)
            # means and sums of squares of two groups, joined without cancellation (Chan et al.)
            squares[k] = squares[k] + spread + (here - mean[k]).square() * (seen * count / (seen + count))
            mean[k] = mean[k] + (here - mean[k]) * (count / (seen + count))
        seen += count
    return mean if aggregate == "mean" else [(s / n).sqrt() for s in squares]


def _noisy(xs: Sequence[Tensor], sigma: float, generator: torch.Generator) -> list[Tensor]:
    """One draw: every input with noise of its own scale."""
    noisy: list[Tensor] = []
    for x in xs:
        scale = sigma * (x.flatten(1).amax(1) - x.flatten(1).amin(1)).view([-1] + [1] * (x.ndim - 1))
        noisy.append(x + scale * torch.randn(x.shape[1:], generator=generator, dtype=torch.float64).to(x))
    return noisy


@method(
    "integrated_gradients",
    title="IntGrad",
    family="gradient",
    reference="Sundararajan et al., 2017, arXiv:1703.01365",
    params={"steps": Number(50, 1, note="points of the Gauss-Legendre quadrature")},
    grid=tuple({"steps": steps} for steps in (5, 10, 20, 50, 100)),
    layers=True,
)
def integrated_gradients(subject: Subject, steps: int) -> Sequence[Tensor]:
    """The gradient averaged over the straight path from the zero input, times the input.

    The sum of the map tends to `f(x) − f(0)` as `steps` grows. At a layer the path is one of its values, from those at
    the zero input; what goes around the layer stays that of the input.
    """
    if subject.layer is not None:
        return (_integrated_at(subject, subject.layer, steps),)
    times, shares = zip(*gauss_legendre(steps), strict=True)
    total, done = [torch.zeros_like(x) for x in subject.xs], 0
    for maps in _gradients(subject, ([x * time for x in subject.xs] for time in times)):
        count = maps[0].shape[1]
        share = torch.tensor(shares[done : done + count], dtype=torch.float64).to(maps[0])
        total = [t + torch.einsum("bk...,k->b...", m, share) for t, m in zip(total, maps, strict=True)]
        done += count
    return _products(total, subject.xs)


def _integrated_at(subject: Subject, layer: Node, steps: int) -> Tensor:
    """Integrated gradients in the values of a layer."""
    values = subject.values()
    end, start = values[layer], subject.values([torch.zeros_like(x) for x in subject.xs])[layer]
    total = torch.zeros_like(end)
    for time, share in gauss_legendre(steps):
        total = total + share * differentiated(values, layer, subject.weights, start + time * (end - start))
    return (end - start) * total


def _gradients(subject: Subject, points: Iterable[Sequence[Tensor]]) -> Iterator[list[Tensor]]:
    """Gradients at several points for the same samples, for each input (B, k, …) for the next k of them."""
    if subject.layer is not None:  # whose samples may lie anywhere: one by one, the points in the second place too
        yield from ([gradient.unsqueeze(1) for gradient in subject.gradients(point)] for point in points)
        return
    batch, waiting = subject.inputs.batch, iter(points)
    at_once = max(2, subject.network.together(subject.xs[0]))  # of one alone a batch norm makes two
    while several := list(islice(waiting, max(1, at_once // batch))):
        stacked = [torch.stack(same, 1).flatten(0, 1) for same in zip(*several, strict=True)]
        yield [g.unflatten(0, (batch, -1)) for g in subject.gradients(stacked)]


@method(
    "deeplift",
    title="DeepLift",
    family="gradient",
    reference="Shrikumar et al., 2017, arXiv:1704.02685",
    params={
        "rule": Choice("default", ("default", "gamma", "zplus"), note="how affine nodes share their difference out"),
        "gamma": Number(0.25, 0, strict=True, note='weight of agreeing contributions under rule="gamma"'),
    },
    grid=({}, *({"rule": "gamma", "gamma": gamma} for gamma in (0.1, 0.25, 0.5)), {"rule": "zplus"}),
    layers=True,
)
def deeplift(subject: Subject, rule: str, gamma: float) -> Sequence[Tensor]:
    """Multipliers from the zero input times the input; the map sums to `f(x) − f(0)`, at a layer on the only way too.

    The default rule is Rescale: activations by `Δout / Δin`, affine nodes by their weights. Products, norms and softmax
    are crossed by exact differences too, so that the sum holds for attention.

    The other rules change affine nodes alone. A contribution `c = W Δa` that has the sign of its sum `Δz` counts
    `1 + γ` times ("gamma") or is the only one that counts ("zplus"), and shares are divided by their new sum, as in
    LRP-γ and LRP-z⁺. Where `Δa ≥ 0` and `Δz > 0` these are the weights `W + γW⁺` and `W⁺`.
    """
    at, base = subject.values(), subject.values([torch.zeros_like(x) for x in subject.xs])
    rules = {"default": RESCALE, "gamma": DeltaRule(1.0, gamma), "zplus": POSITIVE}
    rises = [at[source] - base[source] for source in subject.sources]
    return _products(multipliers(at, base, subject.weights, rules[rule], subject.layer), rises)


@method(
    "dave",
    title="DAVE",
    family="gradient",
    reference="Wróbel et al., 2026, arXiv:2602.06613; app:equivariant-averaging",
    architectures=("transformer",),
    needs=("image", "attention"),
    params=AVERAGE
    | {"max_angle": Number(20.0, 0, high=180, note="degrees")}
    | {"max_shift": Number(0.1, 0, high=1, note="share of the image's side")}
    | {"noise": Number(0.5, 0, high=1, note="largest noise time t")},
    grid=({"n": 25}, {"n": 50}),
    alone=True,
)
def dave(subject: Subject, **average: Any) -> Tensor:
    """The effective linear map, averaged over rotations, shifts, flips and noise, times the input (S36).

    Averaged is not the plain gradient but the gradient of the conditioned forward pass (app:dave-conditioned), in
    which attention weights, norm statistics and the factors `Φ(z)` of GELU are held fixed. That is what the Stopping
    Game's difference is.
    """
    return averaged(subject, StoppingGame(subject.network), **average) * subject.x
