"""What a call does, counted: products, passes over large tensors, reads of weights, large tensors made.

Counts do not depend on the machine or on how busy it is, so that tests can hold work to exact numbers.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv"}
ATTENTIONS = {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"}  # two products each


@dataclass(frozen=True)
class Work:
    """Numbers of operations of one call."""

    products: int  # convolutions and matrix products, of the model's weights or of anything else
    passes: int  # other operations that read or write a large tensor
    reads: int  # operations, products apart, that read a whole weight, the model's or one prepared from it
    made: int  # large tensors that took new memory


class Counting(TorchDispatchMode):
    """Counts while it is entered. A tensor is large with `large` elements or more; `weights` are known by their memory."""

    def __init__(self, large: int, weights: list[Tensor]) -> None:
        super().__init__()
        self.large = large
        self.weights = {w.untyped_storage().data_ptr(): w.numel() for w in weights}
        self.products, self.passes, self.reads, self.made = (Counter[str]() for _ in range(4))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = list(_tensors((args, kwargs or {})))
        before = {t.untyped_storage().data_ptr() for t in given}
        found = func(*args, **(kwargs or {}))
        self._count(func, given, before, list(_tensors(found)))
        return found

    def _count(self, func: Any, given: list[Tensor], before: set[int], found: list[Tensor]) -> None:
        name = func._schema.name.removeprefix("aten::")
        if func.is_view or name in ("detach", "empty_like", "empty", "new_empty"):
            self.made[name] += sum(self._is_fresh(t, before) for t in found)
            return
        self.made[name] += sum(self._is_fresh(t, before) for t in found)
        if name in PRODUCTS or name in ATTENTIONS:
            self.products[name] += 2 if name in ATTENTIONS else 1
            return
        if any(self._is_weight(t) for t in given):
            self.reads[name] += 1
        elif any(t.numel() >= self.large for t in [*given, *found]):
            self.passes[name] += 1

    def _is_fresh(self, tensor: Tensor, before: set[int]) -> bool:
        return tensor.numel() >= self.large and tensor.untyped_storage().data_ptr() not in before

    def _is_weight(self, tensor: Tensor) -> bool:
        """Whether it shows a weight as a whole; a look at some of its entries is none."""
        whole = self.weights.get(tensor.untyped_storage().data_ptr())
        return whole is not None and tensor.numel() >= whole

    @property
    def work(self) -> Work:
        return Work(*(c.total() for c in (self.products, self.passes, self.reads, self.made)))

    def __repr__(self) -> str:
        """What was counted, by operation: the first thing to look at where a number has changed."""
        parts = {"products": self.products, "passes": self.passes, "reads": self.reads, "made": self.made}
        return "; ".join(f"{name}: {dict(+c)}" for name, c in parts.items())


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided)
