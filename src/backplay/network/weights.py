"""What is derived from a model's tensors: prepared once, rebuilt when a source has changed (S1)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from backplay.errors import NonFiniteError
from backplay.network.nodes import Node
from backplay.network.precision import HALF, is_half, precision_of

_SAMPLED = 64  # entries of a tensor that a look reads


class Mark(NamedTuple):
    """Where a tensor lies, and torch's counter of changes in place."""

    pointer: int
    version: int
    shape: torch.Size
    stride: tuple[int, ...]  # a transposed view of the same memory is another tensor
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: Tensor) -> Mark:
        version = 0 if tensor.is_inference() else tensor._version
        return Mark(tensor.data_ptr(), version, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


@dataclass(frozen=True)
class Snapshot:
    """What a look at a model's tensors saw: it tells whether they are as they were, and costs next to nothing (S1).

    Every change through torch moves a pointer or a version counter. A change behind the counter, by `.data` or numpy,
    is seen if it touches an entry that is sampled.
    """

    marks: dict[str, Mark]
    views: list[list[Tensor]]  # of the sampled entries where they lie, those of one dtype and device together
    entries: list[Tensor]  # what these held then

    @staticmethod
    def at(tensors: dict[str, Tensor]) -> Snapshot:
        samples = sorted((_sample(t) for t in tensors.values()), key=_kind)
        views = [list(group) for _, group in itertools.groupby(samples, _kind)]
        return Snapshot({name: Mark.of(t) for name, t in tensors.items()}, views, _read(views))

    def still(self, tensors: dict[str, Tensor]) -> bool:
        """Whether the tensors are as they were."""
        marks = {name: Mark.of(t) for name, t in tensors.items()}
        # as long as no pointer has moved, the views of that time show the present entries
        return marks == self.marks and _equal(self.entries, _read(self.views))

    def changed(self, tensors: dict[str, Tensor]) -> str | None:
        """The name of the first tensor that is not as it was, of real numbers before counters; None if all are."""
        if self.still(tensors):
            return None
        marks = {name: Mark.of(t) for name, t in tensors.items()}
        other = {name for name in (*self.marks, *marks) if marks.get(name) != self.marks.get(name)}
        other |= {
            name for name, was, view in self._sampled() if name not in other and not _equal([was], _read([[view]]))
        }
        real = [name for name, mark in {**self.marks, **marks}.items() if mark.dtype.is_floating_point]
        return next((name for name in (*real, *self.marks, *marks) if name in other), "one of its tensors")

    def _sampled(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each tensor's name, its sampled entries as they were, and the view of these."""
        names = iter(sorted(self.marks, key=lambda name: _kind(self.marks[name])))  # as the views lie
        for group, entries in zip(self.views, self.entries, strict=True):
            was = entries.split([view.numel() for view in group])
            yield from zip(itertools.islice(names, len(group)), was, group, strict=True)


def _kind(tensor: Tensor | Mark) -> str:
    return f"{tensor.dtype} {tensor.device}"


def _sample(tensor: Tensor) -> Tensor:
    """Some entries, evenly spread: a view, so that a later look needs no more than to read it."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        return flat[:: max(1, len(flat) // _SAMPLED)]
    along = max(1, round(_SAMPLED ** (1 / tensor.ndim)))
    return tensor[tuple(slice(None, None, max(1, size // along)) for size in tensor.shape)]


def _read(views: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat([v.flatten() for v in group]) for group in views]


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """Bit by bit: a mask may hold NaN."""
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(some, others, strict=True))


def refuse_nonfinite(tensors: dict[str, Tensor]) -> None:
    """NaN or Inf among the tensors of a model is an error (S38); looked for once, when they are prepared."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach().sum())):
            continue
        masked = not isinstance(tensor, nn.Parameter) and "running_" not in name  # a mask may well hold -inf
        bad = torch.isnan(tensor) if masked else ~torch.isfinite(tensor)
        if bool(bad.any()):
            raise NonFiniteError(
                f"{name!r} of the model holds {int(bad.sum())} NaN or infinite entries out of {tensor.numel()}; "
                "weights must be finite, load or train the model again."
            )


@dataclass
class Weights:
    """Constants of one state of the model, and what was derived from them."""

    snapshot: Snapshot  # of the model's tensors in that state
    constants: dict[Any, Any]  # reference of the program -> tensor
    _prepared: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    _latest: dict[Hashable, tuple[Hashable, Any]] = field(default_factory=dict[Hashable, tuple[Hashable, Any]])
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _mine: set[Hashable] | None = None  # latest variants that only this object holds

    @cached_property
    def keeps(self) -> bool:
        """Whether what is derived is kept: of a half-precision model it would be a copy twice as large (S38)."""
        return precision_of(self.constants.values(), torch.float32) not in HALF

    @cached_property
    def halves(self) -> bool:
        """Whether any of the constants has half precision."""
        return any(is_half(c) for c in self.constants.values())

    def prepared(self, node: Node, name: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` derives from a node's weights, made once for this state of the model.

        Where weights rest on the input or on arguments of a play it is made every time.
        """
        if node.fleeting or not self.keeps:
            return make()
        with self._lock:
            key = node, name
            if key not in self._prepared:
                self._prepared[key] = make()
            return self._prepared[key]

    def latest(self, node: Node, name: Hashable, variant: Hashable, make: Callable[[Any], Any]) -> Any:
        """The same, but of the variants of one thing the latest alone: a sweep over temperatures would fill the memory.

        `make` is given the last one where it may be written over, else None.
        """
        if node.fleeting or not self.keeps:
            return make(None)
        with self._lock:
            key = node, name
            known, _ = self._latest.get(key, (None, None))
            if known != variant:
                _, old = self._latest.pop(key, (None, None))
                self._latest[key] = variant, make(old if key in (self._mine or ()) else None)
                if self._mine is not None:
                    self._mine.add(key)
            return self._latest[key][1]

    @cached_property
    def _storages(self) -> frozenset[int]:
        """The memory that the constants lie in: a tensor may begin anywhere within it."""
        return frozenset(c.untyped_storage().data_ptr() for c in self.constants.values() if isinstance(c, Tensor))

    def copied(self, weight: Tensor) -> Tensor:
        """A weight that shares no memory with the model's tensors: they may change in place."""
        shared = weight.untyped_storage().data_ptr() in self._storages or weight._base is not None
        return weight.clone() if shared else weight

    def overwriting(self) -> Weights:
        """The same, but each latest variant is written over the last: for plays that come and go one by one.

        Fresh memory costs more than the powers that are written to it.
        """
        return Weights(self.snapshot, self.constants, self._prepared, dict(self._latest), self._lock, set())

    def nbytes(self) -> int:
        """Memory of the prepared tensors."""
        kept = [*self._prepared.values(), *(made for _, made in self._latest.values())]
        tensors = [t for v in kept for t in (v if isinstance(v, tuple) else (v,))]
        return sum(t.nbytes for t in tensors if isinstance(t, Tensor))
