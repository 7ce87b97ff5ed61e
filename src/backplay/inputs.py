"""Targets as callers give them: a class, an index for each sample, or weights over the logits (S26b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError, NonFiniteError

Target = int | Sequence[Any] | Tensor | None


class Padded(Protocol):
    """Forward arguments, one of which may be an attention mask."""

    def mask(self, positions: int) -> Tensor | None:
        """(B, positions) which are read, above 0, and which are padding; None where nothing says so."""
        ...


@dataclass(frozen=True)
class Aim:
    """What is explained: `Σ w · logits` of each sample (S26b).

    Of one logit a sample `index` (B,) says which, in its flattened output, and `weights` are None.
    """

    shape: torch.Size  # of the logits
    index: Tensor | None
    weights: Tensor | None = None

    @property
    def of_class(self) -> bool:
        """Whether it is a score of a classifier: one row of logits a sample."""
        return len(self.shape) == 2

    @property
    def given(self) -> Any:
        """The same as a target: (B, n) indices, or weights like the logits."""
        if self.index is None:
            assert self.weights is not None
            return self.weights
        return torch.stack(torch.unravel_index(self.index, self.shape[1:]), 1)

    def part(self, samples: slice) -> Aim:
        """What is explained of some samples."""
        index, weights = (None if t is None else t[samples] for t in (self.index, self.weights))
        count = len(range(self.shape[0])[samples])
        return Aim(torch.Size((count, *self.shape[1:])), index, weights)

    def signed(self, like: Tensor) -> Tensor:
        """`w`, in the shape of the logits: what `Γ` is the pull of."""
        if self.weights is not None:
            return self.weights
        assert self.index is not None
        root = torch.zeros(self.shape, dtype=like.dtype, device=like.device)
        root.flatten(1).scatter_(1, self.index[:, None], 1.0)
        return root

    def walk(self, like: Tensor) -> Tensor:
        """The first states of the walk: probability `|w| / Σ|w|`, with the sign of the player that begins."""
        root = self.signed(like)
        if self.weights is None:
            return root
        rows = root.flatten(1) / root.flatten(1).abs().amax(1, keepdim=True)  # sums of tiny weights are in range too
        return (rows / rows.abs().sum(1, keepdim=True)).view(self.shape)

    def value(self, logits: Tensor) -> Tensor:
        """(B,) `Σ w · logit`."""
        if self.index is not None:
            return logits.flatten(1).gather(1, self.index[:, None])[:, 0]
        return (logits * self.signed(logits)).flatten(1).sum(1)

    def relevance(self, logits: Tensor) -> Tensor:
        """`w · logit`, in the shape of the logits."""
        return self.signed(logits) * logits


def read_target(target: Target, logits: Tensor, inputs: Padded | None = None) -> Aim:
    """What a target means for an output of shape (B, …, K).

    A target is a class, a whole index (position…, class), or weights like the logits or like one sample's. On
    (B, T, K) a bare class means the last position that an attention mask among `inputs` does not call padding; None is
    the largest logit there. On more dimensions there is no such position, and both are refused.
    """
    if logits.ndim < 2:
        raise InputError(
            f"the model's output must be (B, classes) or (B, …, classes), got {tuple(logits.shape)}; "
            "return out[:, None] for a single score."
        )
    target = _plain(target)
    if isinstance(target, Tensor) and target.is_floating_point() and target.ndim:
        return Aim(logits.shape, None, _weights(target, logits))
    index = _indices(target, logits, inputs)
    _check_range(index, logits.shape[1:])
    shape = logits.shape[1:]
    strides = torch.tensor([shape[k + 1 :].numel() for k in range(len(shape))])
    return Aim(logits.shape, (index * strides).sum(1).to(logits.device))


def _plain(target: Target) -> Any:
    """Numpy arrays as tensors; numbers within a tuple as numbers."""
    if isinstance(target, tuple):
        return tuple(int(t) if isinstance(t, Tensor) and t.ndim == 0 else t for t in target)
    if not isinstance(target, Tensor) and hasattr(target, "tolist") and hasattr(target, "dtype"):
        return torch.as_tensor(target)
    return target


def _weights(target: Tensor, logits: Tensor) -> Tensor:
    """Weights over the logits, one set for each sample."""
    if target.shape not in (logits.shape, logits.shape[1:]):
        raise InputError(
            f"target of {target.dtype} and shape {tuple(target.shape)} is neither integers nor weights like the logits "
            f"{tuple(logits.shape)} or like one sample's {tuple(logits.shape[1:])}; give one of these."
        )
    weights = target.detach().to(logits).expand(logits.shape).clone()
    bad = ~torch.isfinite(weights)
    if bool(bad.any()):
        raise NonFiniteError(f"the target holds {int(bad.sum())} NaN or infinite weights; give finite ones.")
    empty = (weights.flatten(1) == 0).all(1).nonzero()[:, 0].tolist()
    if empty:
        raise InputError(f"the target weights of sample {empty[0]} are all 0: there is nothing to explain.")
    return weights


def _indices(target: Any, logits: Tensor, inputs: Padded | None) -> Tensor:
    """(B, n) the whole index of each sample's target."""
    batch, depth = logits.shape[0], logits.ndim - 1
    classes = _classes(target, batch, depth)
    if classes is not None and classes.ndim == 2:
        if classes.shape[1] != depth:
            raise InputError(
                f"target of shape {tuple(classes.shape)} does not fit {batch} samples with outputs "
                f"{tuple(logits.shape[1:])}; give one class, a class for each sample, or {depth} indices each."
            )
        return classes
    if depth > 2:
        raise InputError(
            f"target {target!r} does not say which of the outputs {tuple(logits.shape[1:])} is meant; give a whole "
            "index such as (class, row, column), or weights over them."
        )
    place = torch.zeros(batch, 0, dtype=torch.long) if depth == 1 else _last(logits, inputs)[:, None]
    if classes is None:
        here = (
            logits if depth == 1 else logits[torch.arange(batch, device=logits.device), place[:, 0].to(logits.device)]
        )
        classes = here.argmax(-1).cpu()
    return torch.cat([place, classes[:, None]], 1)


def _last(logits: Tensor, inputs: Padded | None) -> Tensor:
    """(B,) the last position that is no padding."""
    length = logits.shape[1]
    mask = None if inputs is None else inputs.mask(length)
    places = torch.arange(length).expand(logits.shape[0], -1)
    if mask is None:
        return places[:, -1]
    seen = torch.where(mask.cpu() > 0, places, -1).amax(1)
    return torch.where(seen < 0, length - 1, seen)


def _classes(target: Any, batch: int, depth: int) -> Tensor | None:
    """(B,) classes or (B, n) whole indices; None where the largest logit is meant."""
    if target is None:
        return None
    if isinstance(target, bool) or not isinstance(target, (int, Tensor, Sequence)) or isinstance(target, str):
        raise InputTypeError(
            f"target must be None, an int, a tuple of ints, a list or tensor with one entry a sample, or weights like "
            f"the logits, got {type(target).__name__}."
        )
    if _is_index(target, depth):
        return torch.tensor(target).expand(batch, -1)
    try:
        tensor = torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"target {target!r} is no integer or sequence of integers.") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputTypeError(f"target must hold integers, got {tensor.dtype}; weights over the logits are a tensor.")
    tensor = tensor.detach().to("cpu", torch.long)
    if tensor.ndim == 0:
        return tensor.expand(batch)
    if tensor.shape[0] != batch or tensor.ndim > 2:
        raise InputError(f"{tensor.shape[0]} targets for {batch} samples: give one target, or one for each sample.")
    return tensor


def _is_index(target: Any, depth: int) -> bool:
    """A tuple of numbers is one index for all samples; on (B, K) one of several numbers can only be a list."""
    numbers = isinstance(target, tuple) and all(isinstance(t, int) and not isinstance(t, bool) for t in target)
    return numbers and len(target) > 0 and (depth > 1 or len(target) == 1)


def _check_range(index: Tensor, shape: torch.Size) -> None:
    bad = (index < 0) | (index >= torch.tensor(shape))
    if bool(bad.any()):
        first = index[bad.any(1)][0].tolist()
        given = first[0] if len(first) == 1 else tuple(first)
        accepted = f"0 to {shape[-1] - 1}" if len(shape) == 1 else f"indices into {tuple(shape)}"
        has = f"{shape[-1]} classes" if len(shape) == 1 else f"outputs of shape {tuple(shape)}"
        raise InputError(f"target {given} is out of range: the model has {has}, so give {accepted}.")


def read_targets(targets: Any) -> list[Any]:
    """Several targets, each such as `play` takes."""
    given: Any = _plain(targets)
    if isinstance(given, Tensor) and given.ndim:
        given = given.tolist() if given.ndim == 1 and not given.is_floating_point() else list(given)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputTypeError(
            f"targets must be a list with a target for each play, got {type(targets).__name__}; give targets=[3, 5]."
        )
    if not len(given):
        raise InputError("targets is an empty list: give at least one target.")
    return list(given)


# ---------------------------------------------------------------- parts of a batch


def part_of(target: Target, batch: int, depth: int, part: slice) -> Any:
    """The target of some samples of a batch; what is one for all samples stays."""
    plain: Any = _plain(target)
    if isinstance(plain, Tensor) and plain.is_floating_point():
        return plain[part] if plain.ndim == depth + 1 and plain.shape[0] == batch else plain
    several = isinstance(plain, (Tensor, Sequence)) and not isinstance(plain, str)
    if not several or _is_index(plain, depth) or (isinstance(plain, Tensor) and plain.ndim == 0):
        return plain
    if len(plain) != batch:
        raise InputError(f"{len(plain)} targets for {batch} samples: give one target, or one for each sample.")
    return plain[part]


# ---------------------------------------------------------------- padding


def check_hidden(inputs: Padded, maps: Sequence[Tensor], aim: Aim) -> None:
    """Refuse a class score that rests on positions which the attention mask hides.

    Causal classifiers read the last position: right of a padded text, where its embeddings are given, that is padding.
    """
    if not aim.of_class:
        return
    for found in maps:
        mask = inputs.mask(found.shape[1]) if found.ndim == 3 else None
        if mask is None:
            continue
        hidden = (mask == 0) & (mask.amax(1, keepdim=True) > 0)
        # a map of NaN rests on nothing that could be named: whoever asks for it is told of that instead
        read = (found.nan_to_num(0.0, 0.0, 0.0).ne(0).any(2) & hidden).nonzero()
        if len(read):
            sample, position = read[-1].tolist()
            side = "left" if bool(mask[sample, :position].any()) else "right"
            raise InputError(
                f"the score rests on position {position} of sample {sample}, which attention_mask hides: the model "
                f"reads padding.\nPad on the {side}, play texts of one length together, or leave attention_mask out if "
                "the model is meant to read these positions."
            )
