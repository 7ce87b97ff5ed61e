"""Tokens of a transformer: which rows of its attention are patches of an image, or tokens of a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.network import Network, Node
from backplay.network.attention import Attention
from backplay.network.linear import Convolution
from backplay.network.nodes import Affine


@dataclass(frozen=True)
class Tokens(ABC):
    """The rows of all attention blocks of a network, as many in each."""

    blocks: tuple[Attention, ...]  # from the input to the output

    def weights(self, block: Attention, weight: Tensor) -> Tensor:
        """Attention weights of a block as (B, heads, queries, keys)."""
        rows = block.queries_first(weight)
        return rows if rows.ndim == 4 else rows.unflatten(0, (-1, block.layout.inner))

    def queries(self, block: Attention, output: Tensor) -> Tensor:
        """The output of a block, or a gradient there, as (B, queries, entries of all heads)."""
        assert block.axes is not None
        rows = output.movedim(block.equation.out.index(block.axes[0]), 1).flatten(2)
        return rows.unflatten(0, (-1, block.layout.inner)).transpose(1, 2).flatten(2)

    def map(self, scores: Tensor, deciding: Tensor, x: Tensor) -> Tensor:
        """Scores (B, queries, keys) as a map of the input: the mean over the queries that decide, (B, queries)."""
        shares = deciding.to(scores.dtype) / deciding.sum(1, keepdim=True)
        return self.laid_out(torch.einsum("bq,bqk->bk", shares, scores), x)

    @abstractmethod
    def laid_out(self, row: Tensor, x: Tensor) -> Tensor:
        """A score for each token, (B, keys), as a map of the input."""


@dataclass(frozen=True)
class Patches(Tokens):
    """`prefix` tokens that are no patches (class, distillation, registers), then a grid of patches row by row."""

    prefix: int
    height: int
    width: int

    def laid_out(self, row: Tensor, x: Tensor) -> Tensor:
        """(B, 1, H, W)."""
        patches = row[:, self.prefix :].reshape(-1, 1, self.height, self.width)
        size = (x.shape[-2], x.shape[-1])
        return torch.nn.functional.interpolate(patches, size, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class Positions(Tokens):
    """Every row is a position of the input (B, T, features), such as the embeddings of a text."""

    def laid_out(self, row: Tensor, x: Tensor) -> Tensor:
        """(B, T, 1)."""
        return row[:, :, None]


def find_tokens(network: Network) -> Tokens | None:
    """The tokens of a network in which every attention layer sees the whole input; None for any other network."""
    blocks = tuple(n for n in network.nodes if isinstance(n, Attention) and n in network.reached)
    if not blocks or len(network.inputs) > 1 or not all(_is_global(b) for b in blocks):
        return None
    counts, shape = {count for block in blocks for count in _counts(block)}, network.input.shape
    if len(counts) != 1 or len(shape) not in (3, 4):
        return None
    if len(shape) == 3:
        return Positions(blocks) if counts == {shape[1]} else None
    grid = _grid(network, counts.pop())
    return None if grid is None else Patches(blocks, *grid)


def _is_global(block: Attention) -> bool:
    """Whether samples meet heads alone beside queries and keys: windows multiply the batch, grids add an axis."""
    layout, rank = block.layout, len(block.shape)
    if block.axes is None or layout.dim != 0 or layout.outer != 1:
        return False
    return (rank == 4 and layout.inner == 1) or rank == 3


def _counts(block: Attention) -> tuple[int, int]:
    """How many queries and keys a block has."""
    assert block.axes is not None
    equation, (queries, keys) = block.equation, block.axes
    return block.shape[equation.out.index(queries)], block.operand.shape[equation.left.index(keys)]


def _grid(network: Network, count: int) -> tuple[int, int, int] | None:
    """Prefix, height and width: the shape of a convolution's map, else a grid that divides the image evenly."""
    maps = {tuple(n.shape[-2:]) for n in network.nodes if _is_map(n)}
    high, wide = network.input.shape[-2:]
    for prefix in range(count):
        patches = count - prefix
        for height in range(1, patches + 1):
            width = patches // height
            even = high % height == 0 and wide % width == 0 and high * width == wide * height
            if height * width == patches and ((height, width) in maps if maps else even):
                return prefix, height, width
    return None


def _is_map(node: Node) -> bool:
    return isinstance(node, Affine) and isinstance(node.map, Convolution) and len(node.shape) == 4
