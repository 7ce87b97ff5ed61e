"""A map as a picture: red speaks for the class, blue against it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from backplay.photographs import pillow

# from dark blue over white to dark red, at −1, −½, 0, ½ and 1
_STOPS = np.linspace(-1, 1, 5)
_COLOURS = np.array([(5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31)], dtype=float)


def draw(heat: Tensor) -> np.ndarray:
    """(H, W, 3) uint8 of a map (C, H, W): channels summed, darkest at the 99.5 % quantile of the absolute values."""
    values = np.nan_to_num(heat.detach().double().sum(0).numpy())
    reach = float(np.quantile(np.abs(values), 0.995)) or float(np.abs(values).max()) or 1.0
    scaled = np.clip(values / reach, -1, 1)
    return np.stack([np.interp(scaled, _STOPS, _COLOURS[:, c]) for c in range(3)], -1).round().astype(np.uint8)


def png(heat: Tensor, path: object) -> None:
    """Write the picture of a map (C, H, W), whatever the path ends with."""
    pillow().fromarray(draw(heat)).save(path, format="PNG")
