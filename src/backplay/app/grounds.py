"""What a scene is played on: pixels of a picture, or tokens of a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backplay import zoo
from backplay.app.library import Model
from backplay.app.scene import LONGEST, Scene
from backplay.app.uploads import PREFIX, Uploads
from backplay.entry import without_gradients
from backplay.errors import InputError
from backplay.network import Network
from backplay.network.captures import Captures
from backplay.photographs import pillow
from backplay.text.batches import Batch, batches
from backplay.text.explaining import Route, read_text
from backplay.text.targets import Goal, read_goal
from backplay.text.tokens import Tokens
from backplay.view.images import Shown, looks_of, shown_image

PICTURES = (*(f"example:{k}" for k in range(8)), *(f"cue:{k}" for k in range(4)))
SENTENCES = 6  # bundled ones


@dataclass(frozen=True, eq=False)
class Pixels:
    """A picture as a network takes it."""

    model: Model
    x: Tensor  # (1, 3, H, W)
    file: str  # the name of an uploaded picture; "" of a bundled one

    @cached_property
    def network(self) -> Network:
        return self.model.network(self.x)

    @property
    def inputs(self) -> Tensor:
        """What a game plays on."""
        return self.x

    @cached_property
    def shown(self) -> Shown:
        """(H, W, 3) its colours."""
        return shown_image(self.x, looks_of(self.model.images), 0)

    @cached_property
    def predicted(self) -> int:
        """The class that the model answers."""
        with without_gradients():
            return int(self.network.model_logits({self.network.keys[0]: self.x})[0].argmax())

    def target(self, wanted: int | None) -> int:
        """The class to explain; refused if there is none of that number."""
        count = self.network.output.shape[1]
        if wanted is not None and not 0 <= wanted < count:
            raise InputError(f"there is no class {wanted}; the model has the classes 0 to {count - 1}.")
        return self.predicted if wanted is None else wanted

    def class_name(self, index: int) -> str:
        return self.model.images.class_name(index)

    def gather(self, tensor: Tensor) -> NDArray[np.float64]:
        """(H, W) of something like the input, channels summed."""
        return tensor[0].double().sum(0).cpu().numpy()

    def mask(self, at: tuple[int, ...]) -> Tensor:
        """True at a pixel, in all its channels."""
        height, width = self.x.shape[2:]
        if len(at) != 2 or not (0 <= at[0] < height and 0 <= at[1] < width):
            raise InputError(f"there is no pixel {at}; the picture has {height} rows and {width} columns.")
        found = torch.zeros_like(self.x, dtype=torch.bool)
        found[:, :, at[0], at[1]] = True
        return found


@dataclass(frozen=True, eq=False)
class Words:
    """A sentence as a text model takes it."""

    model: Model
    tokens: Tokens
    answer: Tensor  # (classes,) or (T, classes)
    batch: Batch

    @cached_property
    def network(self) -> Network:
        with self.model.lock:
            return Captures.held(self.model.reader.model).prepare(self.batch.arguments)[0]

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What a game plays on."""
        return self.batch.arguments

    @property
    def start(self) -> int:
        """Where the sentence begins, behind its padding."""
        return self.batch.starts[0]

    @property
    def predicted(self) -> int:
        """The class that the model answers."""
        return self.goal(None).index

    def goal(self, wanted: int | None) -> Goal:
        """The logit to explain."""
        return read_goal(self.model.reader, self.tokens, self.answer, wanted, None)

    def target(self, wanted: int | None) -> list[tuple[int, ...]]:
        """The logit to explain, as games take it."""
        return [self.goal(wanted).target(self.start)]

    def class_name(self, index: int) -> str:
        return self.goal(index).name

    def gather(self, tensor: Tensor) -> NDArray[np.float64]:
        """(T,) of something like the embeddings, their features summed."""
        return tensor[0, self.start : self.start + len(self.tokens)].double().sum(-1).cpu().numpy()

    def scores(self, heat: Any, game: str, keywords: dict[str, Any]) -> NDArray[np.float64]:
        """(T,) a map by tokens, as `bp.text.explain` gives it: of a gradient its length at each."""
        tensor = next(iter(heat.values())) if isinstance(heat, dict) else heat
        summed = Route.named(self.model.reader, game, keywords).by_token(tensor)
        return summed[0, self.start : self.start + len(self.tokens)].double().numpy()

    def mask(self, at: tuple[int, ...]) -> Tensor:
        """True at a token, in all its features."""
        if len(at) != 1 or not 0 <= at[0] < len(self.tokens):
            raise InputError(f"there is no token {at}; the sentence has {len(self.tokens)}.")
        found = torch.zeros_like(self.batch.arguments["inputs_embeds"], dtype=torch.bool)
        found[:, self.start + at[0]] = True
        return found


Ground = Pixels | Words


def ground_of(scene: Scene, model: Model, uploads: Uploads) -> Ground:
    """What a scene is played on."""
    if model.reads_text:
        return _words(scene.text, model)
    if scene.picture.startswith(PREFIX):
        path = uploads.find(scene.picture)
        return Pixels(model, model.images.photograph(path)[None], path.name)
    return Pixels(model, _bundled(scene.picture, model), "")


def _words(text: str, model: Model) -> Words:
    if len(text) > LONGEST:
        raise InputError(f"the sentence has {len(text)} letters; give {LONGEST} or fewer.")
    reader = model.reader
    with model.lock:
        tokens = read_text(reader, text)
        answer = reader.answer(tokens)
        (batch,) = batches(reader, [tokens], [answer])
    return Words(model, tokens, answer, batch)


def _bundled(picture: str, model: Model) -> Tensor:
    """(1, 3, H, W): a generated picture, as it is for the networks that were trained on such, else preprocessed."""
    x = bundled_input(picture)
    if model.name.startswith("zoo:"):
        return x
    colours = (255 * zoo.picture(x)[0].permute(1, 2, 0)).round().byte().numpy()
    return model.images.preprocess(pillow().fromarray(colours))[None]


def bundled_input(picture: str) -> Tensor:
    """(1, 3, 96, 96): a picture of the test split, `cue:` with the misleading cue."""
    if picture not in PICTURES:
        raise InputError(f"there is no picture {picture[:40]!r}; choose an example or upload one.")
    kind, _, number = picture.partition(":")
    return zoo.images(1, start=int(number), spurious="wrong" if kind == "cue" else False).x


def sentences() -> list[str]:
    """The bundled sentences."""
    return list(zoo.texts(SENTENCES).texts)
