"""A model that was refused, run on the caller's own input: is it that input which does not fit?"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from backplay.errors import BackplayError, CaptureError, InputError, first_line
from backplay.network.arguments import Arguments
from backplay.network.precision import is_half
from backplay.network.running import answer


def check_runs(model: nn.Module, given: Arguments, doubled: Arguments) -> None:
    """Refuse the input if the model itself fails on it; the model's own error is the cause.

    `doubled` is the same where one sample was made two, as the exporter needs them.
    """
    name, own = type(model).__name__, _run(model, given)
    if isinstance(own, Tensor):
        _check_two(model, given, doubled)
        return
    if isinstance(own, BackplayError):
        raise own
    if any(isinstance(_run(model, single), Tensor) for single in _unsqueezed(given)):
        label, shape = given.label(given.explained[0]), tuple(given.x.shape)
        raise InputError(
            f"the {label} needs a batch dimension, got shape {shape}; {name} takes x[None], so give that."
        ) from own
    raise CaptureError(
        f"{name} itself fails on {given.described()}: {first_line(own)}\nGive it an input that its forward accepts."
    ) from own


def _check_two(model: nn.Module, given: Arguments, doubled: Arguments) -> None:
    """Refuse a model that takes one sample and no two."""
    two = _run(model, doubled) if given.batch == 1 else None
    if isinstance(two, Exception):
        raise CaptureError(
            f"{type(model).__name__} takes {given.described()}, but fails on two such samples: {first_line(two)}\n"
            "Write its forward for any number of samples: x.shape[0] instead of 1."
        ) from two


def _run(model: nn.Module, inputs: Arguments) -> Tensor | Exception:
    """The model's logits, or its error."""
    half = any(is_half(tensor) for tensor in model.parameters())
    try:
        return answer(model, inputs, half, [name for name, _ in model.named_buffers()])
    except Exception as error:
        return error


def _unsqueezed(given: Arguments) -> Iterator[Arguments]:
    """The input as one sample of a batch; what is held fixed beside it may lack the same dimension."""
    yield given.at([x[None] for x in given.xs])
    fixed = {k: v[None] for k, v in given.fixed.items() if isinstance(v, Tensor)}
    if fixed:
        yield given.at([x[None] for x in given.xs]).with_values(fixed)
