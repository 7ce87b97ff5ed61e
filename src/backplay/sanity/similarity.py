"""How alike two maps are, and whether two readouts rank images alike (app:sanity-heatmap, sec:per-image-orthogonality).

Maps are compared by the ranks of their absolute values and by histograms of oriented gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backplay.errors import InputError, MissingLibraryError

if TYPE_CHECKING:
    from backplay.sanity.cascade import Step

Flat = npt.NDArray[np.float64]
CELL = 16  # pixels a side of a cell of the histograms; smaller pictures have cells of a sixth of their side


@dataclass(frozen=True)
class Described:
    """What is compared of maps: made once for a map that many others are compared with."""

    maps: Tensor  # (B, C, H, W)
    ranks: Flat  # (B, H·W) of absolute values, colours added up first
    histograms: Flat  # (B, n) of oriented gradients of the same

    def spearman(self, other: Described) -> Tensor:
        """(B,) rank correlation of absolute values; 0 where a map is the same everywhere."""
        return self._alike(other, self.ranks, other.ranks)

    def hog(self, other: Described) -> Tensor:
        """(B,) correlation of histograms of oriented gradients; 0 where a map is the same everywhere."""
        return self._alike(other, self.histograms, other.histograms)

    def _alike(self, other: Described, a: Flat, b: Flat) -> Tensor:
        shapes = [tuple(side.maps.shape) for side in (self, other)]
        if shapes[0] != shapes[1]:
            raise InputError(f"two batches of maps of one shape are compared; got {shapes[0]} and {shapes[1]}.")
        return self.maps.new_tensor(pearson(a, b))


def describe(maps: Tensor) -> Described:
    """Ranks and histograms of a batch of maps."""
    if maps.ndim != 4:
        raise InputError(f"maps that are compared are pictures (B, C, H, W); got {tuple(maps.shape)}.")
    pictures = maps.detach().double().sum(1).abs().cpu().numpy()
    ranks = _ranks(pictures.reshape(len(pictures), -1))
    return Described(maps, ranks, np.stack([_histograms(picture) for picture in pictures]))


def _ranks(rows: Flat) -> Flat:
    """(n, m) the place of each number in its row, from the smallest; equal ones share theirs."""
    try:
        from scipy.stats import rankdata
    except ImportError as error:
        raise MissingLibraryError("rank correlations need SciPy: pip install 'backplay[methods]'.") from error
    return rankdata(rows, axis=1)


def _histograms(picture: Flat) -> Flat:
    try:
        from skimage.feature import hog as descriptor
    except ImportError as error:
        raise MissingLibraryError("HOG correlations need scikit-image: pip install 'backplay[methods]'.") from error
    size = float(picture.max())
    cell = max(1, min(CELL, min(picture.shape) // 6))
    return descriptor(picture / size if size > 0 else picture, pixels_per_cell=(cell, cell))


def pearson(a: Flat, b: Flat) -> Flat:
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    size = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return np.divide((a * b).sum(1), size, out=np.zeros(len(a)), where=size > 0)


def readouts_of(step: Step) -> dict[str, Tensor]:
    """Everything that a step of a cascade says of its images, (B,) each: `sg.distance`, `gradient.spearman`, ….

    The names are those that rows of a run have.
    """
    found = {
        f"{game}.{name}": values for name in ("distance", "surviving") for game, values in step.readout(name).items()
    }
    for name in ("spearman", "hog"):
        found |= {f"{method}.{name}": values for method, values in getattr(step, name).items()}
    return found


def rank_correlations(readouts: Mapping[str, Tensor | Sequence[float]]) -> Tensor:
    """(n, n) Spearman correlations across the images of `n` readouts with one number an image (tab:per-image-corr).

    >>> step = list(bp.sanity.cascade(model, x, method=["rg", "gradient"]))[2]
    >>> bp.sanity.rank_correlations(bp.sanity.readouts_of(step))

    Images on which one of two readouts is NaN do not count for that pair; NaN where fewer than two are left or where a
    readout is the same on all of them.
    """
    values = {name: np.asarray(torch.as_tensor(v).double().cpu()) for name, v in readouts.items()}
    lengths = {len(v) for v in values.values()}
    if len(lengths) != 1:
        raise InputError(f"readouts have one number for each image; got lengths {sorted(lengths)}.")
    rows = [[_spearman(a, b) for b in values.values()] for a in values.values()]
    return torch.tensor(rows, dtype=torch.float64)


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    known = np.isfinite(a) & np.isfinite(b)
    left, right = (_ranks(side[known][None]) for side in (a, b))
    if known.sum() < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(pearson(left, right)[0])
