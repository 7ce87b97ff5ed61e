"""What commands write: JSON, pictures of maps, whole files or none."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from backplay.errors import FileError
from backplay.photographs import pillow


def print_json(value: Any) -> None:
    """One line of JSON on standard output; NaN and infinities, which JSON has not, become null."""
    print(json.dumps(_finite(value), ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def folder(path: Path) -> Path:
    """The folder, made if need be, that can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror}; name one that you may write to.") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileError(f"the folder {path} may not be written to; name one that you may write to.")
    return path


def check_folder(path: Path) -> Path:
    """The path, once it is clear that `folder` could make it: asked early, so that a failure leaves no empty folder."""
    there = next(above for above in (path, *path.absolute().parents) if above.exists())
    if not there.is_dir():
        raise FileError(f"cannot make the folder {path}: {there} is a file; name one that you may write to.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(f"the folder {there} may not be written to; name one that you may write to.")
    return path


@contextmanager
def whole(path: Path) -> Generator[Path]:
    """A path to write to, which becomes `path` once all is written; until then, `path` is as it was."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


# from dark blue over white to dark red, at −1, −½, 0, ½ and 1
_STOPS = np.linspace(-1, 1, 5)
_COLOURS = np.array([(5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31)], dtype=float)


def colours(heat: Tensor) -> np.ndarray:
    """(H, W, 3) uint8 of a map (C, H, W): channels summed, darkest at the 99.5 % quantile of the absolute values."""
    values = np.nan_to_num(heat.detach().double().sum(0).numpy())
    reach = float(np.quantile(np.abs(values), 0.995)) or float(np.abs(values).max()) or 1.0
    scaled = np.clip(values / reach, -1, 1)
    return np.stack([np.interp(scaled, _STOPS, _COLOURS[:, c]) for c in range(3)], -1).round().astype(np.uint8)


def png(heat: Tensor, path: object) -> None:
    """Write the picture of a map (C, H, W), whatever the path ends with."""
    pillow().fromarray(colours(heat)).save(path, format="PNG")
