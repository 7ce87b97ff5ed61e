"""Experts of a transformers model, token by token.

By default its mixtures sort all tokens of a batch by their expert, so that samples lie mixed up in one tensor. They can
also be computed token by token, each with the weights of its own experts: the same function, in an order that a walk
can follow.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import nn

_CHOICE = "_experts_implementation"


@contextmanager
def experts_by_token(model: nn.Module) -> Generator[None]:
    """For a while; every configuration gets its own choice back."""
    configurations: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, _CHOICE, None) is not None:
            configurations[id(config)] = config
    before = [(config, getattr(config, _CHOICE)) for config in configurations.values()]
    try:
        for config, _ in before:
            setattr(config, _CHOICE, "batched_mm")
        yield
    finally:
        for config, choice in before:
            setattr(config, _CHOICE, choice)
