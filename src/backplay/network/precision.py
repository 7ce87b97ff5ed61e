"""Half-precision models are played in float32, weight by weight, without a second copy of the model (S38)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from backplay.errors import InputTypeError

HALF = (torch.float16, torch.bfloat16)
FLOATING = (torch.float32, torch.float64, *HALF)


def is_half(value: Any) -> bool:
    """Whether a value is a tensor of half precision."""
    return isinstance(value, Tensor) and value.dtype in HALF


def precision_of(tensors: Iterable[Any], default: torch.dtype) -> torch.dtype:
    """What a model computes in: the dtype that most entries of its floating-point tensors have."""
    sizes = Counter[torch.dtype]()
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0] if sizes else default


def as_played(x: Tensor, precision: torch.dtype, name: str = "input") -> Tensor:
    """An input in the dtype that it is played in; refused unless it has the model's, or float32 for half of that."""
    if precision in HALF and x.dtype in (torch.float32, *HALF):
        return x.detach().float()
    if x.dtype != precision:
        wanted = torch.float32 if precision in HALF else precision
        raise InputTypeError(f"{name} of {x.dtype} for a model of {precision}; convert the {name} with x.to({wanted}).")
    return x


def single(tree: Any) -> Any:
    """Nested arguments with half tensors as float32 ones, and half dtypes as float32."""
    if isinstance(tree, Tensor):
        return tree.float() if tree.dtype in HALF else tree
    if isinstance(tree, torch.dtype):
        return torch.float32 if tree in HALF else tree
    if type(tree) in (list, tuple):
        return type(tree)(single(item) for item in tree)
    if type(tree) is dict:
        return {k: single(v) for k, v in tree.items()}
    return tree


class SingleScope(dict[Any, Any]):
    """A scope that hands half tensors out in float32: converted when they are read, dropped after use."""

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return value.float() if is_half(value) else value

    def copy(self) -> SingleScope:
        return SingleScope(self)


class InSingle(TorchFunctionMode):
    """A half-precision model evaluated in float32, call by call: each tensor is converted where it is used.

    It stands above autograd, so that gradients pass; products in half precision are never run.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":  # shapes, devices and the like: no numbers
            return func(*args, **(kwargs or {}))
        if name in ("half", "bfloat16") and args:
            return args[0].float()
        inplace = name in ("__setitem__", "requires_grad_") or (name.endswith("_") and not name.endswith("__"))
        rest = single(list(args[1:] if inplace else args))
        with torch._C._DisableAutocast():  # a model may switch it on for itself
            return func(*([args[0], *rest] if inplace and args else rest), **single(kwargs or {}))


def in_single(wanted: bool) -> AbstractContextManager[Any]:
    """`InSingle` where it is wanted."""
    return InSingle() if wanted else nullcontext()
