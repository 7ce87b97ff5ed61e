"""The nodes of a network graph, one class for each kind of S3.

A node says what it computes (`function` on `args`), what mass may move to (`carriers`) and what is static about its
output (`shape`, `layout`, `nonnegative`). It knows nothing of games.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from backplay.entry import at
from backplay.network.layout import PLAIN, Layout
from backplay.network.linear import LinearMap, transpose


@dataclass(frozen=True)
class Ref:
    """A constant or a size of the captured program, by its name there; resolved anew for every play."""

    name: str


@dataclass(frozen=True)
class Fill:
    """A number that a wire puts in by itself: a padding value, the other side of a mask (S3e)."""

    value: float


Scope = Mapping[Any, Any]  # Node or Ref -> its value


class Overlay(Mapping[Any, Any]):
    """A scope with a few values replaced."""

    def __init__(self, top: Mapping[Any, Any], base: Mapping[Any, Any]) -> None:
        self.top, self.base = top, base

    def __getitem__(self, key: Any) -> Any:
        return self.top[key] if key in self.top else self.base[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


def resolve(tree: Any, scope: Scope) -> Any:
    """Replace every node and every reference in nested arguments by its value."""
    if isinstance(tree, (Node, Ref)):
        return scope[tree]
    if isinstance(tree, Fill):
        return tree.value
    if isinstance(tree, (list, tuple)):
        return type(tree)(resolve(item, scope) for item in tree)  # pyright: ignore[reportUnknownVariableType]
    return tree


def _nodes(tree: Any) -> Iterator[Node]:
    if isinstance(tree, Node):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:  # pyright: ignore[reportUnknownVariableType]
            yield from _nodes(item)


def rerun(node: Node, changed: Mapping[Node, Any], scope: Scope) -> Any:
    """The value of a node where some values behind it are changed: only what depends on them is run again."""
    known: dict[Node, Any] = dict(changed)
    _rerun(node, known, set(), scope)
    return known[node] if node in known else scope[node]


def _rerun(node: Node, known: dict[Node, Any], settled: set[Node], scope: Scope) -> None:
    """Run a node again if an operand is known anew; `settled` holds the nodes that have been looked at."""
    if node in known or node in settled:
        return
    settled.add(node)
    for operand in node.inputs:
        _rerun(operand, known, settled, scope)
    if any(operand in known for operand in node.inputs):
        known[node] = node.run(Overlay(known, scope))


@dataclass(eq=False)
class Node:
    """One operation of the network on live tensors."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kind: str = "oracle"
    name: str = ""
    operator: str = ""
    path: str = ""  # module path
    calls: tuple[tuple[str, str], ...] = ()  # (path, key) of the module calls that the node lies in, outermost first
    fleeting: bool = False  # reads constants that change from play to play: nothing derived from them is kept
    ref: Ref | None = None  # where others read its value as a constant (S3d)
    reads: tuple[Node, ...] = ()  # nodes whose values it reads as constants
    ancestry: list[Node] | None = None  # what `elementwise.ancestors` found
    helper: bool = False  # part of another operator, such as the broadcast of an operand
    shape: tuple[int, ...] = ()  # -1 stands for the dimension that holds the batch
    layout: Layout = PLAIN
    nonnegative: bool = False
    carries: bool = True  # whether mass may come here: what is detached, and all that rests on it alone, is a constant

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Live operands, in the order of the arguments."""
        return tuple(_nodes(self.args))

    @property
    def carriers(self) -> tuple[Node, ...]:
        """The operands that mass may move to."""
        return self.inputs

    def run(self, scope: Scope) -> Any:
        """The forward value."""
        with at(self):
            return self.function(*resolve(self.args, scope))

    def settle(self, scope: dict[Any, Any], value: Any) -> None:
        """Write down the node's value for all who read it."""
        scope[self] = value
        if self.ref is not None:
            scope[self.ref] = value

    def __repr__(self) -> str:
        return f"{self.name}: {self.kind} {self.shape}"


@dataclass(eq=False, repr=False)
class Oracle(Node):
    """A value that players are told and that never carries mass; `unsupported` if its operator has no kind.

    Where mass would have to pass an unsupported one the network is refused; any other is a constant there (S3d).
    """

    unsupported: bool = False

    @property
    def carriers(self) -> tuple[Node, ...]:
        return ()


@dataclass(eq=False, repr=False)
class Input(Node):
    """The model's input: the terminals of the walk."""

    kind: str = "input"


@dataclass(eq=False, repr=False)
class Affine(Node):
    """`z = W a + b`; in the Routing Game an activation state followed by two stream states."""

    kind: str = "affine"

    map: LinearMap = None  # type: ignore[assignment]
    operand: Node = None  # type: ignore[assignment]
    weight: Callable[[Scope], Tensor] = None  # type: ignore[assignment]
    bias: Callable[[Scope], Tensor] | None = None  # broadcastable against the output

    @property
    def carriers(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(eq=False, repr=False)
class Mix(Affine):
    """A linear map whose weights are no parameters: pooling, means, sums, interpolation."""

    kind: str = "mix"

    signed_weights: bool = False
    count: int | None = None  # of a mean or sum: how many elements each output is made of


@dataclass(eq=False, repr=False)
class Held(Affine):
    """A contraction of two live tensors, read as an affine map of one of them: the other is its weight (S17)."""

    told: Node = None  # type: ignore[assignment]  # the factor that is held


@dataclass(eq=False, repr=False)
class Halves(Node):
    """A contraction of two live tensors that both carry: one half through each way of reading it (S7, S17).

    `args` are its readings, each a `Held` node; where only one of them is left, that one carries all.
    """

    kind: str = "product"

    def keep(self, *readings: Node) -> None:
        """Let only these readings stand."""
        self.args = readings


@dataclass(eq=False, repr=False)
class Diagonal(Node):
    """`y = scale · x + offset` elementwise with constants; `scale` None means 1."""

    kind: str = "diagonal"

    operand: Node = None  # type: ignore[assignment]
    scale: Callable[[Scope], Tensor] | None = None
    offset: Callable[[Scope], Tensor] | None = None

    @property
    def carriers(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(eq=False, repr=False)
class Gate(Node):
    """An activation; `gate` is its name and `options` its numbers, read by `values.gates`.

    A gate that is spelled out in several operators is "composite": what it is shows on a grid of its operand (S3a).
    If it is a product of its operand `z` with functions of `z`, `factors` are those functions and constants (their
    product is `h(z)`), and `behind` are the constants that the product is multiplied by afterwards.
    """

    kind: str = "gate"

    operand: Node = None  # type: ignore[assignment]
    gate: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    factors: tuple[Any, ...] | None = None
    behind: tuple[Any, ...] = ()

    @property
    def carriers(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(eq=False, repr=False)
class Sum(Node):
    """Addition of two live operands of equal shape (addition oracle)."""

    kind: str = "sum"


@dataclass(eq=False, repr=False)
class Max(Node):
    """Max pooling, amax, maximum: `winner` gives, for each output, the flat index of its winner in `carriers[0]`.

    For the maximum of two live operands `winner` is None and the operands compete elementwise. A minimum is the maximum
    of the negated operands (S3f); order statistics (`topk`, `sort`) have winners too.
    """

    kind: str = "max"

    winner: Callable[[Tensor], Tensor] | None = None
    least: bool = False  # the smallest wins

    def first(self, left: Tensor, right: Tensor) -> Tensor:
        """Where the first of two operands wins; it also wins ties."""
        return left <= right if self.least else left >= right


@dataclass(eq=False, repr=False)
class Select(Node):
    """`where(mask, a, b)` by a live mask: all mass goes to the chosen side (S3f); a constant side is a terminal."""

    kind: str = "max"

    mask: Node = None  # type: ignore[assignment]
    sides: tuple[Any, Any] = (None, None)  # nodes or constants

    @property
    def carriers(self) -> tuple[Node, ...]:
        return tuple(side for side in self.sides if isinstance(side, Node) and side.carries)


@dataclass(eq=False, repr=False)
class Norm(Node):
    """Normalisation with detached statistics: `scale(scope)` is the diagonal that the game sees (S3, S7)."""

    kind: str = "norm"

    operand: Node = None  # type: ignore[assignment]
    scale: Callable[[Scope], Tensor] = None  # type: ignore[assignment]
    spread: Callable[[Scope], Tensor] | None = None  # variance of the normalised sample plus eps, where there is one
    average: Callable[[Tensor], Tensor] | None = None  # mean over what is normalised together
    centres: bool = False  # takes the mean off; a spelled-out norm does that in a node of its own, if at all
    statistic: Node | None = None  # of a spelled-out norm: the factor or divisor that is detached

    @property
    def carriers(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(eq=False, repr=False)
class Product(Node):
    """`y = Π operands`, of equal shape; `detached` operands act as scales, the others carry (S17)."""

    kind: str = "product"

    factors: tuple[Node, ...] = ()
    carrying: tuple[Node, ...] = ()
    divides: bool = False  # the last factor is a divisor

    @property
    def carriers(self) -> tuple[Node, ...]:
        return self.carrying


@dataclass(eq=False, repr=False)
class Wire(Node):
    """Moves elements; `constants` says whether some outputs have no live source (padding, class token).

    What it fills in, constant floating-point tensors and `Fill` numbers alike, has no live source.
    """

    kind: str = "wire"

    constants: bool = False
    pads: bool = False  # some outputs are zero padding

    def transpose(self, mass: Tensor, scope: Scope, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Mass at the output carried back to each live operand."""
        return transpose(lambda *operands: self.move(operands, scope), mass, *shapes)

    def move(self, operands: Sequence[Tensor], scope: Scope, constant: float = 0.0) -> Tensor:
        """Run the wire on other operands; all that it fills in becomes `constant`."""
        return self.function(*_substituted(self.args, iter(operands), scope, constant, operands[0].dtype))

    def live(self, shapes: Sequence[torch.Size], scope: Scope, like: Tensor) -> Tensor:
        """1 on elements with a live source, 0 on what is filled in."""
        one = torch.ones(1, dtype=like.dtype, device=like.device)
        return self.move([one.expand(shape) for shape in shapes], scope)

    def sources(self, shapes: Sequence[torch.Size], scope: Scope, device: torch.device) -> Tensor:
        """For each output the number of the element that it holds, counted on from operand to operand; −1: a fill."""
        names: list[Tensor] = []
        offset = 1
        for shape in shapes:
            end = offset + shape.numel()
            names.append(torch.arange(offset, end, dtype=torch.float64, device=device).view(shape))
            offset = end
        return self.move(names, scope).long() - 1


def _substituted(tree: Any, operands: Iterator[Tensor], scope: Scope, constant: float, dtype: torch.dtype) -> Any:
    """Arguments of a wire with its live operands replaced in turn, and its constants by one number."""
    if isinstance(tree, Node):
        return next(operands)
    if isinstance(tree, Fill):
        return constant
    if isinstance(tree, Ref):
        value = scope[tree]
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return torch.full_like(value, constant, dtype=dtype) if floating else value
    if isinstance(tree, torch.dtype) and tree.is_floating_point:  # a cast moves mass as it is
        return dtype
    if isinstance(tree, (list, tuple)):
        return type(tree)(_substituted(item, operands, scope, constant, dtype) for item in tree)  # pyright: ignore[reportUnknownVariableType]
    return tree
