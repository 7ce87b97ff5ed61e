"""Blocks in which ways part and meet: sums, products, choices, squeeze-and-excitation, statistics that are added."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fuzz.blocks import Block, Linear, Shape, factor, fixed, project
from fuzz.gates import FACTOR_VALUES, FACTORS
from fuzz.reference import Node, Tape

Grow = Callable[[Shape], Block]  # a block that keeps the shape


class Residual(Block):
    """`x + f(x)` in its spellings, also with a third operand or another factor."""

    FORMS = ("x + f", "f + x", "x - f", "add(alpha)", "f += x", "x + f + g", "x + (f + g)", "x + x", "f - g")

    def __init__(self, rng: random.Random, shape: Shape, grow: Grow) -> None:
        super().__init__()
        self.form = rng.choice(self.FORMS)
        self.f, self.g = grow(shape), grow(shape)
        self.shape, self.words = shape, f"({self.form}: f = {self.f.words}, g = {self.g.words})"

    def forward(self, x: Tensor) -> Tensor:
        f = self.f(x)
        if self.form == "x + f":
            return x + f
        if self.form == "f + x":
            return torch.add(f, x)
        if self.form == "x - f":
            return x - f
        if self.form == "add(alpha)":
            return torch.add(x, f, alpha=-0.5)
        if self.form == "f += x":
            f = f.clone()
            f += x
            return f
        if self.form == "x + f + g":
            return x + f + self.g(x)
        if self.form == "x + (f + g)":
            return x + (f + self.g(x))
        return f + x + x if self.form == "x + x" else f - self.g(x)

    def reference(self, tape: Tape, a: Node) -> Node:
        a.sole = False
        f = self.f.reference(tape, a)
        if self.form == "x + f":
            return tape.sum(a, f)
        if self.form in ("f + x", "f += x"):
            return tape.sum(f, a)
        if self.form == "x - f":
            return tape.sum(a, tape.diagonal(f, -1.0))
        if self.form == "add(alpha)":
            return tape.sum(a, tape.diagonal(f, -0.5))
        if self.form == "x + x":
            return tape.sum(tape.sum(f, a), a)
        g = self.g.reference(tape, a)
        if self.form == "x + f + g":
            return tape.sum(tape.sum(a, f), g)
        return tape.sum(a, tape.sum(f, g)) if self.form == "x + (f + g)" else tape.sum(f, tape.diagonal(g, -1.0))


class Joined(Block):
    """Two ways concatenated or interleaved; their larger or smaller value; one of them chosen by a live mask."""

    FORMS = ("cat", "stack and mean", "maximum", "minimum", "where", "max of stack", "lerp")

    def __init__(self, rng: random.Random, shape: Shape, grow: Grow) -> None:
        super().__init__()
        self.form = rng.choice(self.FORMS)
        self.f, self.g, self.mask = Linear(rng, shape, shape[-1]), Linear(rng, shape, shape[-1]), grow(shape)
        self.shape = (*shape[:-1], 2 * shape[-1]) if self.form == "cat" else shape
        self.words = f"{self.form}(f, g; mask {self.mask.words if self.form == 'where' else ''})"

    def forward(self, x: Tensor) -> Tensor:
        f, g = self.f(x), self.g(x)
        if self.form == "cat":
            return torch.cat([f, g], -1)
        if self.form == "stack and mean":
            return torch.stack([f, g]).mean(0)
        if self.form == "max of stack":
            return torch.stack([f, g], -1).amax(-1)
        if self.form == "where":
            return torch.where(self.mask(x) > 0.1, f, g)
        return torch.lerp(f, g, 0.3) if self.form == "lerp" else getattr(torch, self.form)(f, g)

    def reference(self, tape: Tape, a: Node) -> Node:
        a.sole = False
        f, g = self.f.reference(tape, a), self.g.reference(tape, a)
        size = f.flat.shape[1]
        if self.form == "cat":
            return tape.wire([f, g], lambda p, q: torch.cat([p, q], -1))
        if self.form in ("stack and mean", "lerp"):
            pair = tape.wire([f, g], lambda p, q: torch.stack([p, q], 1))
            t = 0.5 if self.form != "lerp" else 0.3
            return tape.mix(pair, lambda x: (1 - t) * x[:, 0] + t * x[:, 1])
        positions = torch.arange(size)
        if self.form == "where":
            before = len(tape.nodes)
            mask = self.mask.reference(tape, a).value
            del tape.nodes[before:]  # an oracle
            tape.careful(mask, 0.1, exact=False)
            index = positions + size * (mask.flatten(1) <= 0.1)
            return tape.pick([f, g], index.reshape(-1, *f.shape))
        pairs = torch.stack([positions, positions + size], 1)
        return tape.largest([f, g], pairs, f.shape, -1 if self.form == "minimum" else 1)


class Gated(Block):
    """Products of two live values: one held fixed (S17), or both carrying."""

    FORMS = ("f * gate(g)", "gate(g) * f", "f * g", "relu(f) * g", "glu", "f * detached", "mul_")

    def __init__(self, rng: random.Random, shape: Shape, grow: Grow) -> None:
        super().__init__()
        self.form = rng.choice(self.FORMS)
        self.f, self.g = Linear(rng, shape, shape[-1]), Linear(rng, shape, shape[-1])
        self.gate, self.spelling = factor(rng)
        self.shape, self.words = shape, f"{self.form} with {self.spelling}; {self.f.words}, {self.g.words}"

    def forward(self, x: Tensor) -> Tensor:
        f, g, gate = self.f(x), self.g(x), FACTORS[self.gate][self.spelling]
        if self.form == "f * gate(g)":
            return f * gate(g)
        if self.form == "gate(g) * f":
            return gate(g) * f
        if self.form == "mul_":
            return f.clone().mul_(gate(g))
        if self.form == "relu(f) * g":
            return torch.relu(f) * g
        if self.form == "glu":
            return nn.functional.glu(torch.cat([f, g], -1), -1)
        return f * g if self.form == "f * g" else f * g.detach()

    def reference(self, tape: Tape, a: Node) -> Node:
        a.sole = False
        f = self.f.reference(tape, a)
        if self.form in ("f * g", "relu(f) * g"):
            g = self.g.reference(tape, a)
            if self.form != "f * g":
                c = (f.value > 0).double()
                f = tape.gate(f, f.value.relu(), c, c, nonnegative=True)
            return tape.product(f, g, (0, 1))
        before = len(tape.nodes)
        g = self.g.reference(tape, a).value
        del tape.nodes[before:]
        if self.form == "f * detached":
            return tape.diagonal(f, g)
        if self.form == "glu":
            return tape.product(f, fixed(tape, torch.sigmoid(g)), (0,))
        if self.gate == "hardsigmoid":
            tape.careful(g, -3.0, 3.0)
        factor = FACTOR_VALUES[self.gate](g)
        # a spelling may round a factor to 0 that is none
        tape.delicate |= bool(((factor != 0) & (factor.abs() < 1e-14)).any())
        return tape.product(f, fixed(tape, factor), (0,))


class Excited(Block):
    """Squeeze and excitation: features times a gate of their mean.

    The features are linear or rectified: those out of a SiLU or a reduction would be detached as well (S17).
    """

    def __init__(self, rng: random.Random, shape: Shape, grow: Grow) -> None:
        super().__init__()
        self.gate = rng.choice(["sigmoid", "hardsigmoid"])
        self.spelling = rng.choice([s for s in FACTORS[self.gate] if s in ("sigmoid", "hardsigmoid", "relu6(x + 3)/6")])
        self.features, self.rectified = Linear(rng, shape, shape[-1], absorb=True), rng.random() < 0.5
        self.first, self.second = nn.Linear(shape[0], 2), nn.Linear(2, shape[0])
        self.shape, self.words = shape, f"SE with {self.spelling} on {self.features.words}, relu {self.rectified}"

    def excite(self, x: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
        s = x.mean(tuple(range(2, x.ndim)))
        s = gate(self.second(torch.relu(self.first(s))))
        return s.reshape(*s.shape, *[1] * (x.ndim - 2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        h = torch.relu(h) if self.rectified else h
        return h * self.excite(h, FACTORS[self.gate][self.spelling])

    def reference(self, tape: Tape, a: Node) -> Node:
        a = self.features.reference(tape, a)
        if self.rectified:
            c = (a.value > 0).double()
            a = tape.gate(a, a.value.relu(), c, c, nonnegative=True)
        value = self.excite(a.value, FACTOR_VALUES[self.gate]).expand_as(a.value)
        return tape.product(a, fixed(tape, value, nonnegative=True), (0,))


class Statistic(Block):
    """Means and sums that are merely added or subtracted are linear; as factors they are detached (S3b)."""

    FORMS = ("x + mean", "x - mean", "f(x) + sum", "mean + x", "x * mean", "x / (1 + amax|x|)", "x + detached")

    def __init__(self, rng: random.Random, shape: Shape, grow: Grow) -> None:
        super().__init__()
        self.form = rng.choice(self.FORMS)
        self.dims = tuple(range(2, len(shape) + 1)) if len(shape) > 2 and rng.random() < 0.5 else (len(shape),)
        self.f, self.shape = grow(shape), shape
        self.words = f"{self.form} over {self.dims}" + (f"; f = {self.f.words}" if "f(" in self.form else "")

    def mean(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "x + mean":
            return x + self.mean(x)
        if self.form == "x - mean":
            return x - self.mean(x)
        if self.form == "mean + x":
            return self.mean(x) + x
        if self.form == "f(x) + sum":
            return self.f(x) + x.sum(self.dims, keepdim=True)
        if self.form == "x * mean":
            return x * self.mean(x)
        return (
            x + self.f(x).detach() if self.form == "x + detached" else x / (1 + x.abs().amax(self.dims, keepdim=True))
        )

    def reference(self, tape: Tape, a: Node) -> Node:
        a.sole = False
        if self.form == "x * mean":
            return tape.product(a, fixed(tape, self.mean(a.value).expand_as(a.value), a.nonnegative), (0,))
        if self.form == "x / (1 + amax|x|)":
            return tape.diagonal(a, 1 / (1 + a.value.abs().amax(self.dims, keepdim=True)))
        if self.form == "x + detached":
            before = len(tape.nodes)
            shift = self.f.reference(tape, a).value
            del tape.nodes[before:]
            node = tape.diagonal(a, 1.0, shift)
            node.nonnegative = False
            return node
        total = "sum" in self.form
        function = (lambda x: x.sum(self.dims, keepdim=True)) if total else self.mean
        mean = tape.mix(a, function)
        if self.form == "x - mean":
            mean = tape.diagonal(mean, -1.0)
        wide = tape.wire([mean], lambda x: x.expand(len(x), *a.shape))
        if self.form == "mean + x":
            return tape.sum(wide, a)
        return tape.sum(self.f.reference(tape, a) if total else a, wide)


class Duelling(Block):
    """`v + a − mean a`, a head that gives logits."""

    def __init__(self, rng: random.Random, shape: Shape, out: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(math.prod(shape), 1), nn.Linear(math.prod(shape), out)
        self.grouped = rng.random() < 0.5
        self.shape, self.words = (out,), "v + (a - mean a)" if self.grouped else "v + a - mean a"

    def forward(self, x: Tensor) -> Tensor:
        v, a = self.value(x), self.advantage(x)
        return v + (a - a.mean(1, keepdim=True)) if self.grouped else v + a - a.mean(1, keepdim=True)

    def reference(self, tape: Tape, h: Node) -> Node:
        h.sole = False
        v, a = (project(tape, h, layer) for layer in (self.value, self.advantage))
        size = a.flat.shape[1]
        mean = tape.diagonal(tape.mix(a, lambda x: x.mean(1, keepdim=True)), -1.0)
        wide = tape.wire([mean], lambda x: x.expand(len(x), size))
        v = tape.wire([v], lambda x: x.expand(len(x), size))
        return tape.sum(v, tape.sum(a, wide)) if self.grouped else tape.sum(tape.sum(v, a), wide)
