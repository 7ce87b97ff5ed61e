"""Image classifiers in a local folder, as transformers' `save_pretrained` writes them."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from backplay.errors import BackplayError, MissingFileError, ModelError, WeightsError
from backplay.models.checkpoints import RANDOM, Weights, drawn, read_weights, refuse_misfit
from backplay.models.loaded import Loaded, library
from backplay.photographs import pillow

if TYPE_CHECKING:
    from PIL.Image import Image

# local files, and no code out of the folder
SAFELY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load(name: str, weights: Weights = None) -> Loaded:
    """The classifier in a folder; its weights are read from safetensors, or unpickled without running code."""
    folder = Path(name)
    with loading(folder) as transformers:
        _check_files(folder)
        config = transformers.AutoConfig.from_pretrained(folder, **SAFELY)
        processor = transformers.AutoImageProcessor.from_pretrained(folder, **SAFELY)
        model, source = model_of(transformers.AutoModelForImageClassification, folder, config, weights)
        preprocess = _Processed(processor)
        height, width = preprocess(pillow().new("RGB", (64, 64))).shape[1:]
    return Loaded(model.float().eval(), preprocess, _classes(config), (height, width), f"hf:{folder} ({source})")


class _Processed:
    """The folder's own image processor, on one picture."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Image) -> Tensor:
        return self.processor(images=image.convert("RGB"), return_tensors="pt")["pixel_values"][0]


def _check_files(folder: Path) -> None:
    for names in (["config.json"], ["preprocessor_config.json", "processor_config.json"]):
        if not any((folder / name).is_file() for name in names):
            raise MissingFileError(f"hf:{folder} has no {names[0]}; save the model and its image processor there.")


@contextmanager
def loading(folder: Path, what: str = "") -> Generator[Any]:
    """The library transformers while it reads a folder: without its reports, and what it raises in one line.

    `what` the folder should hold is said in the line.
    """
    if not folder.is_dir():
        raise MissingFileError(
            f"hf:{folder} is no folder on this machine, and nothing is downloaded; give the folder that "
            "save_pretrained wrote, or that the hub's cache keeps."
        )
    transformers: Any = library("transformers", "models", "a Hugging Face folder")
    with _quietly(transformers):
        try:
            yield transformers
        except BackplayError:
            raise
        except Exception as error:  # whatever a file with wrong contents brings the libraries to
            raise ModelError(f"hf:{folder} cannot be loaded{what}: {_one_line(error)}") from error


def model_of(auto: Any, folder: Path, config: Any, weights: Weights) -> tuple[Any, str]:
    """The model that one of transformers' `Auto…` classes makes of a folder, and where its weights come from."""
    if weights == RANDOM:
        return drawn(lambda: auto.from_config(config, trust_remote_code=False)), "random weights"
    options: dict[str, Any] = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if weights is None:
        try:
            model, found = auto.from_pretrained(folder, **options, **SAFELY, weights_only=True)
        except pickle.UnpicklingError as error:
            raise WeightsError(
                f"hf:{folder} is refused: its weights pickle more than tensors, and unpickling runs code; "
                "convert them to safetensors where they come from."
            ) from error
        path, source = folder, "its own weights"
    else:
        path, source = Path(weights), Path(weights).name
        kind = type(auto.from_config(config, trust_remote_code=False))
        model, found = kind.from_pretrained(None, **options, state_dict=read_weights(path))
    # transformers draws what is missing and goes on; a map of a half-random network would tell nothing
    shapes = [f"{k} {tuple(given)} for {tuple(own)}" for k, given, own in sorted(found["mismatched_keys"])]
    refuse_misfit(path, type(model).__name__, sorted(found["missing_keys"]), sorted(found["unexpected_keys"]), shapes)
    return model, source


def _classes(config: Any) -> tuple[str, ...] | None:
    labels = tuple(str(config.id2label[k]) for k in sorted(config.id2label))
    unnamed = all(label == f"LABEL_{k}" for k, label in enumerate(labels))
    return None if unnamed else labels


def _one_line(error: Exception) -> str:
    """What a library's error says, in one line."""
    text = " ".join(str(error).split())
    if text and isinstance(error, (OSError, ValueError, ImportError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__  # the others say little without a name


@contextmanager
def _quietly(transformers: Any) -> Generator[None]:
    """Progress bars and load reports would stand between the lines of whoever asked; misfits are raised instead."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
