"""The trained weights that come with the package, as safetensors files in the folder `trained`: `load`, `save`."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Literal, overload

from torch import nn

from backplay.errors import InputTypeError, MissingLibraryError
from backplay.zoo.networks import Classifier, build
from backplay.zoo.reading import TextClassifier


@overload
def load(name: Literal["text"], spurious: bool = False) -> TextClassifier: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def load(name: str, spurious: bool = False) -> Classifier: ...
def load(name: str, spurious: bool = False) -> Classifier | TextClassifier:
    """The trained network `name` ("vgg", "resnet", "vit" or "text"), in eval mode.

    `spurious=True` gives the one that learned from pictures in which a tile in the corner matches the label
    (`images(…, spurious=True)`), or from reviews in which the day does (`texts(…, spurious=True)`). The tokenizer of
    the text network is its `.tokenizer`.
    """
    model = TextClassifier() if name == "text" else build(name)
    if not isinstance(spurious, bool):
        raise InputTypeError(f"spurious must be True or False, got {spurious!r}.")
    model.load_state_dict(_safetensors().load_file(stored(name, spurious)))
    return model.eval()


def stored(name: str, spurious: bool = False) -> Path:
    """The file that `load` reads."""
    return Path(__file__).parent / "trained" / f"{name}{'-spurious' if spurious else ''}.safetensors"


def save(model: nn.Module, path: Path) -> None:
    """Write what `load` reads."""
    _safetensors().save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)


def _safetensors() -> ModuleType:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise MissingLibraryError("the zoo's weights need safetensors: pip install 'backplay[zoo]'") from error
