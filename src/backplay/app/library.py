"""The models that a page offers: loaded once, captured at their first use, one visitor at a time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from backplay import models
from backplay.errors import InputError, ModelError, instead
from backplay.models.bundled import TEXTS
from backplay.network import Network, capture
from backplay.text.reader import Reader

BUNDLED = ("zoo:vgg", "zoo:resnet", "zoo:vit", "zoo:vgg-spurious", "zoo:text", "zoo:text-spurious")


@dataclass(eq=False)
class Model:
    """A model with what the page knows of it."""

    name: str
    loaded: models.Loaded | models.LoadedText
    lock: threading.RLock = field(default_factory=threading.RLock)  # held by whoever plays on it
    _networks: dict[tuple[int, ...], Network] = field(default_factory=dict[tuple[int, ...], Network])
    _spare: Model | None = None

    @property
    def reads_text(self) -> bool:
        return isinstance(self.loaded, models.LoadedText)

    @property
    def images(self) -> models.Loaded:
        """What was loaded, of a model that sees pictures."""
        assert isinstance(self.loaded, models.Loaded)
        return self.loaded

    @property
    def reader(self) -> Reader:
        """What was loaded, of a model that reads text."""
        assert isinstance(self.loaded, models.LoadedText)
        return Reader(self.loaded.model, self.loaded.tokenizer)

    def classes(self) -> list[str]:
        """A name for each class, as far as they are known."""
        if isinstance(self.loaded, models.Loaded):
            return list(self.loaded.classes or ())
        return list(self.reader.labels)

    def network(self, x: Tensor) -> Network:
        """The captured network for pictures of this shape; a model that is no classifier is refused."""
        shape = tuple(x.shape)
        with self.lock:
            if shape not in self._networks:
                found = capture(self.images.model, x)
                if len(found.output.shape) != 2:
                    answers = tuple(found.output.shape[1:])
                    raise InputError(f"{self.name} answers with {answers} to a picture; the page explains (classes,).")
                self._networks[shape] = found
            return self._networks[shape]

    def spare(self) -> Model:
        """The same model once more, for long work, so that nobody waits for it who only moves a slider."""
        with self.lock:
            if self._spare is None:
                module = copy.deepcopy(self.loaded.model)
                self._spare = Model(self.name, _with(self.loaded, module))
            return self._spare


def _with(loaded: models.Loaded | models.LoadedText, module: nn.Module) -> models.Loaded | models.LoadedText:
    if isinstance(loaded, models.LoadedText):
        return models.LoadedText(module, loaded.tokenizer, loaded.source)
    return models.Loaded(module, loaded.preprocess, loaded.classes, loaded.size, loaded.source)


class Library:
    """Models by name. Only those that the command line named are ever loaded."""

    def __init__(self, names: Sequence[str] = BUNDLED) -> None:
        self.names = tuple(dict.fromkeys(names))
        self._models: dict[str, Model] = {}
        self._lock = threading.RLock()
        self.closed = False  # nothing need be made ready any more

    def find(self, name: str) -> Model:
        """The model of a name, loaded if it is not yet."""
        if name not in self.names:
            raise ModelError(f"no model named {name[:60]!r} is offered here{instead(name, self.names)}.")
        with self._lock:
            if name not in self._models:
                self._models[name] = Model(name, _load(name))
            return self._models[name]

    def warm(self) -> None:
        """Load and capture every model that sees pictures, so that the first visitor need not wait."""
        for name in self.names:
            try:
                model = self.find(name)
                if not model.reads_text and not self.closed:
                    model.network(torch.zeros(1, 3, *model.images.size))
            except Exception:  # whoever chooses this model is told
                continue


def _load(name: str) -> models.Loaded | models.LoadedText:
    if name.removeprefix("zoo:") in TEXTS:
        return models.load_text(name)
    if not name.startswith("hf:"):
        return models.load(name)
    try:
        return models.load_text(name)
    except ModelError:  # no text model: then one that sees pictures, or none, as is told
        return models.load(name)
