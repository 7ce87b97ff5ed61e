"""Products of two live tensors as equations over letters: which axes are summed, shared, or of one operand alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.network.nodes import Node

_LEAD = "abcdefgh"


@dataclass(frozen=True)
class Equation:
    """`left,right->out` without dots."""

    left: str
    right: str
    out: str

    @staticmethod
    def of(node: Node, ranks: list[int]) -> Equation | None:
        """The equation of a matmul, bmm or einsum of two live tensors; None for anything else."""
        if len(ranks) != 2:
            return None
        if node.operator == "einsum":
            text = node.args[0].replace(" ", "")
            return None if "." in text or "->" not in text else Equation._read(text)
        if node.operator in ("matmul", "bmm") and ranks[0] == ranks[1] >= 2:
            lead = _LEAD[: ranks[0] - 2]
            return Equation(f"{lead}xy", f"{lead}yz", f"{lead}xz")
        return None

    @staticmethod
    def _read(text: str) -> Equation:
        operands, out = text.split("->")
        left, right = operands.split(",")
        return Equation(left, right, out)

    @staticmethod
    def scores(rank: int) -> Equation:
        """Queries times keys, both (…, tokens, features)."""
        lead = _LEAD[: rank - 2]
        return Equation(f"{lead}xy", f"{lead}zy", f"{lead}xz")

    @staticmethod
    def mixing(equation: str, weights: int, values: int) -> Equation:
        """Weights and values, as `network.attention.Mixing` names their product."""
        if equation not in ("left", "right"):
            return Equation._read(equation)
        lead, own = _LEAD[: weights - 2], _LEAD[: values - 2]
        if equation == "left":
            return Equation(f"{lead}xy", f"{own}yz", f"{lead}xz")
        return Equation(f"{lead}yx", f"{own}zy", f"{lead}zx")

    @property
    def shared(self) -> str:
        return "".join(c for c in self.left if c in self.right and c in self.out)

    @property
    def summed(self) -> str:
        return "".join(c for c in self.left if c in self.right and c not in self.out)

    def features(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
        """What is multiplied with what: (shared axes, summed axis) of both, if nothing else tells labels apart."""
        if len(self.summed) != 1:
            return None
        letters = self.shared + self.summed
        found = _over(left, self.left, letters), _over(right, self.right, letters)
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def values(self, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor] | None:
        """Which weights meet which values: (heads, 1) and (heads, features); heads are all shared axes."""
        own = "".join(c for c in self.right if c not in self.left)
        found = _over(weights, self.left, self.shared), _over(values, self.right, self.shared + own)
        if found[0] is None or found[1] is None:
            return None
        return found[0].reshape(-1, 1), found[1].reshape(found[0].numel(), -1)

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
