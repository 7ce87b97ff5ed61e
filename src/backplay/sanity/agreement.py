"""Whether two readouts rank images alike, distances of walks and similarities of maps (sec:per-image-orthogonality)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from backplay.errors import InputError
from backplay.sanity.cascade import Step
from backplay.sanity.similarity import pearson


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
    from scipy.stats import rankdata

    known = np.isfinite(a) & np.isfinite(b)
    left, right = (rankdata(side[known])[None] for side in (a, b))
    if known.sum() < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(pearson(left, right)[0])
