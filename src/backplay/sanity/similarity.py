"""How alike two maps are: ranks of absolute values, and histograms of oriented gradients (app:sanity-heatmap)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from backplay.errors import InputError, MissingLibraryError

Flat = npt.NDArray[np.float64]
CELL = 16  # pixels a side of a cell of the histograms; smaller pictures have cells of a sixth of their side


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """(B,) rank correlation of absolute values, colours added up first; 0 where a map is the same everywhere."""
    from scipy.stats import rankdata

    left, right = (rankdata(m.reshape(len(m), -1), axis=1) for m in _pictures(a, b))
    return a.new_tensor(pearson(left, right))


def hog(a: Tensor, b: Tensor) -> Tensor:
    """(B,) correlation of the maps' histograms of oriented gradients; 0 where a map is the same everywhere."""
    left, right = (np.stack([_histograms(m) for m in maps]) for maps in _pictures(a, b))
    return a.new_tensor(pearson(left, right))


def _pictures(a: Tensor, b: Tensor) -> tuple[Flat, Flat]:
    """(B, H, W) twice: absolute values of what the colours add up to."""
    if a.shape != b.shape or a.ndim != 4:
        raise InputError(f"two batches of maps (B, C, H, W) are compared; got {tuple(a.shape)} and {tuple(b.shape)}.")
    left, right = (m.detach().double().sum(1).abs().cpu().numpy() for m in (a, b))
    return left, right


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
