"""Discounted visits of both players at the states of a node."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from backplay.errors import scale_words, tensor_words
from backplay.network.mass import Mass


@dataclass(frozen=True, repr=False)
class Occupation:
    """Discounted visits of both players (def:occupation, eq:attribution): true `Γ± = plus, minus · exp(log_scale)`.

    `difference · exp(difference_log_scale)` is `Γ₊ − Γ₋` (eq:routing-Gamma-pair) from a pass of its own, never from a
    subtraction (S11). Tensors have the shape of the node's output, scales (B,).
    """

    plus: Tensor
    minus: Tensor
    log_scale: Tensor
    difference: Tensor
    difference_log_scale: Tensor

    @staticmethod
    def of(total: Mass, difference: Mass) -> Occupation:
        """From `Γ₊ + Γ₋` and `Γ₊ − Γ₋`, each on its own scale."""
        on_scale = Mass(difference.value, difference.exponent - total.exponent, difference.layout).plain()
        plus, minus = (total.value + on_scale) / 2, (total.value - on_scale) / 2
        return Occupation(
            plus.clamp(min=0), minus.clamp(min=0), total.log_scale, difference.value, difference.log_scale
        )

    def __repr__(self) -> str:
        return f"Occupation(plus, minus, difference {tensor_words(self.plus)}; log scale {scale_words(self.log_scale)})"
