"""Running the model itself, as it is: in eval mode, its buffers untouched, its logits read off what it returns."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from backplay.errors import CaptureError

# while one thread exports a model, its parameters are stand-ins: nobody else may capture, read or run a model then
EXPORTING = threading.RLock()


@contextmanager
def evaluation(model: nn.Module) -> Generator[None]:
    """Eval mode for a while; every submodule gets its own mode back."""
    training = [m for m in model.modules() if m.training]
    try:
        for m in training:
            m.training = False
        yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def as_they_are(model: nn.Module, buffers: list[str]) -> Generator[None]:
    """Buffers that the forward pass changes stand aside: it changes copies of them."""
    found = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in buffers]
    before = [(owner, leaf, owner._buffers[leaf]) for owner, leaf in found if owner._buffers.get(leaf) is not None]
    try:
        for owner, leaf, value in before:
            assert value is not None
            owner._buffers[leaf] = value.detach().clone()
        yield
    finally:
        for owner, leaf, value in before:
            owner._buffers[leaf] = value


def logits_of(out: Any) -> Tensor:
    """The output tensor, or `.logits`, or the first tensor."""
    if isinstance(out, Mapping) and "logits" in out:
        return out["logits"]
    out = getattr(out, "logits", out)
    if isinstance(out, Tensor):
        return out
    several = out.values() if isinstance(out, Mapping) else out if isinstance(out, (list, tuple)) else ()
    found = [v for v in several if isinstance(v, Tensor)]
    if not found:
        raise CaptureError(f"the model returns {type(out).__name__} without a tensor; return the logits.")
    return found[0]
