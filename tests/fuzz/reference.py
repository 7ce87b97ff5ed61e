"""Both games by dense matrices: the slow and obvious version that random networks are compared with (S3-S18, S23).

A `Tape` computes a network node by node on a batch and remembers, for every node, how mass goes back. Every linear map
is written out as a matrix by sending unit vectors through it. Three measures travel together: the difference of the
discounted masses of both players, their sum, and the mass of the undiscounted walk. Nothing here knows backplay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

TINY = 1e-9  # nearer to a kink than this, rounding decides


@dataclass(frozen=True)
class Rules:
    """Which game, and its options."""

    game: str = "routing"  # or "stopping"
    alpha: float = 2.0
    beta: float = 1.0
    epsilon: float = 0.5
    tau: float = 1.0
    residual: str = "uniform"
    bias: str = "ignore"
    empty_stream: str = "cemetery"

    @property
    def stopping(self) -> bool:
        return self.game == "stopping"

    @property
    def options(self) -> dict[str, object]:
        """Keywords of the game."""
        names = "alpha beta epsilon tau residual bias empty_stream".split()
        return {} if self.stopping else {name: getattr(self, name) for name in names}


@dataclass(eq=False)
class Node:
    """A value of the forward pass, (B, …), and how mass on it goes back to its inputs."""

    value: Tensor
    inputs: tuple[Node, ...] = ()
    back: Callable[[Tensor], Sequence[Tensor]] | None = None
    nonnegative: bool = False
    kind: str = ""
    linear: tuple[Tensor, Tensor | None] | None = None  # matrix and bias of an affine node, flat
    sole: bool = True  # read by one consumer only
    channels: bool = True  # an affine node whose outputs are channels, those of a batch norm behind it
    mass: Tensor | None = field(default=None, repr=False)

    @property
    def flat(self) -> Tensor:
        return self.value.flatten(1)

    @property
    def shape(self) -> torch.Size:
        return self.value.shape[1:]


def dense(function: Callable[[Tensor], Tensor], shape: torch.Size) -> Tensor:
    """(inputs, outputs): a linear function as a matrix."""
    basis = torch.eye(shape.numel(), dtype=torch.float64).reshape(-1, *shape)
    return function(basis).reshape(len(basis), -1)


def power(base: Tensor, tau: float) -> Tensor:
    """base^{1/τ} of numbers ≥ 0, 0 where the base is."""
    return torch.where(base > 0, base.clamp(min=1e-320).pow(1 / tau), 0.0)


class Tape:
    """The forward pass of a network under the rules of a game; `pull` sends mass back over it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.nodes: list[Node] = []
        self.delicate = False  # rounding could decide somewhere
        self.constant = torch.zeros(0)
        self.cemetery = torch.zeros(0)

    def add(self, value: Tensor, inputs: Sequence[Node] = (), back=None, **facts: object) -> Node:
        node = Node(value, tuple(inputs), back, **facts)  # type: ignore[arg-type]
        self.nodes.append(node)
        return node

    def careful(self, value: Tensor, *kinks: float, exact: bool = True) -> None:
        """Note numbers so near a kink that another order of summation may put them on its other side."""
        for kink in kinks:
            distance = (value - kink).abs()
            near = distance < TINY
            self.delicate |= bool((near & (distance > 0)).any() or (not exact and near.any()))

    # ---------------------------------------------------------------- linear nodes
    def affine(self, a: Node, function: Callable[[Tensor], Tensor], bias: Tensor | None = None) -> Node:
        """S6, S12-S16. `function` is linear; `bias` has the shape of one output or can be broadcast to it."""
        out = function(a.value)
        shift = None if bias is None else bias.detach().expand(out.shape[1:]).flatten()
        return self.matrix(a, dense(function, a.shape), out.shape[1:], shift)

    def matrix(self, a: Node, matrix: Tensor, shape: Sequence[int], bias: Tensor | None = None) -> Node:
        """The same by its matrix, (inputs, outputs), with a batch dimension in front if samples differ."""
        value = (a.flat.unsqueeze(1) @ matrix).squeeze(1)
        value = value if bias is None else value + bias
        self.careful(value, 0.0)
        back = lambda m: [self._linear(a.flat, matrix, m, bias)]  # noqa: E731
        return self.add(value.reshape(-1, *shape), [a], back, kind="affine", linear=(matrix, bias))

    def fold(self, a: Node, scale: Tensor, shift: Tensor) -> Node:
        """Batch norm: folded into an affine node that nothing else reads (S4), else a diagonal."""
        scale, shift = (t.detach().expand(a.shape) for t in (scale, shift))
        if a.kind != "affine" or not a.sole or not a.channels or a.linear is None:
            return self.diagonal(a, scale, shift)
        matrix, bias = a.linear
        folded = shift.flatten() + (0 if bias is None else bias * scale.flatten())
        node = self.matrix(a.inputs[0], matrix * scale.flatten(), a.shape, folded)
        node.kind = "folded"  # a second batch norm behind it stays a diagonal
        return node

    def mix(self, a: Node, function: Callable[[Tensor], Tensor]) -> Node:
        """S7, S18."""
        return self.mixing(a, dense(function, a.shape), function(a.value).shape[1:])

    def mixing(self, a: Node, matrix: Tensor, shape: Sequence[int]) -> Node:
        one_stream = a.nonnegative and bool((matrix >= 0).all())
        if self.rules.stopping or not one_stream:
            node = self.matrix(a, matrix, shape)
            node.kind, node.nonnegative = "mix", one_stream
            return node

        def back(m: Tensor) -> list[Tensor]:
            share = power(a.flat.unsqueeze(-1) * matrix, self.rules.tau)
            return [_follow(share, share.sum(1), m)]

        value = (a.flat.unsqueeze(1) @ matrix).squeeze(1).reshape(-1, *shape)
        return self.add(value, [a], back, kind="mix", nonnegative=True)

    def _linear(self, x: Tensor, matrix: Tensor, m: Tensor, bias: Tensor | None) -> Tensor:
        matrix = matrix.expand(len(x), *matrix.shape[-2:])
        if self.rules.stopping:
            size = matrix.abs()
            reach = size.sum(1)
            walk = torch.where(reach > 0, m[2] / reach.clamp(min=1e-300), 0.0)
            moved = [(w @ v.unsqueeze(-1)).squeeze(-1) for w, v in ((matrix, m[0]), (size, m[1]), (size, walk))]
            return torch.stack(moved)
        c = x.unsqueeze(-1) * matrix
        plus, minus = self._streams(c.clamp(min=0), (-c).clamp(min=0), m, bias)
        return plus + minus

    def _streams(self, plus: Tensor, minus: Tensor, m: Tensor, bias: Tensor | None) -> list[Tensor]:
        """S13, S15, S16: what each stream moves, from its contributions (B, inputs, outputs)."""
        r, moved = self.rules, []
        for k, (own, other) in enumerate(((plus, minus), (minus, plus))):
            taken = [(r.alpha, r.alpha, 0.5), (-r.beta, r.beta, 0.5)][k]
            weights = torch.tensor(taken, dtype=m.dtype).reshape(3, 1, 1)
            if r.empty_stream == "reroute":
                alone = torch.tensor((r.alpha - r.beta, r.alpha - r.beta, 1.0), dtype=m.dtype).reshape(3, 1, 1)
                weights = torch.where(other.sum(1) == 0, alone, weights)
            share = power(own, r.tau)
            total = share.sum(1) + (r.epsilon ** (1 / r.tau) if r.epsilon else 0.0)
            if r.bias == "absorb" and bias is not None:
                total = total + power((-bias if k else bias).clamp(min=0), r.tau)
            moved.append(_follow(share, total, m * weights))
        return moved

    # ---------------------------------------------------------------- elementwise nodes
    def diagonal(
        self, a: Node, scale: Tensor | float = 1.0, shift: Tensor | float = 0.0, centred: bool = False
    ) -> Node:
        """S7, S17; also a norm with its statistics held fixed: `scale · a + shift`."""
        scale = torch.as_tensor(scale, dtype=torch.float64).detach().expand_as(a.value)
        shift = torch.as_tensor(shift, dtype=torch.float64).detach().expand_as(a.value)
        flat = scale.flatten(1)
        signs = torch.stack([flat, flat.abs(), (flat != 0).double()])
        value = scale * a.value + shift
        if bool((shift != 0).any()):
            self.careful(value, 0.0)
        nonnegative = a.nonnegative and not centred and bool((scale >= 0).all() and (shift >= 0).all())
        return self.add(
            value, [a], lambda m: [m * signs if self.rules.stopping else m], nonnegative=nonnegative, kind="diagonal"
        )

    def gate(self, a: Node, value: Tensor, slope: Tensor, chance: Tensor, nonnegative: bool = False) -> Node:
        """S8: factor `slope` in the Stopping Game, `chance` in the Routing Game."""
        g = slope.flatten(1)
        signs = torch.stack([g, g.abs(), g.abs().clamp(max=1)]) if self.rules.stopping else chance.flatten(1)
        return self.add(value, [a], lambda m: [m * signs], nonnegative=nonnegative, kind="gate")

    def sum(self, a: Node, b: Node) -> Node:
        """S7, S17."""
        if self.rules.stopping:
            half = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64).reshape(3, 1, 1)
            shares = half, half
        elif self.rules.residual == "uniform":
            shares = torch.tensor(0.5), torch.tensor(0.5)
        else:
            sizes = a.flat.abs(), b.flat.abs()
            total = sizes[0] + sizes[1]
            first = torch.where(total > 0, sizes[0] / total.clamp(min=1e-300), 0.5)
            shares = first, 1 - first
        value = a.value + b.value
        self.careful(value, 0.0)
        back = lambda m: [m * s for s in shares]  # noqa: E731
        return self.add(value, [a, b], back, nonnegative=a.nonnegative and b.nonnegative, kind="sum")

    def product(self, a: Node, b: Node, carrying: Sequence[int]) -> Node:
        """S7, S17: the positions in `carrying` carry, the other factor is held fixed."""
        others = b.flat, a.flat

        def back(m: Tensor) -> list[Tensor]:
            moved = []
            for k in carrying:
                g = others[k]
                signs = torch.stack([g, g.abs(), (g != 0) / len(carrying)])
                moved.append(m * signs if self.rules.stopping else m / len(carrying))
            return moved

        both = a.nonnegative and b.nonnegative
        return self.add(a.value * b.value, [(a, b)[k] for k in carrying], back, nonnegative=both, kind="product")

    def contract(self, a: Node, b: Node, function, carrying: Sequence[int]) -> Node:
        """S17: a contraction of two live tensors; the factor that does not carry is the weight."""
        value = function(a.value, b.value)
        matrices = []
        for k in carrying:
            own, other = (a, b)[k], (b, a)[k]
            basis = torch.eye(own.flat.shape[1], dtype=torch.float64).reshape(-1, *own.shape)
            rows = [
                function(basis, o.expand(len(basis), *o.shape))
                if k == 0
                else function(o.expand(len(basis), *o.shape), basis)
                for o in other.value
            ]
            matrices.append(torch.stack([r.flatten(1) for r in rows]))

        def back(m: Tensor) -> list[Tensor]:
            moved = []
            for k, matrix in zip(carrying, matrices, strict=True):
                part = self._linear((a, b)[k].flat, matrix, m, None)
                if len(carrying) == 2:
                    part = part * torch.tensor([1.0, 1.0, 0.5] if self.rules.stopping else [0.5] * 3).reshape(3, 1, 1)
                moved.append(part)
            return moved

        self.careful(value, 0.0)
        both = a.nonnegative and b.nonnegative
        return self.add(value, [(a, b)[k] for k in carrying], back, nonnegative=both, kind="contraction")

    # ---------------------------------------------------------------- moving elements
    def wire(self, nodes: Sequence[Node], function, lost: bool = False) -> Node:
        """Moves elements; what comes from nowhere is a constant terminal (S26), or † if `lost` (zero padding)."""
        zeros = [torch.zeros(1, *n.shape, dtype=torch.float64) for n in nodes]
        fixed = function(*zeros)
        matrices = []
        for k, node in enumerate(nodes):
            size = node.flat.shape[1]
            basis = [torch.zeros(size, *n.shape, dtype=torch.float64) for n in nodes]
            basis[k] = torch.eye(size, dtype=torch.float64).reshape(-1, *node.shape)
            matrices.append((function(*basis) - fixed).reshape(size, -1))
        orphan = sum(m.abs().sum(0) for m in matrices) == 0

        def back(m: Tensor) -> list[Tensor]:
            if not lost:
                self.constant = self.constant + (m[2] * orphan).sum(1)
            return [m @ matrix.T for matrix in matrices]

        value = function(*(n.value for n in nodes))
        nonnegative = all(n.nonnegative for n in nodes) and bool((fixed >= 0).all())
        moves = (matrices[0], None) if len(nodes) == 1 and not bool(orphan.any()) else None
        return self.add(value, nodes, back, nonnegative=nonnegative, kind="wire", linear=moves)

    def projection(self, v: Node) -> tuple[Node, Tensor, Tensor | None] | None:
        """S23: the affine node that feeds values through wires alone, as (its input, matrix, bias) in their layout."""
        moves = torch.eye(v.flat.shape[1], dtype=torch.float64)
        while v.kind == "wire" and v.linear is not None:
            moves = v.linear[0] @ moves
            v = v.inputs[0]
        if v.kind not in ("affine", "folded") or v.linear is None:
            return None
        matrix, bias = v.linear
        return v.inputs[0], matrix @ moves, None if bias is None else bias @ moves

    def pick(self, nodes: Sequence[Node], index: Tensor) -> Node:
        """S7: every output is one element of the inputs, counted through all of them; `index` (B, …)."""
        everything = torch.cat([n.flat for n in nodes], 1)
        flat = index.flatten(1)
        sizes = [n.flat.shape[1] for n in nodes]

        def back(m: Tensor) -> list[Tensor]:
            moved = torch.zeros(3, *everything.shape, dtype=m.dtype).scatter_add(2, flat.expand_as(m), m)
            return list(moved.split(sizes, 2))

        value = everything.gather(1, flat).reshape(index.shape)
        return self.add(value, nodes, back, nonnegative=all(n.nonnegative for n in nodes), kind="max")

    def largest(self, nodes: Sequence[Node], windows: Tensor, shape: Sequence[int], sign: int = 1) -> Node:
        """Maximum (`sign` −1: minimum) over windows (outputs, k) of flat positions, −1 for none; ties to the first."""
        everything = sign * torch.cat([n.flat for n in nodes], 1)
        seen = torch.where(windows >= 0, everything[:, windows.clamp(min=0)], -torch.inf)
        best = seen.max(-1, keepdim=True).values
        self.delicate |= bool(((seen < best) & (seen > best - TINY)).any())
        ranks = torch.arange(windows.shape[-1], 0, -1)
        first = ((seen == best) * ranks).argmax(-1)
        index = windows.expand(len(first), *windows.shape).gather(-1, first.unsqueeze(-1)).squeeze(-1)
        return self.pick(nodes, index.reshape(-1, *shape))

    # ---------------------------------------------------------------- attention
    def attend(self, v: Node, weights: Tensor, shape: Sequence[int]) -> Node:
        """S23: `weights` (B, values, outputs) mix flat values; a projection behind them makes a composite."""
        projection = self.projection(v)
        if self.rules.stopping or projection is None:
            return self.mixing(v, weights, shape)
        source, matrix, bias = projection
        r = self.rules
        if r.bias == "absorb" and bias is not None:
            read = torch.where(weights != 0, bias.unsqueeze(-1), torch.nan)
            spread = read.nan_to_num(-torch.inf).amax(1) - read.nan_to_num(torch.inf).amin(1)
            self.delicate |= bool((spread > 0).any())  # which of several biases joins the choice is not said

        def back(m: Tensor) -> list[Tensor]:
            c = source.flat.unsqueeze(-1) * matrix  # inputs of the projection to values
            parts = [c.clamp(min=0), (-c).clamp(min=0)]
            keys = [p.sum(1).unsqueeze(-1) * weights for p in parts]
            at_values = self._streams(*keys, m, None if bias is None else _read(bias, weights))
            inner = [power(p, r.tau) for p in parts]
            return [sum(_follow(p, p.sum(1), moved) for p, moved in zip(inner, at_values, strict=True))]

        value = (v.flat.unsqueeze(1) @ weights).squeeze(1).reshape(-1, *shape)
        self.careful(value, 0.0)
        return self.add(value, [source], back, kind="attention")

    # ---------------------------------------------------------------- back
    def pull(self, output: Node, weights: Tensor) -> None:
        """Send the root of S26b back: difference, total and walk; afterwards every node has its `mass`."""
        flat = weights.flatten(1)
        size = flat.abs() / flat.abs().sum(1, keepdim=True)
        self.constant = torch.zeros(len(flat), dtype=torch.float64)
        self.cemetery = torch.zeros(len(flat), dtype=torch.float64)
        for node in self.nodes:
            node.mass = torch.zeros(3, *node.flat.shape, dtype=torch.float64)
        output.mass = torch.stack([flat, flat.abs(), size])
        for node in reversed(self.nodes):
            if node.back is None or not bool(node.mass[2].any()):
                continue
            before, constant = node.mass[2].sum(1), self.constant
            moved = node.back(node.mass)
            for source, part in zip(node.inputs, moved, strict=True):
                source.mass = source.mass + part
            after = sum((part[2].sum(1) for part in moved), torch.zeros_like(before)) + self.constant - constant
            self.cemetery = self.cemetery + before - after


def _follow(share: Tensor, total: Tensor, m: Tensor) -> Tensor:
    """Mass at outputs by the policy `share / total`, (B, inputs, outputs), to the inputs."""
    policy = torch.where(total.unsqueeze(1) > 0, share / total.unsqueeze(1).clamp(min=1e-320), 0.0)
    return (policy @ m.unsqueeze(-1)).squeeze(-1)


def _read(bias: Tensor, weights: Tensor) -> Tensor:
    """(B, outputs) the bias of the feature that each output mixes: one for all its keys."""
    return bias[(weights != 0).double().argmax(1)]
