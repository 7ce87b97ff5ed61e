"""What a mean is worth: bootstrap intervals, and tests of paired differences.

Both draw with a fixed seed: the same rows give the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
FLIPS = 10_000
EXACT = 12  # pairs up to which all flips of signs are tried
CONFIDENCE = 0.95

Values = NDArray[np.float64]


def interval(values: Values, seed: int = 0) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean, 95 %."""
    if len(values) < 2:
        return (float("nan"), float("nan"))
    draws = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    means = values[draws].mean(1)
    tail = (1 - CONFIDENCE) / 2
    return float(np.quantile(means, tail)), float(np.quantile(means, 1 - tail))


def paired(differences: Values, seed: int = 0) -> float:
    """The two-sided p-value of a mean difference of 0: each sign could as well have been the other.

    Of a few pairs all signs are tried; of more, 10,000 draws, the observed one counted among them.
    """
    if len(differences) < 2:
        return float("nan")
    observed = abs(differences.sum())
    slack = 1e-12 * np.abs(differences).sum()  # sums in another order are equal
    if len(differences) <= EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=len(differences))))
        return float((np.abs(signs @ differences) >= observed - slack).mean())
    signs = np.random.default_rng(seed).choice((1.0, -1.0), (FLIPS, len(differences)))
    return float((1 + (np.abs(signs @ differences) >= observed - slack).sum()) / (1 + FLIPS))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for as many tests as there are numbers (Holm 1979); NaN stays NaN and does not count."""
    p = np.asarray(p_values, dtype=np.float64)
    order = [int(k) for k in np.argsort(p) if not np.isnan(p[k])]
    adjusted, highest = p.copy(), 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p[k]))
        adjusted[k] = highest
    return adjusted.tolist()
