"""The model itself, run or followed in eval mode and given back as it was; its logits read off what it returns."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from backplay.errors import CaptureError
from backplay.network.precision import in_single

_EXPERTS, _GROUPED = "_experts_implementation", "grouped_mm"

# while one thread exports a model, its parameters are stand-ins: nobody else may capture, read or run a model then
EXPORTING = threading.RLock()


@contextmanager
def evaluation(model: nn.Module) -> Generator[None]:
    """Eval mode for a while; every submodule gets its own mode back.

    torch multiplies the tokens of each expert by its weights in one grouped product, which it has in float32 and less:
    in float64 the experts of a transformers model are computed token by token meanwhile.
    """
    training = [m for m in model.modules() if m.training]
    double = any(p.dtype == torch.float64 for p in model.parameters())
    try:
        for m in training:
            m.training = False
        with experts_by_token(model, _GROUPED) if double else nullcontext():
            yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def with_copied_buffers(model: nn.Module, buffers: list[str]) -> Generator[None]:
    """For a while copies stand in for the buffers that the forward pass changes; then the buffers are back."""
    owners = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in buffers]
    before = [(owner, leaf, owner._buffers[leaf]) for owner, leaf in owners if owner._buffers.get(leaf) is not None]
    try:
        for owner, leaf, value in before:
            assert value is not None
            owner._buffers[leaf] = value.detach().clone()
        yield
    finally:
        for owner, leaf, value in before:
            owner._buffers[leaf] = value


@contextmanager
def experts_by_token(model: nn.Module, instead_of: str | None = None) -> Generator[None]:
    """Experts of a transformers model computed token by token for a while; every configuration gets its choice back.

    With `instead_of`, only where that implementation is chosen.

    By default its mixtures sort all tokens of a batch by their expert, so that samples lie mixed up in one tensor.
    Token by token, each with the weights of its own experts, it is the same function, in an order that a walk follows.
    """
    configurations: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        choice = None if config is None else getattr(config, _EXPERTS, None)
        if choice is not None and instead_of in (None, choice):
            configurations[id(config)] = config
    before = [(config, getattr(config, _EXPERTS)) for config in configurations.values()]
    try:
        for config, _ in before:
            setattr(config, _EXPERTS, "batched_mm")
        yield
    finally:
        for config, choice in before:
            setattr(config, _EXPERTS, choice)


def answer(model: nn.Module, inputs: Mapping[Any, Any], half: bool, buffers: list[str]) -> Tensor:
    """What a model itself computes, in eval mode; half precision is evaluated in float32 (S38).

    `buffers` are those that its forward pass may change. It may change its input in place, too.
    """
    inputs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
    args = [v for k, v in inputs.items() if isinstance(k, int)]
    kwargs = {k: v for k, v in inputs.items() if isinstance(k, str)}
    with EXPORTING, evaluation(model), in_single(half), with_copied_buffers(model, buffers):
        out = model(*args, **kwargs)
    return logits_of(out)


def logits_of(out: Any) -> Tensor:
    """The output tensor, or `.logits`, or the first tensor."""
    out = out["logits"] if isinstance(out, Mapping) and "logits" in out else getattr(out, "logits", out)
    if isinstance(out, Tensor):
        return out
    several = out.values() if isinstance(out, Mapping) else out if isinstance(out, (list, tuple)) else ()
    tensors = [v for v in several if isinstance(v, Tensor)]
    if not tensors:
        raise CaptureError(f"the model returns {type(out).__name__} without a tensor; return the logits.")
    return tensors[0]


def own_name(target: str) -> str:
    """The name of a tensor or module in the model itself: for the export it is wrapped once, as `model`."""
    return target.removeprefix("model").removeprefix(".")
