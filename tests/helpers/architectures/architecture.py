"""Further families of torchvision, timm and transformers, each by a tiny configuration with random weights.

An `Architecture` says how to build one and what to feed it. `refused` is a piece of the sentence that refuses those
which no game can play; the reason lies in the mathematics.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

F64 = torch.float64
CLASSES = 5
FLOAT32 = 1e-6  # norms, rotary angles and linear attention are computed in float32 whatever the model's precision


def images(side, channels=3):
    """An example of images: what is needed to make a batch of it."""
    return lambda batch: torch.randn(batch, channels, side, side, dtype=F64)


def words(tokens=5, width=16):
    """Embeddings, with every position attended to."""

    def make(batch):
        embeds = torch.randn(batch, tokens, width, dtype=F64)
        return {"inputs_embeds": embeds, "attention_mask": torch.ones(batch, tokens, dtype=torch.long)}

    return make


@dataclass(frozen=True)
class Architecture:
    """One family: `build()` makes the module, `inputs(batch)` what it is given."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    target: Any = field(default_factory=lambda: [1, 3])
    gradient: bool = True  # S9 is checked: the oracle knows all that is detached in it
    rewrites: bool = False  # writes over live values again and again: autograd needs a program without mutations
    relative: float = 1e-10  # how near the gradient is
    refused: str = ""
    slow: bool = False


def timm_class(module, kind, **options):
    """A class of timm, which takes what the named models fix."""

    def build():
        return getattr(import_module(f"timm.models.{module}"), kind)(num_classes=CLASSES, **options)

    return build
