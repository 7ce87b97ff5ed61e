"""What a call does, counted: products, passes over large tensors, reads of weights, large tensors made.

Counts do not depend on the machine or on how busy it is, so that tests can hold work to exact numbers.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# how many products an operation is; attention has two, and five in reverse, where it makes its weights again
PRODUCTS = {
    **dict.fromkeys(
        ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "mkldnn::_linear_pointwise"), 1
    ),
    "_scaled_dot_product_flash_attention_for_cpu": 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 5,
}
UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty"}  # memory is taken, and nothing done with it yet
NOTHING = {"detach", "_unsafe_view", "alias"}  # views by another name


@dataclass(frozen=True)
class Work:
    """Numbers of operations of one call."""

    products: int  # convolutions and matrix products
    passes: int  # other operations that read or write a large tensor
    reads: int  # operations, products apart, that read a whole weight, the model's or one that was prepared from it
    made: int  # large tensors that took new memory


class Counting(TorchDispatchMode):
    """Counts what is done while it is entered.

    A tensor is large that has `large` bytes or more. `weights` are known by where they lie, whatever view shows them.
    """

    def __init__(self, large: int, weights: list[Tensor]) -> None:
        super().__init__()
        self.large = large
        self.weights = {_place(w): w.nbytes for w in weights}
        self.products, self.passes, self.reads, self.made = (Counter[str]() for _ in range(4))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = list(_tensors((args, kwargs or {})))
        before = {_place(t) for t in given}
        found = func(*args, **(kwargs or {}))
        self._count(func, given, before, list(_tensors(found)))
        return found

    def _count(self, func: Any, given: list[Tensor], before: set[int], found: list[Tensor]) -> None:
        name = func._schema.name.removeprefix("aten::")
        self.made[name] += sum(self._is_large(t) and _place(t) not in before for t in found)
        if name in PRODUCTS:
            self.products[name] += PRODUCTS[name]
        elif func.is_view or name in UNWRITTEN | NOTHING:
            pass
        elif any(self._is_weight(t) for t in given):
            self.reads[name] += 1
        elif any(map(self._is_large, [*given, *found])):
            self.passes[name] += 1

    def _is_large(self, tensor: Tensor) -> bool:
        return tensor.nbytes >= self.large

    def _is_weight(self, tensor: Tensor) -> bool:
        """Whether it shows a weight as a whole; a look at some of its entries is none."""
        return tensor.nbytes >= self.weights.get(_place(tensor), tensor.nbytes + 1)

    @property
    def work(self) -> Work:
        return Work(*(c.total() for c in (self.products, self.passes, self.reads, self.made)))

    def __repr__(self) -> str:
        """What was counted, by operation: the first thing to look at where a number has changed."""
        parts = {"products": self.products, "passes": self.passes, "reads": self.reads, "made": self.made}
        return "\n".join(f"{name} {c.total()}: {dict(+c)}" for name, c in parts.items())


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
