"""Building blocks of random networks: each is a module in one of its spellings and says what the games make of it.

A block is drawn for the shape of one sample; `forward` is what a user writes, `reference` puts its normal form (S3) on
a tape. Weights are ordinary parameters, which the generator fills.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fuzz.gates import FACTORS, GATES, spelled
from fuzz.reference import Node, Tape

Shape = tuple[int, ...]
LARGEST = 96  # elements of a sample


class Block(nn.Module):
    """A piece of a network. `words` describes it; `shape` is that of its output."""

    words: str
    shape: Shape

    def reference(self, tape: Tape, a: Node) -> Node:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return self.words


class Linear(Block):
    """An affine map of the last dimension (S3)."""

    def __init__(self, rng: random.Random, shape: Shape, out: int | None = None, absorb: bool = False) -> None:
        super().__init__()
        width = out or rng.choice([2, 3, 4, 5])
        self.linear = nn.Linear(shape[-1], width, bias=rng.random() < 0.8)
        forms = ["nn.Linear", "nn.Linear", "F.linear", "x @ W", "einsum"]
        forms += ["x @ W + b"] if not absorb else []  # an added constant never absorbs (S15)
        forms += ["addmm"] if len(shape) == 1 and self.linear.bias is not None else []
        self.form = rng.choice(forms)
        if self.form in ("x @ W", "einsum"):
            self.linear.bias = None
        self.shape, self.words = (*shape[:-1], width), f"{self.form} {shape[-1]}→{width}"

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        if self.form == "nn.Linear":
            return self.linear(x)
        if self.form == "F.linear":
            return F.linear(x, weight, bias)
        if self.form == "einsum":
            return torch.einsum("...i,oi->...o", x, weight)
        if self.form == "addmm":
            return torch.addmm(bias, x, weight.T)
        return x @ weight.T if bias is None else x @ weight.T + bias

    def reference(self, tape: Tape, a: Node) -> Node:
        weight, bias = self.linear.weight.detach(), self.linear.bias
        if self.form == "x @ W + b" and bias is not None:
            return tape.diagonal(tape.affine(a, lambda x: x @ weight.T), 1.0, bias)
        node = tape.affine(a, lambda x: x @ weight.T, bias)
        node.channels = len(a.shape) == 1
        return node


class Convolution(Block):
    """conv1d, 2d, 3d and their transposes, zero padded inside or before, with or without a batch norm behind (S4)."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        n, channels = len(shape) - 1, shape[0]
        groups = rng.choice([g for g in (1, 1, 2, 3) if channels % g == 0])
        width = groups * rng.choice([1, 2]) if groups > 1 else rng.choice([2, 3, 4])
        kernel = tuple(rng.choice([k for k in (1, 2, 3) if k <= s]) for s in shape[1:])
        stride, padding = rng.choice([1, 1, 2]), rng.choice([0, 1]) if min(kernel) > 1 else 0
        self.transposed = rng.random() < 0.2 and math.prod(shape) <= 40
        self.apart = not self.transposed and padding and rng.random() < 0.3
        options = {"stride": stride, "groups": groups, "bias": rng.random() < 0.7}
        if (
            not self.transposed
            and rng.random() < 0.2
            and all(2 * (k - 1) + 1 <= s for k, s in zip(kernel, shape[1:], strict=True))
        ):
            options["dilation"] = 2
        kind = ("ConvTranspose" if self.transposed else "Conv") + f"{n}d"
        self.padding, options["padding"] = padding, 0 if self.apart else padding
        self.conv = getattr(nn, kind)(channels, width, kernel, **options)
        self.norm = getattr(nn, f"BatchNorm{n}d")(width) if rng.random() < 0.25 else None
        self.functional = rng.random() < 0.3
        with torch.no_grad():
            self.shape = tuple(self.convolve(torch.zeros(2, *shape)).shape[1:])
        behind = " + batch norm" if self.norm is not None else ""
        self.words = f"{kind} {channels}→{width} {kernel} {options}{' after F.pad' if self.apart else ''}{behind}"

    def convolve(self, x: Tensor, bias: bool = True) -> Tensor:
        conv = self.conv
        if self.apart:
            x = F.pad(x, (self.padding, self.padding) * (x.ndim - 2))
        if (self.functional and not self.transposed) or not bias:
            b = conv.bias if bias else None
            if self.transposed:
                function = getattr(F, f"conv_transpose{x.ndim - 2}d")
                return function(
                    x, conv.weight, b, conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
                )
            function = getattr(F, f"conv{x.ndim - 2}d")
            return function(x, conv.weight, b, conv.stride, conv.padding, conv.dilation, conv.groups)
        return conv(x)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolve(x)
        return y if self.norm is None else self.norm(y)

    def reference(self, tape: Tape, a: Node) -> Node:
        bias = self.conv.bias
        if bias is not None:
            bias = bias.reshape(-1, *[1] * (len(a.shape) - 1))
        node = tape.affine(a, lambda x: self.convolve(x, bias=False).detach(), bias)
        return node if self.norm is None else normalised(tape, node, self.norm)


def normalised(tape: Tape, a: Node, norm: nn.Module) -> Node:
    """Batch norm with its running statistics."""
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    view = (-1, *[1] * (len(a.shape) - 1))
    return tape.fold(a, scale.reshape(view), shift.reshape(view))


class BatchNorm(Block):
    """In eval mode, as a module; folded if it follows an affine node."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        self.norm = getattr(nn, f"BatchNorm{max(len(shape) - 1, 1)}d")(shape[0])
        self.shape, self.words = shape, "batch norm"

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def reference(self, tape: Tape, a: Node) -> Node:
        return normalised(tape, a, self.norm)


class Activation(Block):
    """A gate in one of its spellings."""

    def __init__(self, rng: random.Random, shape: Shape, name: str | None = None) -> None:
        super().__init__()
        self.name = name or rng.choice(["relu", *GATES])
        self.words, self.function = spelled(rng, self.name)
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def reference(self, tape: Tape, a: Node) -> Node:
        return GATES[self.name].at(tape, a)


class Norm(Block):
    """Layer, RMS, group, instance and L2 norm, as modules and spelled out: detached statistics (S3b)."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        forms = [
            "layer",
            "layer, spelled",
            "layer, expanded",
            "layer, rsqrt",
            "rms",
            "rms, spelled",
            "l2",
            "l2, spelled",
        ]
        if len(shape) > 1:
            forms = [*forms[:1], "group", "instance", "l2", "mean only statistic"] if len(shape) > 2 else forms
        if math.prod(shape[1:]) == 1:  # torch refuses to normalise a single place
            forms = [form for form in forms if form != "instance"]
        self.form, self.shape, self.words = rng.choice(forms), shape, ""
        self.words = f"norm: {self.form}"
        width = shape[-1]
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        if self.form == "layer":
            self.module = nn.LayerNorm(shape[-rng.choice([1, len(shape)]) :])
        elif self.form == "rms":
            self.module = nn.RMSNorm(width, eps=1e-6)
        elif self.form == "group":
            self.module = nn.GroupNorm(rng.choice([g for g in (1, 2, 3) if shape[0] % g == 0]), shape[0])
        elif self.form == "instance":
            self.module = getattr(nn, f"InstanceNorm{len(shape) - 1}d")(shape[0], affine=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "layer, spelled":
            m = x.mean(-1, keepdim=True)
            return (x - m) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight + self.bias
        if self.form == "layer, rsqrt":
            d = x - x.mean(-1, keepdim=True)
            return d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        if self.form == "layer, expanded":
            m = x.mean(-1, keepdim=True)
            r = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
            return x * r - m * r
        if self.form == "rms, spelled":
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        if self.form == "l2":
            return F.normalize(x, dim=1)
        if self.form == "l2, spelled":
            return x / (x.norm(dim=-1, keepdim=True) + 1e-3)
        if self.form == "mean only statistic":
            return x / (1 + x.abs().mean((-2, -1), keepdim=True))
        return self.module(x)

    def reference(self, tape: Tape, a: Node) -> Node:
        x = a.value
        if self.form in ("rms", "rms, spelled"):
            weight = self.module.weight if self.form == "rms" else self.weight
            return tape.diagonal(a, weight * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        if self.form == "l2":
            return tape.diagonal(a, 1 / x.norm(dim=1, keepdim=True).clamp(min=1e-12))
        if self.form == "l2, spelled":
            return tape.diagonal(a, 1 / (x.norm(dim=-1, keepdim=True) + 1e-3))
        if self.form == "mean only statistic":
            return tape.diagonal(a, 1 / (1 + x.abs().mean((-2, -1), keepdim=True)))
        if self.form == "group":
            parts = x.reshape(len(x), self.module.num_groups, -1)
        elif self.form == "instance":
            parts = x.flatten(2)
        else:
            dims = len(self.module.normalized_shape) if self.form == "layer" else 1
            parts = x.flatten(-dims)
        deviation = (parts.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt().expand_as(parts).reshape(x.shape)
        centre = parts.mean(-1, keepdim=True).expand_as(parts).reshape(x.shape)
        weight, bias = self._affine(x)
        return tape.diagonal(a, weight / deviation, bias - weight * centre / deviation, centred=True)

    def _affine(self, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        if self.form in ("group", "instance"):
            view = (-1, *[1] * (x.ndim - 2))
            return self.module.weight.reshape(view), self.module.bias.reshape(view)
        if self.form == "layer":
            return self.module.weight, self.module.bias
        return {"layer, spelled": (self.weight, self.bias), "layer, rsqrt": (self.weight, 0.0)}.get(
            self.form, (1.0, 0.0)
        )


class Wiring(Block):
    """Moves elements, and puts constants beside them (S26)."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        last, n = shape[-1], len(shape)
        forms = {
            "flip": lambda x: x.flip(-1),
            "roll": lambda x: x.roll(1, -1),
            "slice": (lambda x: x[..., 1:]) if last > 2 else (lambda x: x[..., :]),
            "index": lambda x: x[..., torch.tensor([last - 1, 0, *range(last)])],
            "repeat": lambda x: x.repeat(1, *[1] * (n - 1), 2),
            "repeat_interleave": lambda x: x.repeat_interleave(2, -1),
            "swap halves": lambda x: torch.cat([x[..., last // 2 :], x[..., : last // 2]], -1),
            "split and stack": lambda x: torch.stack(x.unbind(-1), -1),
            "pad with 0.5": lambda x: F.pad(x, (1, 0), value=0.5),
            "pad with -2": lambda x: F.pad(x, (0, 1), value=-2.0),
            "token": lambda x: torch.cat([self.token.expand(len(x), *self.token.shape), x], -1),
            "dropout": lambda x: F.dropout(x, 0.5, training=False),
            "contiguous view": lambda x: x.contiguous().view(len(x), *shape),
        }
        if n == 1 and last % 2 == 0:
            forms["unflatten"] = lambda x: x.reshape(len(x), 2, last // 2)
        if n == 2:
            forms["transpose"] = lambda x: x.transpose(1, 2)
        if n == 3:
            forms["permute"] = lambda x: x.permute(0, 1, 3, 2)
            forms["tokens"] = lambda x: x.flatten(2).transpose(1, 2)
            forms["reflect"] = lambda x: F.pad(x, (1, 1, 0, 0), mode="reflect") if last > 1 else x
            if shape[0] % 2 == 0:
                forms["shuffle"] = lambda x: (
                    x.reshape(len(x), 2, shape[0] // 2, *shape[1:]).transpose(1, 2).flatten(1, 2)
                )
        self.token = nn.Parameter(torch.zeros(*shape[:-1], 1))
        self.words = rng.choice(list(forms))
        self.function = forms[self.words]
        with torch.no_grad():
            self.shape = tuple(self.function(torch.zeros(2, *shape)).shape[1:])
        if math.prod(self.shape) > LARGEST:
            self.words, self.function, self.shape = "flip", forms["flip"], shape

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def reference(self, tape: Tape, a: Node) -> Node:
        return tape.wire([a], lambda x: self.function(x).detach())


class Constant(Block):
    """A position embedding, a LayerScale, a buffer: biases and diagonals (S2)."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        forms = {
            "x + position": (lambda x: x + self.table, lambda: (1.0, self.table)),
            "x * scale": (lambda x: x * self.table, lambda: (self.table, 0.0)),
            "scale * x - position": (
                lambda x: self.table * x - self.buffer,
                lambda: (self.table, -self.buffer),
            ),
            "position - x": (lambda x: self.table - x, lambda: (-1.0, self.table)),
            "x / buffer": (lambda x: x / (1 + self.buffer.abs()), lambda: (1 / (1 + self.buffer.abs()), 0.0)),
            "-x": (lambda x: -x, lambda: (-1.0, 0.0)),
            "x.add_(position)": (lambda x: x.clone().add_(self.table), lambda: (1.0, self.table)),
        }
        self.words = rng.choice(list(forms))
        self.function, self.facts = forms[self.words]
        size = rng.choice([shape, shape[-1:]])
        self.table = nn.Parameter(torch.zeros(size))
        self.register_buffer("buffer", torch.randn(size, generator=torch.Generator().manual_seed(rng.randrange(10**6))))
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def reference(self, tape: Tape, a: Node) -> Node:
        return tape.diagonal(a, *self.facts())


class Chain(Block):
    """Blocks one after another; a reused one stands there several times."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.shape, self.words = blocks[-1].shape, " → ".join(b.words for b in blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def reference(self, tape: Tape, a: Node) -> Node:
        for block in self.blocks:
            a = block.reference(tape, a)
        return a


class Flat(Block):
    """All elements in one row."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        super().__init__()
        self.words = rng.choice(["flatten", "reshape", "view"])
        self.shape = (math.prod(shape),)

    def forward(self, x: Tensor) -> Tensor:
        if self.words == "flatten":
            return x.flatten(1)
        return x.reshape(len(x), -1) if self.words == "reshape" else x.contiguous().view(x.shape[0], -1)

    def reference(self, tape: Tape, a: Node) -> Node:
        return tape.wire([a], lambda x: x.flatten(1))


def project(tape: Tape, a: Node, layer: nn.Linear) -> Node:
    """A linear layer over the last dimension."""
    weight = layer.weight.detach()
    return tape.affine(a, lambda x: x @ weight.T, layer.bias)


def fixed(tape: Tape, value: Tensor, nonnegative: bool = False) -> Node:
    """A value that carries no mass."""
    return tape.add(value.detach(), nonnegative=nonnegative)


def factor(rng: random.Random) -> tuple[str, str]:
    """The name of a factor gate and one of its spellings."""
    name = rng.choice(list(FACTORS))
    return name, rng.choice(list(FACTORS[name]))
