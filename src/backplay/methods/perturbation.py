"""Perturbations: superpixels are hidden and the model is asked again, LIME and KernelSHAP.

The map is (B, 1, H, W): every pixel shows the coefficient of its superpixel. What is fitted is the target's logit.
Superpixels, draws and the fit belong to one image, so a batch is its images one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.keywords import Choice, Number
from backplay.methods.registry import method
from backplay.methods.subject import Subject
from backplay.progress import Progress

_BASELINES = ("segment", "mean", "zero")
_PARAMS = {
    "n": Number(500, 1, note="perturbed images"),
    "segments": Number(80, 1, note="superpixels that SLIC is asked for"),
    "seed": Number(0),
}
_NOTE = "what hides a superpixel: its own mean colour, the image's mean colour, or 0"
_GRID = ({"n": 500, "segments": 80},)  # the paper's tables show this configuration alone
_LIBRARIES = ("scikit-image",)  # SLIC


@method(
    "lime",
    title="LIME",
    family="perturbation",
    reference="Ribeiro et al., 2016, arXiv:1602.04938",
    needs=("image",),
    params=_PARAMS
    | {"baseline": Choice("segment", _BASELINES, note=_NOTE)}
    | {"width": Number(0.25, 0, strict=True, note="width of the kernel on cosine distances")}
    | {"ridge": Number(1.0, 0, strict=True, note="weight of the squared coefficients")},
    grid=_GRID,
    libraries=_LIBRARIES,
    alone=True,
)
def lime(subject: Subject, n: int, segments: int, seed: int, baseline: str, width: float, ridge: float) -> Tensor:
    """Ridge regression of the logit on which superpixels are shown, as LIME's own image explainer does it.

    The first row shows everything, the others show each superpixel with probability ½. A row weighs `√exp(−d²/width²)`
    where `d` is its cosine distance from the full image. Hidden superpixels get their own mean colour.
    """

    def fit(puzzle: Puzzle) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shown = torch.randint(0, 2, (n, puzzle.pieces), generator=generator).double()
        shown[0] = 1
        distance = 1 - shown.mean(1).sqrt()  # the cosine of a 0-1 row and the row of ones is √(share of ones)
        weights = torch.exp(-distance.square() / width**2).sqrt()
        return weighted_ridge(shown, puzzle.ask(shown), weights, ridge)

    with Progress("LIME: perturbed images", n * len(subject.x)) as bar:
        return _pictures(subject, segments, baseline, bar, fit)


@method(
    "kernel_shap",
    title="KShap",
    family="perturbation",
    reference="Lundberg and Lee, 2017, arXiv:1705.07874",
    needs=("image",),
    params=_PARAMS | {"baseline": Choice("mean", _BASELINES, note=_NOTE)},
    grid=_GRID,
    libraries=_LIBRARIES,
    alone=True,
)
def kernel_shap(subject: Subject, n: int, segments: int, seed: int, baseline: str) -> Tensor:
    """Shapley values of the superpixels by weighted regression with the Shapley kernel.

    The coefficients sum to `f(x) − f(everything hidden)`, exactly. Sizes of coalitions whose number fits into what is
    left of `n` are listed, the others drawn in complementary pairs; where all of them fit (`2^M − 2 ≤ n`) the values
    are exact. Hidden superpixels get the image's mean colour, as in the paper's pixel flipping.
    """

    def fit(puzzle: Puzzle) -> Tensor:
        nothing, everything = puzzle.ask(torch.tensor([[0.0], [1.0]]).expand(2, puzzle.pieces))
        if puzzle.pieces == 1:
            return (everything - nothing)[None]
        shown, weights = coalitions(puzzle.pieces, n, torch.Generator().manual_seed(seed))
        return constrained_regression(shown, puzzle.ask(shown) - nothing, weights, everything - nothing)

    with Progress("KernelSHAP: perturbed images", (n + 2) * len(subject.x)) as bar:
        return _pictures(subject, segments, baseline, bar, fit)


class Puzzle:
    """One image in pieces, any of which can be hidden."""

    def __init__(self, subject: Subject, segments: int, baseline: str, bar: Progress) -> None:
        self.subject, self.bar = subject, bar
        self.image = subject.x[0]
        self.labels = superpixels(self.image, segments)  # (H, W), which piece a pixel belongs to
        self.pieces = int(self.labels.max()) + 1
        self.hidden = _hidden(self.image, self.labels, baseline)

    def ask(self, shown: Tensor) -> Tensor:
        """(n,) float64 the target's logit for rows of ones and zeros (n, pieces): what is shown and what is hidden."""
        logits: list[Tensor] = []
        for rows in shown.split(self.subject.network.together(self.image)):
            visible = rows.to(self.labels.device)[:, self.labels] > 0  # (k, H, W)
            mixed = torch.where(visible[:, None], self.image, self.hidden)
            logits.append(self.subject.scores([mixed]))
            self.bar.advance(len(rows))
        return torch.cat(logits).double().cpu()


def _pictures(subject: Subject, segments: int, baseline: str, bar: Progress, fit: Callable[[Puzzle], Tensor]) -> Tensor:
    """Every pixel with the coefficient of its piece, (B, 1, H, W)."""
    puzzles = [Puzzle(one, segments, baseline, bar) for one in subject.samples()]
    pictures = [fit(p).to(p.labels.device, p.image.dtype)[p.labels] for p in puzzles]
    return torch.stack(pictures)[:, None]


def superpixels(image: Tensor, segments: int) -> Tensor:
    """SLIC's labels of an image (C, H, W), from 0 without gaps; colours are scaled to [0, 1] for this alone."""
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        raise UnsupportedError(
            "superpixels come from scikit-image, which is not installed: pip install 'backplay[methods]'."
        ) from error
    colours = (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)
    segmented = slic(colours.double().cpu().numpy(), n_segments=segments, start_label=0, channel_axis=0)
    labels = torch.unique(torch.from_numpy(segmented), return_inverse=True)[1]
    return labels.to(image.device)


def _hidden(image: Tensor, labels: Tensor, baseline: str) -> Tensor:
    """The image with everything hidden."""
    if baseline == "zero":
        return torch.zeros_like(image)
    if baseline == "mean":
        return image.mean((1, 2), keepdim=True).expand_as(image)
    flat = labels.flatten()
    sums = image.new_zeros(len(image), int(labels.max()) + 1).index_add_(1, flat, image.flatten(1))
    return (sums / torch.bincount(flat))[:, labels]


def weighted_ridge(rows: Tensor, values: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Coefficients of `values ≈ rows · φ + intercept` with `ridge · |φ|²`; the intercept is not held back."""
    share = weights / weights.sum()
    rows, values = rows - share @ rows, values - share @ values
    left = rows.T @ (weights[:, None] * rows) + ridge * torch.eye(rows.shape[1], dtype=rows.dtype)
    return torch.linalg.solve(left, rows.T @ (weights * values))


def constrained_regression(rows: Tensor, values: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Coefficients of `values ≈ rows · φ` that sum to `total`; of several solutions the most even one."""
    count = rows.shape[1]
    even = (total / count).expand(count)
    # an orthonormal basis of the directions in which the sum stays: all but the first column of a QR of ones
    basis = torch.linalg.qr(torch.cat([torch.ones(count, 1), torch.eye(count)[:, 1:]], 1).to(rows))[0][:, 1:]
    root = weights.sqrt()
    best = torch.linalg.lstsq((root[:, None] * rows) @ basis, root * (values - rows @ even), driver="gelsd").solution
    return even + basis @ best


def coalitions(count: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """At most `n` coalitions of `count` pieces as rows of ones and zeros, and their weights in the regression.

    A size `s` weighs `(count − 1) / (s (count − s))` in all. From the outside in, sizes are listed while there is room
    for as many as the budget's fair share would draw; what is left is drawn with its complement, by size and then
    evenly.
    """
    mass = {s: (count - 1) / (s * (count - s)) for s in range(1, count)}
    rows: list[Tensor] = []
    weights: list[float] = []
    for size in range(1, count // 2 + 1):
        sizes = {size, count - size}
        number = math.comb(count, size) * len(sizes)
        fair = (n - len(rows)) * sum(mass[s] for s in sizes) / sum(mass.values())
        if number > fair * (1 + 1e-9):
            break
        for chosen in combinations(range(count), size):
            row = _row(count, chosen)
            rows += [row, 1 - row][: len(sizes)]
            weights += [mass[size] * len(sizes) / number] * len(sizes)
        for s in sizes:
            del mass[s]
    if mass and len(rows) < n:
        drawn = _drawn(count, mass, n - len(rows), generator)
        weights += [sum(mass.values()) / len(drawn)] * len(drawn)
        rows += drawn
    return torch.stack(rows), torch.tensor(weights, dtype=torch.float64)


def _drawn(count: int, mass: dict[int, float], n: int, generator: torch.Generator) -> list[Tensor]:
    """`n` random coalitions of the given sizes, every other one the complement of the one before."""
    sizes, odds = list(mass), torch.tensor(list(mass.values()), dtype=torch.float64)
    picks = torch.multinomial(odds, -(-n // 2), replacement=True, generator=generator)
    rows: list[Tensor] = []
    for pick in picks.tolist():
        chosen = torch.randperm(count, generator=generator)[: sizes[pick]].tolist()
        row = _row(count, chosen)
        rows += [row, 1 - row]
    return rows[:n]


def _row(count: int, chosen: Sequence[int]) -> Tensor:
    row = torch.zeros(count, dtype=torch.float64)
    row[list(chosen)] = 1
    return row
