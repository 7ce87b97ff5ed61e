"""What a captured program takes: which arguments, of which shapes, and which of them come by samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from backplay.network.arguments import Arguments, Key
from backplay.network.nodes import Ref


def user_names(program: ExportedProgram, arguments: Arguments) -> dict[Key, str]:
    """The program's name of each argument; a list of numbers has several, of which the first counts."""
    users = iter([s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT])
    names: dict[Key, str] = {}
    for key, value in arguments.items():
        own = [next(users) for _ in tree_leaves(value)]
        names[key] = own[0] if own else ""
    return names


@dataclass
class Signature:
    """The arguments of a captured program."""

    example: Arguments  # without the explained tensors, which nobody needs to keep
    shapes: dict[Key, tuple[Any, ...]]  # sizes of each tensor, ints or symbolic expressions
    fixed: dict[Key, Ref]  # tensors that are held fixed, by their names in the program
    dtype: torch.dtype  # of the first explained input
    batch: frozenset[Any] = frozenset()  # the symbols that count samples

    @staticmethod
    def of(program: ExportedProgram, example: Arguments) -> Signature:
        names = user_names(program, example)
        traced = {n.name: n.meta["val"] for n in program.graph.find_nodes(op="placeholder")}
        tensors = [key for key, value in example.items() if isinstance(value, Tensor)]
        shapes = {key: tuple(_expression(s) for s in traced[names[key]].shape) for key in tensors}
        batch = frozenset(s for key in example.explained for s in symbols(shapes[key][0]))
        fixed = {key: Ref(names[key]) for key in tensors if key not in example.explained}
        kept = example.with_values(dict.fromkeys(example.explained))
        return Signature(kept, shapes, fixed, example.x.dtype, batch)

    @property
    def per_sample(self) -> frozenset[Key]:
        """The fixed tensors that hold an entry for each sample."""
        return frozenset(k for k in self.fixed if self.shapes[k] and self.shapes[k][0] in self.batch)

    def learn(self, size: Any) -> None:
        """Note that samples lie along a size; the exporter may have given it a symbol of its own (`gather`)."""
        if not isinstance(size, int) and _expression(size).is_Symbol:
            self.batch |= symbols(_expression(size))

    def uncertain(self, example: Arguments) -> list[Key]:
        """Fixed tensors with as many entries as there are samples, by a size of their own."""
        return [k for k in self.by_samples(example) if k in self.fixed and k not in self.per_sample]

    def by_samples(self, example: Arguments) -> list[Key]:
        """The tensors that may hold an entry for each sample."""
        likely = [k for k in self.fixed if self.shapes[k] and not isinstance(self.shapes[k][0], int)]
        return [*example.explained, *(k for k in likely if example[k].shape[0] == example.batch)]

    def symbols_of(self, size: Any) -> frozenset[Any]:
        """The symbols of a traced size."""
        return symbols(_expression(size))

    def counts(self, size: Any) -> bool:
        """Whether a traced size grows with the number of samples."""
        return not isinstance(size, int) and bool(symbols(_expression(size)) & self.batch)

    def bind(self, given: Mapping[Key, Any]) -> dict[Any, int]:
        """The value of every free size, from the shapes of the arguments."""
        bound: dict[Any, int] = {}
        for key in (*self.example.explained, *self.fixed):
            for size, actual in zip(self.shapes[key], given[key].shape, strict=True):
                if getattr(size, "is_Symbol", False):
                    bound.setdefault(size, actual)
        return bound

    def expanded(self, given: dict[Key, Any]) -> dict[Key, Any]:
        """One entry that is meant for every sample, once for each."""
        batch = given[self.example.explained[0]].shape[0]
        return {
            k: v.expand(batch, *v.shape[1:]).clone() if k in self.per_sample and v.shape[0] == 1 else v
            for k, v in given.items()
        }

    def misfit(self, given: Arguments) -> str | None:
        """Why arguments do not fit; None if they do."""
        if set(given) != set(self.example) or set(given.explained) != set(self.example.explained):
            return self._other_keys(given)
        for key in given.explained:
            shape, expected = tuple(given[key].shape), self.shapes[key][1:]
            if len(shape) != len(expected) + 1 or not _fits(shape[1:], expected):
                advice = (
                    "add the batch dimension with x[None]"
                    if len(shape) == len(expected) and _fits(shape, expected)
                    else "resize it, or make a new game for this size"
                )
                return (
                    f"{given.label(key)} of shape {shape} does not fit this network, captured for (batch, "
                    f"{', '.join(map(str, expected))}); {advice}."
                )
        other = (self._other_value(key, value, given) for key, value in given.fixed.items())
        return next((why for why in other if why is not None), None)

    def unbatched(self, given: Arguments) -> bool:
        """Whether a sample is given where a batch is expected."""
        same = set(given) == set(self.example) and set(given.explained) == set(self.example.explained)
        return same and all(
            len(given[k].shape) == len(self.shapes[k]) - 1 and _fits(tuple(given[k].shape), self.shapes[k][1:])
            for k in given.explained
        )

    def _other_keys(self, given: Arguments) -> str:
        mine, its = ([a.names[k] if isinstance(k, str) or k else "input" for k in a] for a in (self.example, given))
        held = [
            given.names[k]
            for k in given
            if k in self.example and k not in self.example.explained and k in given.explained
        ]
        if held:
            return f"the network was captured with {held[0]!r} held fixed; capture again to explain it."
        return f"the network was captured with the inputs {mine}, got {its}; give the same ones, or capture again."

    def _other_value(self, key: Key, value: Any, given: Arguments) -> str | None:
        known, name = self.example[key], given.names[key]
        words = _described(known), _described(value)
        changed = f"{name!r} was {words[0]} when the network was captured, now {words[1]}; capture again."
        if not isinstance(known, Tensor) or not isinstance(value, Tensor):
            same = not isinstance(known, Tensor) and not isinstance(value, Tensor) and known == value
            return None if same else changed
        if key in self.per_sample and value.ndim and value.shape[0] not in (1, given.batch):
            return f"{name!r} holds {value.shape[0]} samples, the explained input {given.batch}."
        if value.dtype != known.dtype or not _fits(tuple(value.shape), self.shapes[key]):
            return changed
        return None


def symbols(expression: Any) -> frozenset[Any]:
    """The free symbols of a size."""
    return frozenset(getattr(expression, "free_symbols", ()))


def substitute(expression: Any, bound: Mapping[Any, int]) -> Any:
    """A size with its symbols replaced by numbers.

    A symbol that no argument's shape gives, such as a number that the model reads off a value, is replaced by a guess:
    the capture is compared with its model like any other, and warned of.
    """
    if isinstance(expression, (int, float)):
        return expression
    guess = next(iter(bound.values()))
    value = expression.subs({s: bound.get(s, guess) for s in expression.free_symbols})
    return int(value) if value.is_integer else float(value)


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _fits(shape: tuple[int, ...], expected: tuple[Any, ...]) -> bool:
    """Whether sizes are the captured ones, where these are fixed."""
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(not isinstance(e, int) or s == e for s, e in pairs)


def _described(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
