"""Weights from files, read without running what is in them, and fitted to a model without leaving anything out."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from backplay.errors import FileError, MissingFileError, MissingLibraryError, WeightsError

RANDOM = "random"  # instead of a file: draw the weights, the same ones every time
Weights = str | Path | None

_WRAPPERS = ("state_dict", "model_state_dict", "model")
# what DataParallel, torch.compile and Lightning put before every key
_PREFIXES = ("module.", "_orig_mod.", "model.")
_SHOWN = 4


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file of safetensors or of `torch.save`, on the CPU; pickled code is refused, never run.

    A state dict may lie under `state_dict`, `model_state_dict` or `model`, as training scripts write it.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFileError(f"{path} does not exist; give a file of weights, or '{RANDOM}' for random ones.")
    if not path.is_file():
        raise FileError(f"{path} is no file; give a file of weights (.safetensors, .pth, .pt, .bin).")
    if path.stat().st_size == 0:
        raise WeightsError(f"{path} is empty; save or fetch it again.")
    return _unwrap(path, _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path))


def fit(model: nn.Module, state: Mapping[str, Tensor], path: str | Path, name: str) -> None:
    """Load a state dict; one line says what is missing, unexpected or of another shape."""
    own = model.state_dict()
    state = _without_prefix(state, own)
    shapes = [f"{k} {tuple(v.shape)} for {tuple(own[k].shape)}" for k, v in state.items() if _differ(v, own.get(k))]
    if shapes:
        missing, unexpected = [k for k in own if k not in state], [k for k in state if k not in own]
    else:
        keys = model.load_state_dict(state, strict=False)
        # tied weights are written once; the twin has the same memory
        given = {own[k].data_ptr() for k in state if k in own}
        missing = [k for k in keys.missing_keys if k not in own or own[k].data_ptr() not in given]
        unexpected = keys.unexpected_keys
    refuse_misfit(path, name, missing, unexpected, shapes)


def refuse_misfit(path: str | Path, name: str, missing: list[str], unexpected: list[str], shapes: list[str]) -> None:
    """Raise unless all three lists are empty."""
    found = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    if any(found.values()):
        listed = "; ".join(f"{len(keys)} {what} ({_some(keys)})" for what, keys in found.items() if keys)
        raise WeightsError(
            f"{path} does not fit {name}: {listed}; give the weights of this very network, or write a factory that "
            "builds yours (path.py:factory)."
        )


def drawn(build: Callable[[], nn.Module]) -> nn.Module:
    """A model with random weights: the same ones every time, and no all-zero matrices.

    Some libraries start heads (and class tokens) at zero, for training. Every map of such a network is zero, so these
    are drawn as well, normal with a standard deviation of 0.02.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build()
        for parameter in model.parameters():
            if parameter.ndim > 1 and not bool(parameter.any()):
                parameter.normal_(std=0.02)
    return model


def in_hub(url: str) -> Path | None:
    """The file that torch.hub keeps of an address, if it is on this machine."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(urlsplit(url).path)
    return path if path.is_file() else None


def no_local(name: str, looked: str) -> WeightsError:
    return WeightsError(
        f"the trained weights of {name} are not on this machine ({looked}), and nothing is downloaded; give their file "
        f"as weights, or '{RANDOM}' for random ones."
    )


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingLibraryError(f"{path} needs safetensors: pip install safetensors") from error
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise WeightsError(f"{path} is no sound safetensors file ({_first_line(error)}); fetch it again.") from error


def _read_pickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols; what cannot be read is raised
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named is None:
            raise _broken(path, "no pickle of tensors alone") from error
        raise WeightsError(
            f"{path} is refused: it pickles {named[1]} beside tensors, and unpickling may run code; "
            "save the state dict alone (torch.save(model.state_dict(), …), or safetensors)."
        ) from error
    except Exception as error:  # zip, tar and pickle readers each have their own
        if "TorchScript" in str(error):
            raise WeightsError(
                f"{path} is a TorchScript archive, which holds code; save the model's state dict instead."
            ) from error
        raise _broken(path, _first_line(error)) from error


def _broken(path: Path, why: str) -> WeightsError:
    return WeightsError(
        f"{path} is broken, truncated or no file of weights ({why}); "
        "give a .safetensors file or what torch.save wrote of a state dict."
    )


def _unwrap(path: Path, found: Any) -> dict[str, Tensor]:
    """The state dict inside what a training script saved."""
    while isinstance(found, Mapping):
        inner = next((found[k] for k in _WRAPPERS if isinstance(found.get(k), Mapping)), None)
        if inner is None:
            state = {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, Tensor)}
            if state:
                return state
            raise WeightsError(
                f"{path} holds no state dict, only {_some([str(k) for k in found]) or 'nothing'}; "
                f"save one, alone or under {', '.join(_WRAPPERS)}."
            )
        found = inner
    raise WeightsError(f"{path} holds a {type(found).__name__}; save the model's state dict instead.")


def _without_prefix(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what stands before every key, unless the model's own keys have it too."""
    state = dict(state)
    for _ in _PREFIXES:
        for prefix in _PREFIXES:
            if all(k.startswith(prefix) for k in state) and not all(k.startswith(prefix) for k in own):
                state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def _differ(given: Tensor, own: Tensor | None) -> bool:
    return own is not None and given.shape != own.shape


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
