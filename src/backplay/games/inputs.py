"""Inputs and targets as callers give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError

Inputs = Tensor | Mapping[str, Any]
Target = int | Sequence[Any] | Tensor | None


def read_inputs(x: Inputs, extra: Any = None) -> dict[Any, Any]:
    """Forward arguments by position or keyword: a tensor is position 0, `extra` what follows it."""
    if isinstance(x, Mapping):
        if extra is not None:
            raise InputError("additional_forward_args goes with a tensor input; put them into the dict of keywords.")
        return dict(x)
    rest = () if extra is None else extra if isinstance(extra, tuple) else (extra,)
    return {0: x, **dict(enumerate(rest, 1))}


def read_target(target: Target, logits: Tensor) -> Tensor:
    """Flat index of the target among each sample's outputs, (B,).

    For an output of shape (B, …, K) a target is a class or a tuple (position…, class); a bare class on (B, T, K)
    means the last position; None is the largest logit (there: of the last position).
    """
    batch, shape = logits.shape[0], logits.shape[1:]
    if logits.ndim < 2:
        raise InputError(
            f"the model's output must be (B, classes) or (B, …, classes), got {tuple(logits.shape)}; "
            "return out[:, None] for a single score."
        )
    classes = _classes(target, logits)
    if classes.ndim == 1:
        last = torch.tensor([s - 1 for s in shape[:-1]], dtype=torch.long).expand(batch, -1)
        classes = torch.cat([last, classes[:, None].cpu()], 1)
    if classes.shape != (batch, len(shape)):
        raise InputError(
            f"target of shape {tuple(classes.shape)} does not fit {batch} samples with outputs {tuple(shape)}; "
            f"give None, one class, a class for each sample, or tuples of {len(shape)} indices."
        )
    sizes = torch.tensor(shape)
    if bool(((classes < 0) | (classes >= sizes)).any()):
        bad = classes[((classes < 0) | (classes >= sizes)).any(1)][0].tolist()
        given = bad[0] if len(bad) == 1 else tuple(bad)
        accepted = f"0 to {shape[-1] - 1}" if len(shape) == 1 else f"indices into {tuple(shape)}"
        raise InputError(f"target {given} is out of range: the model has {shape[-1]} classes, so give {accepted}.")
    strides = torch.tensor([int(torch.tensor(shape[k + 1 :]).prod()) for k in range(len(shape))])
    return (classes * strides).sum(1).to(logits.device)


def _classes(target: Target, logits: Tensor) -> Tensor:
    """(B,) classes or (B, n) index tuples."""
    batch, depth = logits.shape[0], logits.ndim - 1
    if isinstance(target, tuple):
        target = tuple(int(t) if isinstance(t, Tensor) and t.ndim == 0 else t for t in target)
    elif not isinstance(target, Tensor) and hasattr(target, "tolist"):  # numpy
        target = target.tolist()  # type: ignore[union-attr]
    if target is None:
        last = logits
        for _ in range(depth - 1):
            last = last[:, -1]
        return last.argmax(-1)
    if isinstance(target, bool) or not isinstance(target, (int, Tensor, Sequence)) or isinstance(target, str):
        raise InputTypeError(
            f"target must be None, an int, a sequence or a (B,) tensor of ints, got {type(target).__name__}."
        )
    if isinstance(target, tuple) and depth > 1 and len(target) == depth and all(isinstance(t, int) for t in target):
        return torch.tensor(target).expand(batch, -1)
    try:
        tensor = torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"target {target!r} is no integer or sequence of integers.") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputTypeError(f"target must hold integers, got {tensor.dtype}.")
    tensor = tensor.detach().to("cpu", torch.long)
    if tensor.ndim == 0:
        return tensor.expand(batch)
    if tensor.shape[0] != batch or tensor.ndim > 2:
        raise InputError(f"{tensor.shape[0]} targets for {batch} samples: give one target, or one for each sample.")
    return tensor
