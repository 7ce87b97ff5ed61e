"""Products that sum over shared axes, as equations over letters: one form for matmul, einsum and their relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from backplay.network.layout import PLAIN
from backplay.network.linear import Layouts, LinearMap, Shapes

_LEAD = "abcdefgh"


@dataclass(frozen=True)
class Einsum:
    """An einsum of any number of tensors: a letter for each axis, no dots, the output spelled out."""

    operands: tuple[str, ...]
    out: str

    @staticmethod
    def read(text: str, ranks: Sequence[int]) -> Einsum:
        """The one place that reads an equation; dots stand for as many axes as an operand has left, from the right."""
        given, arrow, out = text.replace(" ", "").partition("->")
        terms = given.split(",")
        dotted = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
        widest = max([d for d, term in zip(dotted, terms, strict=True) if "..." in term], default=0)
        fresh = "".join(c for c in ascii_letters if c not in text)[:widest]
        if not arrow:  # as numpy has it: what occurs once, in the order of the alphabet, behind the dots
            letters = sorted({c for c in given if c.isalpha() and given.count(c) == 1})
            out = "..." + "".join(letters)
        terms = [term.replace("...", fresh[widest - d :]) for term, d in zip(terms, dotted, strict=True)]
        return Einsum(tuple(terms), out.replace("...", fresh))

    def pair(self) -> tuple[Equation, Einsum]:
        """The product of the first two operands, and what is left to do with it."""
        first, second, *others = self.operands
        needed = {*self.out, *"".join(others)}
        kept = "".join(dict.fromkeys(c for c in first + second if c in needed))
        out = self.out if not others else kept
        return Equation(first, second, out), Einsum((out, *others), self.out)


@dataclass(frozen=True)
class Equation:
    """`left,right->out`; each letter stands at most once in each of the three."""

    left: str
    right: str
    out: str

    @staticmethod
    def matmul(left: int, right: int) -> Equation:
        """Of two tensors of given ranks: leading axes are shared from the right."""
        lead = _LEAD[: max(left, right, 2) - 2]
        mine, its = (lead[len(lead) - max(rank - 2, 0) :] for rank in (left, right))
        row, column = "x" if left > 1 else "", "z" if right > 1 else ""
        return Equation(f"{mine}{row}y", f"{its}y{column}", f"{lead}{row}{column}")

    @staticmethod
    def linear(left: int, right: int) -> Equation:
        """`x Wᵀ`: the last axes of both are summed over, all others follow one another."""
        mine, its = _LEAD[: left - 1], "stuvwx"[: right - 1]
        return Equation(f"{mine}y", f"{its}y", mine + its)

    @staticmethod
    def scores(queries: int, keys: int) -> Equation:
        """Queries times keys, both (…, tokens, features), of given ranks."""
        plain = Equation.matmul(queries, keys)
        return Equation(plain.left, f"{plain.right[:-2]}zy", plain.out)

    @property
    def text(self) -> str:
        return f"{self.left},{self.right}->{self.out}"

    @property
    def swapped(self) -> Equation:
        """The same product with its operands in the other order."""
        return Equation(self.right, self.left, self.out)

    @property
    def shared(self) -> str:
        return "".join(c for c in self.left if c in self.right and c in self.out)

    @property
    def summed(self) -> str:
        return "".join(c for c in self.left if c in self.right and c not in self.out)

    def sizes(self, left: Sequence[Any], right: Sequence[Any]) -> dict[str, Any]:
        """How long each axis is; one of length 1 gives way to the other operand's."""
        sizes: dict[str, Any] = {}
        for letters, shape in ((self.left, left), (self.right, right)):
            for letter, size in zip(letters, shape, strict=True):
                if letter not in sizes or (isinstance(sizes[letter], int) and sizes[letter] == 1):
                    sizes[letter] = size
        return sizes

    # for `symmetry`, tensors of labels: an integer at each element names the channel that it belongs to

    def features(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
        """What is multiplied with what: (shared axes, summed axis) of both, if nothing else tells labels apart."""
        if len(self.summed) != 1:
            return None
        letters = self.shared + self.summed
        pair = _over(left, self.left, letters), _over(right, self.right, letters)
        if pair[0] is None or pair[1] is None:
            return None
        one, other = torch.broadcast_tensors(pair[0], pair[1])
        return one, other

    def values(self, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor] | None:
        """Which weights (left) meet which values (right): (heads, 1) and (heads, features); heads are shared axes."""
        own = "".join(c for c in self.right if c not in self.left)
        pair = _over(weights, self.left, self.shared), _over(values, self.right, self.shared + own)
        if pair[0] is None or pair[1] is None:
            return None
        heads = torch.broadcast_shapes(pair[0].shape, pair[1].shape[: len(self.shared)])
        marks, met = pair[0].expand(heads), pair[1].expand(*heads, *pair[1].shape[len(self.shared) :])
        return marks.reshape(-1, 1), met.reshape(marks.numel(), -1)

    def spread(self, labels: Tensor, shape: torch.Size) -> Tensor:
        """Labels over the shared axes spread over the output."""
        order = [c for c in self.out if c in self.shared]
        labels = labels.permute([self.shared.index(c) for c in order])
        return labels.reshape([labels.shape[order.index(c)] if c in order else 1 for c in self.out]).expand(shape)


def _over(labels: Tensor, letters: str, keep: str) -> Tensor | None:
    """Labels over some axes, if they are the same along all others."""
    for letter in [c for c in letters if c not in keep]:
        axis = letters.index(letter)
        first = labels.narrow(axis, 0, 1)
        if not bool((labels == first).all()):
            return None
        labels, letters = first.squeeze(axis), letters.replace(letter, "")
    return labels.permute([letters.index(c) for c in keep])


@dataclass(frozen=True)
class Contraction(LinearMap):
    """A product as a linear map: the live operand stands on the left of the equation, its weight on the right.

    Axes of length 1 are broadcast, on either side; a weight may be of another precision, as models cast now and then.
    """

    equation: Equation

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum(self.equation.text, x, weight.to(x.dtype))

    def adjoint(self, y: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        left, right, out = self.equation.left, self.equation.right, self.equation.out
        known = [c for c in left if c in out or c in right]  # an axis that is summed over alone is seen alike
        back = torch.einsum(f"{out},{right}->{''.join(known)}", y, weight.to(y.dtype))
        broadcast = [k for k, c in enumerate(known) if shape[left.index(c)] == 1 != back.shape[k]]
        if broadcast:
            back = back.sum(broadcast, keepdim=True)
        return back[tuple(slice(None) if c in known else None for c in left)].expand(shape)

    def row_length(self, weight: Tensor, shape: torch.Size) -> int:
        return prod(self._free(shape).values())

    def rows_of(
        self, weight: Tensor, states: Tensor, shapes: Shapes, layouts: Layouts = (PLAIN, PLAIN)
    ) -> tuple[Tensor, Tensor]:
        """Axes of the operand that the output has not are run through; all others stand where the state stands."""
        place = dict(zip(self.equation.out, torch.unravel_index(states, shapes[1]), strict=True))
        free = self._free(shapes[0])
        count = prod(free.values())
        ranges = torch.unravel_index(torch.arange(count, device=states.device), list(free.values()) or (1,))
        runs = dict(zip(free, ranges, strict=False))

        def index(letters: str, shape: torch.Size) -> Tensor:
            flat = torch.zeros(len(states), count, dtype=torch.long, device=states.device)
            for c, size in zip(letters, shape, strict=True):
                at = place[c][:, None] if c in place else runs[c]
                flat = flat * size + (at if size > 1 else 0)  # an axis of length 1 is broadcast
            return flat

        return index(self.equation.left, shapes[0]), weight.flatten()[index(self.equation.right, weight.shape)]

    def _free(self, shape: torch.Size) -> dict[str, int]:
        """Length of each axis of the operand that the output has not."""
        return {c: size for c, size in zip(self.equation.left, shape, strict=True) if c not in self.equation.out}
