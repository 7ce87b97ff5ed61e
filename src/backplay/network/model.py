"""What may be given as a model: a module, a captured network, or something that holds a module."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from backplay.errors import InputTypeError
from backplay.network.graph import Network


class Holder(Protocol):
    """A module with what belongs to it, such as a loaded model with its preprocessing."""

    @property
    def model(self) -> nn.Module: ...


Model = nn.Module | Network | Holder


def read_model(model: object, asking: str = "a game") -> nn.Module | Network:
    """The module or the network that is meant."""
    if isinstance(model, (nn.Module, Network)):
        return model
    held = getattr(model, "model", None)
    if isinstance(held, nn.Module) and not isinstance(model, type):
        return held
    raise InputTypeError(
        f"{asking} takes a torch.nn.Module, a backplay.Network or a loaded model, got {type(model).__name__}; "
        "wrap a function in a module's forward."
    )
