"""Random networks from a seed: the same description is a module to play and a tape to compare with."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fuzz import blocks as b
from fuzz.attention import Attention, Contraction
from fuzz.branches import Duelling, Excited, Gated, Joined, Residual, Statistic
from fuzz.pooling import AveragePool, Extreme
from fuzz.reference import Node, Rules, Tape

CLASSES = 3
SHAPES = [(4,), (6,), (3, 4), (4, 3), (2, 5), (2, 4, 4), (3, 3, 4), (1, 5, 5), (2, 6), (2, 2, 2, 3)]


class Program(nn.Module):
    """A random network: a trunk of blocks and a head; now and then with a second input."""

    def __init__(self, trunk: b.Block, head: b.Block, second: b.Block | None = None) -> None:
        super().__init__()
        self.trunk, self.head, self.second = trunk, head, second

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = self.trunk(x)
        return self.head(h if self.second is None else h + self.second(y))

    def reference(self, tape: Tape, *inputs: Tensor) -> tuple[Node, list[Node]]:
        sources = [tape.add(x) for x in inputs]
        h = self.trunk.reference(tape, sources[0])
        if self.second is not None:
            h = tape.sum(h, self.second.reference(tape, sources[1]))
        return self.head.reference(tape, h), sources

    def describe(self) -> str:
        more = "" if self.second is None else f" + (second input: {self.second.words})"
        return f"{self.trunk.words}{more} → {self.head.words}"


@dataclass
class Case:
    """A seed's network, inputs, rules and target weights."""

    seed: int
    program: Program
    inputs: tuple[Tensor, ...]
    rules: Rules
    target: int | Tensor

    def weights(self, logits: Tensor) -> Tensor:
        """The root over the logits (S26b)."""
        if isinstance(self.target, Tensor):
            return self.target
        return torch.nn.functional.one_hot(torch.full((len(logits),), self.target), CLASSES).double()

    def describe(self) -> str:
        shapes = ", ".join(str(tuple(x.shape[1:])) for x in self.inputs)
        target = self.target if isinstance(self.target, int) else "weights"
        return f"{shapes}: {self.program.describe()}; target {target}; {self.rules.options}"


class Generator:
    """Draws blocks that fit a shape."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rules = self._rules()

    def _rules(self) -> Rules:
        rng = self.rng
        alpha, beta = rng.choice([(2.0, 1.0), (1.0, 0.0), (1.5, 0.5), (3.0, 2.0), (2.0, 0.5)])
        return Rules(
            "routing",
            alpha,
            beta,
            rng.choice([0.0, 1e-3, 0.1, 0.5]),
            rng.choice([1.0, 1.0, 0.5, 2.0, 0.7]),
            rng.choice(["uniform", "uniform", "proportional"]),
            rng.choice(["ignore", "ignore", "absorb"]),
            rng.choice(["cemetery", "cemetery", "reroute"]),
        )

    def linear(self, shape: b.Shape, out: int | None = None) -> b.Block:
        if len(shape) > 2 or (len(shape) == 2 and out is None and self.rng.random() < 0.5):
            return b.Convolution(self.rng, shape)
        return b.Linear(self.rng, shape, out, absorb=self.rules.bias == "absorb")

    def keeping(self, shape: b.Shape) -> b.Block:
        """A short chain that keeps the shape."""
        rng, chain = self.rng, []
        for _ in range(rng.choice([1, 1, 2, 3])):
            kind = rng.choice([self.same_linear, self.same_linear, self.activation, self.norm, self.constant])
            chain.append(kind(shape))
        return b.Chain(chain) if len(chain) > 1 else chain[0]

    def same_linear(self, shape: b.Shape) -> b.Block:
        return b.Linear(self.rng, shape, shape[-1], absorb=self.rules.bias == "absorb")

    def activation(self, shape: b.Shape) -> b.Block:
        return b.Activation(self.rng, shape)

    def norm(self, shape: b.Shape) -> b.Block:
        return b.BatchNorm(self.rng, shape) if self.rng.random() < 0.3 else b.Norm(self.rng, shape)

    def constant(self, shape: b.Shape) -> b.Block:
        return b.Constant(self.rng, shape)

    def branch(self, shape: b.Shape) -> b.Block:
        kinds = [Residual, Residual, Joined, Gated]
        kinds += [Statistic] * 2 if min(shape) > 1 else []  # the mean of one element is not broadcast
        kinds += [Excited] if len(shape) >= 2 else []
        kind = self.rng.choice(kinds)
        made = kind(self.rng, shape, self.keeping)
        # a centred value that a norm divides would be a part of that norm (S3b): keep them apart
        return b.Chain([made, self.activation(shape)]) if isinstance(made, Statistic) else made

    def attention(self, shape: b.Shape) -> b.Block:
        return (Attention if self.rng.random() < 0.65 else Contraction)(self.rng, shape)

    def pooling(self, shape: b.Shape) -> b.Block:
        kind = Extreme if len(shape) > 1 and self.rng.random() < 0.4 else AveragePool
        return kind(self.rng, shape)

    def wiring(self, shape: b.Shape) -> b.Block:
        return b.Wiring(self.rng, shape)

    def block(self, shape: b.Shape) -> b.Block:
        kinds = [self.linear] * 4 + [self.activation] * 4 + [self.branch] * 4 + [self.norm, self.wiring, self.constant]
        kinds += [self.pooling] * 2 if len(shape) > 1 else [self.pooling]
        kinds += [self.attention] * 4 if len(shape) == 2 and max(shape) <= 8 else []
        made = self.rng.choice(kinds)(shape)
        if made.shape == shape and self.rng.random() < 0.05:
            return b.Chain([made, self.activation(shape), made])  # one module, two nodes
        return made

    def trunk(self, shape: b.Shape) -> b.Block:
        chain = [self.linear(shape) if self.rng.random() < 0.7 else self.block(shape)]
        for _ in range(self.rng.randrange(1, 6)):
            chain.append(self.block(chain[-1].shape))
            if math.prod(chain[-1].shape) > b.LARGEST:
                chain.append(AveragePool(self.rng, chain[-1].shape))
        return b.Chain(chain)

    def head(self, shape: b.Shape) -> b.Block:
        chain: list[b.Block] = [b.Flat(self.rng, shape)] if len(shape) > 1 else []
        size = (math.prod(shape),)
        if self.rng.random() < 0.15:
            return b.Chain([*chain, Duelling(self.rng, size, CLASSES)])
        return b.Chain([*chain, b.Linear(self.rng, size, CLASSES, absorb=self.rules.bias == "absorb")])


def draw(seed: int, batch: int = 2, inputs: int | None = None) -> Case:
    """The network of a seed; `inputs` fixes how many it has."""
    generator = Generator(seed)
    rng = generator.rng
    shape = rng.choice(SHAPES)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trunk = generator.trunk(shape)
        head = generator.head(trunk.shape)
        second = rng.random() < 0.1 if inputs is None else inputs == 2
        other = generator.same_linear(trunk.shape) if second else None
        program = Program(trunk, head, other).double().eval()
        fill(program)
        shapes = [shape, trunk.shape][: 1 + second]
        given = tuple(torch.randn(batch, *s, dtype=torch.float64) for s in shapes)
        target: int | Tensor = rng.randrange(CLASSES)
        if rng.random() < 0.2:
            target = torch.randn(batch, CLASSES, dtype=torch.float64)
    return Case(seed, program, given, generator.rules, target)


def fill(program: nn.Module) -> None:
    """Weights of every kind: large enough to matter, a few of them zero, statistics of norms away from 0 and 1."""
    for name, parameter in [*program.named_parameters(), *program.named_buffers()]:
        if not parameter.is_floating_point():
            continue
        with torch.no_grad():
            if name.endswith("running_var"):
                parameter.copy_(0.5 + torch.rand_like(parameter))
                continue
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            parameter.copy_(torch.randn_like(parameter) * (1.3 / math.sqrt(fan_in) if fan_in > 1 else 0.6))
            if parameter.ndim > 1 and torch.rand(()) < 0.2:
                parameter.mul_(torch.rand_like(parameter) > 0.2)
            if "norm" in name and name.endswith("weight") and parameter.ndim == 1:
                parameter.add_(1.0)
            if parameter.numel() == 1 and "function" in name:  # the slope of a PReLU
                parameter.fill_(0.125)
