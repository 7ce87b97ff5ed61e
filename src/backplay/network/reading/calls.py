"""Calls of an exported program: their arguments by name, those on constants alone, and the functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from backplay.network import operators
from backplay.network.nodes import Node, Ref, Scope, leaves, resolve

if TYPE_CHECKING:
    from backplay.network.reading.builder import Builder


@dataclass(frozen=True)
class Call:
    """One call of an operator on live tensors; nodes and references stand for the tensors among its arguments."""

    node: fx.Node  # the call in the exported graph
    operator: str  # its name in `network.operators`
    op: Any  # the function that computes it, out of place
    args: tuple[Any, ...]  # as they were given, keywords last
    keywords: tuple[str, ...]  # names of the last arguments
    named: dict[str, Any]  # all arguments and defaults by the names of the operator's schema

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument by its name; the default where it is missing or None."""
        value = self.named.get(name)
        return default if value is None else value

    @property
    def function(self) -> Callable[..., Any]:
        """The operator as a function of `args`, all by position."""
        count, op, keywords = len(self.args) - len(self.keywords), self.op, self.keywords
        if not keywords:
            return op
        return lambda *args: op(*args[:count], **dict(zip(keywords, args[count:], strict=True)))

    @property
    def itself(self) -> tuple[Callable[..., Any], tuple[Any, ...], str]:
        """The first three fields of a node that computes the call as it stands."""
        return self.function, self.args, self.operator

    @property
    def shape(self) -> torch.Size:
        """The traced shape of its value; sizes that depend on the batch are symbols."""
        return self.node.meta["val"].shape


def functional(target: Any) -> tuple[str, Any]:
    """The name of an operator in `network.operators`, and its out-of-place twin."""
    packet = target.overloadpacket
    name: str = packet.__name__
    if name in ("view", "_unsafe_view"):  # other strides than the traced ones must do as well
        return "view", torch.ops.aten.reshape.default
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
        packet = getattr(torch.ops.aten, name)
        overload = target._overloadname
        target = getattr(packet, overload if overload in packet.overloads() else packet.overloads()[0])
    return operators.ALIASES.get(name, name), target


Reading = Callable[["Builder", Call], Any]
READINGS: dict[str, Reading] = {}  # by the names that rows of `network.operators` give


def reading(function: Reading) -> Reading:
    """Register a function that turns calls into nodes, under its own name."""
    READINGS[function.__name__] = function
    return function


# ---------------------------------------------------------------- calls on constants alone


@dataclass(frozen=True)
class Statement:
    """`ref = function(*args, **kwargs)` on constants and sizes."""

    ref: Ref
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]

    def run(self, scope: Scope) -> Any:
        """Its value, given those of the constants that it reads."""
        kwargs = {k: resolve(v, scope) for k, v in self.kwargs.items()}
        return self.function(*resolve(self.args, scope), **kwargs)


class Constants(Mapping[Any, Any]):
    """Constants whose values are known before the model is played: its tensors, and what is computed from them.

    They are read on the processor, where the grid of S3a is. A `KeyError` where a value depends on the input's size or
    on an argument that changes from play to play.
    """

    def __init__(self, tensors: Mapping[Ref, Any], statements: list[Statement]) -> None:
        self._known, self._statements = dict(tensors), statements
        self.was_read = False  # whether any constant was looked up

    def __getitem__(self, key: Any) -> Any:
        self.was_read = True
        if key not in self._known:
            statement = next((s for s in self._statements if s.ref == key), None)
            if statement is None:
                raise KeyError(key)
            self._known[key] = self._run(statement)
        value = self._known[key]
        return value.cpu() if isinstance(value, Tensor) else value

    def _run(self, statement: Statement) -> Any:
        """What a call on constants gives; of one that fills a tensor in the size of the batch, the one number in it."""
        name = getattr(getattr(statement.function, "overloadpacket", None), "__name__", "")
        if "zeros" in name or "ones" in name:
            return torch.tensor(float("ones" in name), dtype=torch.float64)
        if "full" in name and isinstance(statement.args[-1], (int, float)):
            return torch.tensor(float(statement.args[-1]), dtype=torch.float64)
        try:
            return statement.run(self)
        except (IndexError, RuntimeError) as error:  # one number cannot stand for a tensor whose axes matter
            raise KeyError(statement.ref) from error

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def constant(value: Any) -> Callable[[Scope], Tensor]:
    """A number, a reference or a detached value as a function of the scope."""

    def read(scope: Scope) -> Tensor:
        given = scope[value] if isinstance(value, (Ref, Node)) else value
        return given if isinstance(given, Tensor) else torch.tensor(float(given), dtype=torch.float64)

    return read


def is_live(value: Any) -> bool:
    """Whether an argument is a tensor that mass may come to; what is detached is a constant (S3d)."""
    return isinstance(value, Node) and value.carries


def has_tensors(tree: Any) -> bool:
    """Whether nested arguments hold live tensors, constants or sizes that are known only when the model is played."""
    return any(isinstance(leaf, (Node, Ref)) for leaf in leaves(tree))
