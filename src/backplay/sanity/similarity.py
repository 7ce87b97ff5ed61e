"""How alike two maps are: ranks of absolute values, and histograms of oriented gradients (app:sanity-heatmap)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from backplay.errors import InputError, MissingLibraryError

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
    from scipy.stats import rankdata

    if maps.ndim != 4:
        raise InputError(f"maps that are compared are pictures (B, C, H, W); got {tuple(maps.shape)}.")
    pictures = maps.detach().double().sum(1).abs().cpu().numpy()
    ranks = rankdata(pictures.reshape(len(pictures), -1), axis=1)
    return Described(maps, ranks, np.stack([_histograms(picture) for picture in pictures]))


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
