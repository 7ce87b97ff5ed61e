"""`path.py:factory`: a model that the user's own code builds. Loading it executes that file."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from backplay.errors import MissingFileError, ModelError, suggestion
from backplay.models.checkpoints import RANDOM, Weights, drawn, fit, read_weights
from backplay.models.loaded import Loaded
from backplay.photographs import IMAGENET_MEAN, IMAGENET_STD, Preprocess

SETTINGS = ("mean", "std", "size", "classes")


def load(name: str, weights: Weights = None) -> Loaded:
    """Execute the file, call the function without arguments, and take the model that it returns.

    It returns an `nn.Module`, or a pair of one and a dict with any of `mean`, `std` (three numbers each), `size` (a
    number or (height, width)) and `classes` (names). What it leaves out is ImageNet's: 224 × 224, its mean and std.
    """
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist; give path.py:factory, a file and a function in it.")
    made: list[Any] = []

    def build() -> nn.Module:
        made[:] = [_call(path, function)]
        return _module(name, made[0])

    model = drawn(build) if weights == RANDOM else build()
    if weights is not None and weights != RANDOM:
        fit(model, read_weights(weights), weights, name)
    preprocess, classes = _settings(name, made[0][1] if isinstance(made[0], tuple) else {})
    source = Path(weights).name if weights is not None and weights != RANDOM else "as the factory made it"
    return Loaded(model.eval(), preprocess, classes, preprocess.size, f"{name} ({source})")


def _call(path: Path, function: str) -> Any:
    """What the function returns; whatever goes wrong in the user's file is told in one line, with its place."""
    with _importable(path.parent):
        try:
            module = _execute(path)
        except (Exception, SystemExit) as error:
            raise ModelError(f"{path} cannot be executed: {_line(error)}{_place(error, path)}") from error
        factory = getattr(module, function, None)
        if not callable(factory):
            known = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
            raise ModelError(f"{path} has no function {function!r}{suggestion(function, known)}; give path.py:factory.")
        try:
            return factory()
        except (Exception, SystemExit) as error:
            raise ModelError(f"{path}:{function}() fails: {_line(error)}{_place(error, path)}") from error


def _execute(path: Path) -> ModuleType:
    name = f"backplay_factory_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is no Python file; give path.py:factory.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """The file may import its neighbours, as a script may."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _module(name: str, made: Any) -> nn.Module:
    model = made[0] if isinstance(made, tuple) and len(made) == 2 else made
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} returned {type(model).__name__}; return an nn.Module, or a pair of one and a dict.")
    return model


def _settings(name: str, given: Any) -> tuple[Preprocess, tuple[str, ...] | None]:
    if not isinstance(given, Mapping):
        raise ModelError(f"{name} returned {type(given).__name__} beside the model; return a dict of {_LISTED}.")
    unknown = [str(k) for k in given if k not in SETTINGS]
    if unknown:
        raise ModelError(f"{name} sets {unknown[0]!r}{suggestion(unknown[0], SETTINGS)}; known are {_LISTED}.")
    size = given.get("size", 224)
    height, width = (size, size) if isinstance(size, int) else _numbers(name, "size", size, 2)
    mean = _numbers(name, "mean", given.get("mean", IMAGENET_MEAN), 3)
    std = _numbers(name, "std", given.get("std", IMAGENET_STD), 3)
    if min(height, width) < 1 or int(height) != height or int(width) != width or min(std) <= 0:
        raise ModelError(f"{name} sets size {size} and std {std}; sizes are whole and positive, deviations positive.")
    return Preprocess((int(height), int(width)), mean, std), _names(name, given.get("classes"))


_LISTED = ", ".join(SETTINGS)


def _names(name: str, given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ModelError(f"{name} sets classes to {given!r}; it takes a list with a name for each class.")
    return tuple(str(c) for c in given)


def _numbers(name: str, setting: str, given: Any, count: int) -> tuple[float, ...]:
    sound = isinstance(given, Sequence) and len(given) == count
    if not sound or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in given):
        raise ModelError(f"{name} sets {setting} to {given!r}; it takes {count} numbers.")
    return tuple(float(v) for v in given)


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _place(error: BaseException, path: Path) -> str:
    """` (line 12)`: the last line of the user's file that took part."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            found = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
