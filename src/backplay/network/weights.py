"""What is derived from a model's tensors: prepared once, rebuilt when a source has changed (S1)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from backplay.errors import NonFiniteError
from backplay.network.nodes import Node
from backplay.network.precision import HALF, is_half, precision_of, single

_ROW = 1024
_MODERATE = 2**22


@dataclass(frozen=True)
class Fingerprint:
    """What tells whether a tensor is as it was."""

    pointer: int  # where its data lies
    version: int  # torch's counter of changes in place
    shape: torch.Size
    rows: Tensor | None  # a checksum for each row of 1024 entries, of floating-point tensors
    bits: int = 0  # exclusive or of the entries' bits, for tensors of moderate size

    @staticmethod
    def of(tensor: Tensor) -> Fingerprint:
        rows = _checksum(tensor.detach()) if tensor.is_floating_point() else None
        moderate = 0 < tensor.numel() <= _MODERATE and not tensor.is_complex()
        bits = int(torch.hash_tensor(tensor.detach()).item()) if moderate else 0
        return Fingerprint(tensor.data_ptr(), _version(tensor), tensor.shape, rows, bits)

    def marks(self, tensor: Tensor) -> bool:
        """Whether a tensor is where it was and, by its version counter, as it was; its entries are not looked at."""
        return (self.pointer, self.version, self.shape) == (tensor.data_ptr(), _version(tensor), tensor.shape)

    def same(self, other: Fingerprint) -> bool:
        """Whether two fingerprints are of the same data."""
        mine, its = ((p.pointer, p.version, p.shape, p.bits) for p in (self, other))
        plain = mine == its
        if not plain or self.rows is None or other.rows is None:
            return plain
        # bit by bit: the sums of a mask may be NaN
        return self.rows.dtype == other.rows.dtype and torch.equal(_bits(self.rows), _bits(other.rows))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _bits(rows: Tensor) -> Tensor:
    return rows.view(torch.int64 if rows.element_size() == 8 else torch.int32)


def _checksum(tensor: Tensor) -> Tensor:
    """One matrix-vector product with fixed signs: sees edits behind the version counter, NaN and Inf.

    An edit below the last digit of a row's sum needs the version counter to be seen, or the hash of the bits, which
    tensors of moderate size get too.
    """
    flat = single(tensor.flatten())  # a product in half precision has no digits, and dies on some processors
    whole = flat.numel() // _ROW * _ROW
    signs = _SIGNS.to(device=flat.device, dtype=flat.dtype)
    tail = flat[whole:] @ signs[: flat.numel() - whole]
    return torch.cat([flat[:whole].view(-1, _ROW) @ signs, tail[None]])


_SIGNS = torch.linspace(0.5, 1.5, _ROW) * (1 - 2 * (torch.arange(_ROW) * 2654435761 % 7 % 2))


def fingerprints(tensors: dict[str, Tensor]) -> dict[str, Fingerprint]:
    """Fingerprints of all tensors of a model; NaN or Inf among them is an error (S38)."""
    prints = {name: Fingerprint.of(t) for name, t in tensors.items()}
    for name, mark in prints.items():
        if mark.rows is None or bool(torch.isfinite(mark.rows).all()):
            continue
        tensor = tensors[name]
        masked = not isinstance(tensor, nn.Parameter) and "running_" not in name  # a mask may well hold -inf
        bad = torch.isnan(tensor) if masked else ~torch.isfinite(tensor)
        if bool(bad.any()):
            raise NonFiniteError(
                f"{name!r} of the model holds {int(bad.sum())} NaN or infinite entries out of {tensor.numel()}; "
                "weights must be finite, load or train the model again."
            )
    return prints


@dataclass
class Weights:
    """Constants of one state of the model, and what was derived from them."""

    prints: dict[str, Fingerprint]  # of the model's tensors, by their names in the model
    constants: dict[Any, Any]  # reference of the program -> tensor
    _prepared: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    _latest: dict[Hashable, tuple[Hashable, Any]] = field(default_factory=dict[Hashable, tuple[Hashable, Any]])
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _mine: set[Hashable] | None = None  # latest variants that only this object holds

    def fresh(self, prints: dict[str, Fingerprint]) -> bool:
        """Whether these are the fingerprints of the same state."""
        return self.prints.keys() == prints.keys() and all(p.same(prints[k]) for k, p in self.prints.items())

    def untouched(self, tensors: dict[str, Tensor]) -> bool:
        """Whether tensors are as they were, by pointers and version counters alone."""
        return self.prints.keys() == tensors.keys() and all(p.marks(tensors[k]) for k, p in self.prints.items())

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

    def copied(self, weight: Tensor) -> Tensor:
        """A weight that shares no memory with the model's tensors: they may change in place."""
        pointers = {p.pointer for p in self.prints.values()}
        shared = weight.untyped_storage().data_ptr() in pointers or weight._base is not None
        return weight.clone() if shared else weight

    def overwriting(self) -> Weights:
        """The same, but each latest variant is written over the last: for plays that come and go one by one.

        Fresh memory costs more than the powers that are written to it.
        """
        return Weights(self.prints, self.constants, self._prepared, dict(self._latest), self._lock, set())

    def nbytes(self) -> int:
        """Memory of the prepared tensors."""
        kept = [*self._prepared.values(), *(made for _, made in self._latest.values())]
        tensors = [t for v in kept for t in (v if isinstance(v, tuple) else (v,))]
        return sum(t.nbytes for t in tensors if isinstance(t, Tensor))
