"""The nodes of a network graph, one class for each way to compute and to carry mass (S3), and how they are run.

A node says what it computes (`function` on `args`), what mass may move to (`carriers`) and what is static about its
output (`shape`, `layout`, `nonnegative`). It knows nothing of games. `forward` is the one interpreter: the network's
own pass, deformed passes and passes over a part of the graph (`rerun`) all go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from backplay.entry import at
from backplay.network.layout import PLAIN, Layout
from backplay.network.linear import LinearMap, transpose, write_through
from backplay.network.operators import Operator, meaning


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
    """A scope `base` with the values in `top` in place of its own.

    Nodes that are run on it write to `top`. Constants stay: what reads a detached value does not follow a change.
    """

    def __init__(self, top: dict[Any, Any], base: Scope) -> None:
        self.top, self.base = top, base

    def __getitem__(self, key: Any) -> Any:
        return self.top[key] if key in self.top else self.base[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, Node):
            self.top[key] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


def leaves(tree: Any) -> Iterator[Any]:
    """All that nested lists and tuples of arguments hold, in order."""
    if isinstance(tree, (list, tuple)):
        for item in tree:  # pyright: ignore[reportUnknownVariableType]
            yield from leaves(item)
    else:
        yield tree


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Nested lists and tuples of arguments with `function` applied to every leaf."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(item, function) for item in tree])  # pyright: ignore[reportUnknownVariableType]
    return function(tree)


def resolve(tree: Any, scope: Scope) -> Any:
    """Nested arguments with every node and every reference replaced by its value."""
    if isinstance(tree, (Node, Ref)):
        return scope[tree]
    if isinstance(tree, (list, tuple)):
        return type(tree)([resolve(item, scope) for item in tree])  # pyright: ignore[reportUnknownVariableType]
    return tree.value if isinstance(tree, Fill) else tree


# ---------------------------------------------------------------- running nodes


def forward(
    nodes: Iterable[Node], scope: dict[Any, Any] | Overlay, deform: Callable[[Node], Any] | None = None
) -> Iterator[Node]:
    """Run nodes in order, write their values into `scope`, and yield each node as soon as its value is there.

    `deform` may give another value for a node, which then drives all behind it; None leaves it as it is.
    """
    for node in nodes:
        if not isinstance(node, Input):
            value = None if deform is None else deform(node)
            scope[node] = value = node.run(scope) if value is None else value
            if node.ref is not None:
                scope[node.ref] = value
        yield node


def rerun(node: Node, changed: Mapping[Node, Any], scope: Scope) -> Any:
    """The value of a node where some values behind it are changed: only what depends on them is run again."""
    values = Overlay(dict(changed), scope)
    for _ in forward(_dependent(node, changed), values):
        pass
    return values[node]


def _dependent(node: Node, changed: Mapping[Node, Any]) -> list[Node]:
    """The nodes from changed ones up to `node`, in an order in which they can be run."""
    depends: dict[Node, bool] = dict.fromkeys(changed, True)
    order: list[Node] = []
    waiting = [node]
    while waiting:
        top = waiting[-1]
        missing = [] if top in depends else [n for n in top.inputs if n not in depends]
        if missing:
            waiting += reversed(missing)  # the first operand first
            continue
        waiting.pop()
        if top not in depends:
            depends[top] = any(depends[n] for n in top.inputs)
            if depends[top]:
                order.append(top)
    return order


# ---------------------------------------------------------------- node kinds


@dataclass(eq=False)
class Node:
    """One operation of the network on live tensors.

    What a node computes is given when it is made. Where it stands (`name` to `detached_inputs`) is written by the
    builder that adds it to the graph; `shape`, `layout` and `in_oracle` when the whole graph is known.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]  # nested: nodes, references, numbers
    operator: str  # its name in `network.operators`
    _: KW_ONLY
    nonnegative: bool = False  # no output is below 0, whatever the input (S5)
    helper: bool = False  # part of another operator, such as the broadcast of an operand
    fleeting: bool = False  # rests on constants that change from play to play: nothing derived from them is kept

    name: str = ""  # unique in its network: the path of its module, numbered
    path: str = ""  # of the innermost module that it lies in
    calls: tuple[tuple[str, str], ...] = ()  # (path, key) of the module calls that it lies in, outermost first
    carries: bool = True  # whether mass may come here; what is detached, and all that rests on it alone, is a constant
    ref: Ref | None = None  # the name under which others read its value as a constant (S3d)
    detached_inputs: tuple[Node, ...] = ()  # nodes whose values it reads as constants

    shape: tuple[int, ...] = ()  # of its value; -1 stands for the dimension that holds the batch
    layout: Layout = PLAIN  # where the samples lie in its value
    in_oracle: bool = False  # reaches the output through softmax weights alone (S3)

    ancestry: list[Node] | None = field(default=None, init=False)  # kept by `elementwise.ancestors`

    own_kind: ClassVar[str]

    @property
    def kind(self) -> str:
        """How mass moves here, one of the kinds in the specification's table (S3); several classes may share one."""
        return "oracle" if self.in_oracle else self.own_kind

    @property
    def facts(self) -> Operator:
        """What its operator means."""
        return meaning(self.operator)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """Live operands, in the order of the arguments."""
        return tuple(leaf for leaf in leaves(self.args) if isinstance(leaf, Node))

    @property
    def carriers(self) -> tuple[Node, ...]:
        """The operands that mass may move to."""
        return self.inputs

    def rewire(self, *args: Any) -> None:
        """Give it other arguments."""
        self.args = args
        self.__dict__.pop("inputs", None)

    def run(self, scope: Scope) -> Any:
        """The forward value."""
        with at(self):
            return self.function(*resolve(self.args, scope))

    def __repr__(self) -> str:
        return f"{self.name}: {self.kind} {self.shape}"


@dataclass(eq=False, repr=False, kw_only=True)
class Oracle(Node):
    """A value that players know and that never carries mass: softmax weights, indices, whatever is detached.

    Where mass would have to pass one without a kind the network is refused; any other is a constant there (S3d).
    """

    own_kind = "oracle"

    unsupported: bool = False  # its operator has no kind

    @property
    def carriers(self) -> tuple[Node, ...]:
        return ()


@dataclass(eq=False, repr=False, kw_only=True)
class Input(Node):
    """The model's input: the terminals of the walk."""

    own_kind = "input"


@dataclass(eq=False, repr=False, kw_only=True)
class Unary(Node):
    """A node with one operand that mass may move to; whatever else it reads is held fixed."""

    operand: Node

    @property
    def carriers(self) -> tuple[Node, ...]:
        return (self.operand,)


@dataclass(eq=False, repr=False, kw_only=True)
class Affine(Unary):
    """`z = W a + b`; in the Routing Game an activation state followed by two stream states."""

    own_kind = "affine"

    map: LinearMap  # the geometry: what a weight does to the operand
    weight: Callable[[Scope], Tensor]  # `W` in the form that `map` takes, batch norm folded in
    bias: Callable[[Scope], Tensor] | None = None  # `b`, broadcastable against the output


@dataclass(eq=False, repr=False, kw_only=True)
class Mix(Affine):
    """A linear map whose weights are no parameters: pooling, means, sums, interpolation."""

    own_kind = "mix"

    signed_weights: bool = False  # whether weights may be negative
    count: int | None = None  # of a mean or sum: how many elements each output is made of


@dataclass(eq=False, repr=False, kw_only=True)
class Held(Affine):
    """A contraction of two live tensors, read as an affine map of one of them: the other is its weight (S17)."""

    held: Node  # the factor that is the weight


@dataclass(eq=False, repr=False, kw_only=True)
class Halves(Node):
    """A contraction of two live tensors that both carry: one half through each way of reading it (S7, S17).

    It is a product (S3). `args` are its readings, each a `Held` node; where one of them is left, it carries all.
    """

    own_kind = "product"

    def keep(self, *readings: Node) -> None:
        """Let only these readings stand."""
        self.rewire(*readings)


@dataclass(eq=False, repr=False, kw_only=True)
class Diagonal(Unary):
    """`y = scale · x + offset` elementwise with constants; `scale` None means 1."""

    own_kind = "diagonal"

    scale: Callable[[Scope], Tensor] | None = None
    offset: Callable[[Scope], Tensor] | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Gate(Unary):
    """An activation; `gate` is its name and `options` its numbers, read by `values.gates`.

    A gate that is spelled out in several operators is "composite": what it is shows on a grid of its operand (S3a).
    If it is a product of its operand `z` with functions of `z`, `factors` are those functions and constants (their
    product is `h(z)`), and `behind` are the constants that the product is multiplied by afterwards.
    """

    own_kind = "gate"

    gate: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    factors: tuple[Any, ...] | None = None  # nodes and functions of the scope
    behind: tuple[Callable[[Scope], Tensor], ...] = ()

    def on(self, z: Tensor, scope: Scope) -> Tensor:
        """The gate on another pre-activation; a composite one runs all of its operators again."""
        return rerun(self, {self.operand: z}, scope)


@dataclass(eq=False, repr=False, kw_only=True)
class Sum(Node):
    """Addition of two live operands of equal shape (addition oracle)."""

    own_kind = "sum"


@dataclass(eq=False, repr=False, kw_only=True)
class Max(Node):
    """Max pooling, amax, maximum: `winner` gives, for each output, the flat index of its winner in `carriers[0]`.

    For the maximum of two live operands `winner` is None and the operands compete elementwise. A minimum is the maximum
    of the negated operands (S3f); order statistics (`topk`, `sort`) have winners too.
    """

    own_kind = "max"

    winner: Callable[[Tensor], Tensor] | None = None
    both: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # values and winners, where one call gives them
    least: bool = False  # the smallest wins

    @property
    def place(self) -> tuple[str, Node]:
        """Where a forward pass keeps the winners that it has met."""
        return "winners", self

    def run(self, scope: Scope) -> Any:
        if self.both is None or not isinstance(scope, dict):
            return super().run(scope)
        with at(self):
            value, scope[self.place] = self.both(scope[self.inputs[0]])
        return value

    def winners(self, scope: Scope) -> Tensor:
        """Like the output: the flat index of each winner, as the forward pass has met it or found again."""
        assert self.winner is not None
        kept = None if isinstance(scope, Overlay) else scope.get(self.place)
        return self.winner(scope[self.inputs[0]]) if kept is None else kept

    def first(self, scope: Scope) -> Tensor:
        """Of two operands: where the first wins; it also wins ties."""
        left, right = (scope[n] for n in self.inputs)
        return left <= right if self.least else left >= right

    def pick(self, tensors: Sequence[Tensor], scope: Scope) -> Tensor:
        """Of tensors shaped like the operands: the elements at the winners' places."""
        return (
            torch.where(self.first(scope), *tensors)
            if self.winner is None
            else tensors[0].flatten()[self.winners(scope)]
        )


@dataclass(eq=False, repr=False, kw_only=True)
class Select(Node):
    """`where(mask, a, b)` by a live mask: as at a maximum, all mass goes to one side (S3f). A constant side ends it."""

    own_kind = "max"

    mask: Node
    sides: tuple[Any, Any]  # nodes or constants

    @property
    def carriers(self) -> tuple[Node, ...]:
        return tuple(side for side in self.sides if isinstance(side, Node) and side.carries)

    def first(self, scope: Scope) -> Tensor:
        """Where the first side is chosen, in the shape of the output."""
        return scope[self.mask].expand(scope[self].shape)


@dataclass(eq=False, repr=False, kw_only=True)
class Norm(Unary):
    """Normalisation with detached statistics: `scale(scope)` is the diagonal that the game sees (S3, S7)."""

    own_kind = "norm"

    scale: Callable[[Scope], Tensor]
    spread: Callable[[Scope], Tensor] | None = None  # variance of the normalised sample plus eps, where there is one
    average: Callable[[Tensor], Tensor] | None = None  # mean over what is normalised together
    centres: bool = False  # takes the mean off; a spelled-out norm does that in a node of its own, if at all
    statistic: Node | None = None  # of a spelled-out norm: the factor or divisor that is detached


@dataclass(eq=False, repr=False, kw_only=True)
class Product(Node):
    """A product or quotient of two live tensors of equal shape: what is not `carrying` acts as a scale (S17)."""

    own_kind = "product"

    factors: tuple[Node, Node]
    carrying: tuple[Node, ...]
    divides: bool = False  # the last factor is a divisor

    @property
    def carriers(self) -> tuple[Node, ...]:
        return self.carrying

    def scale_of(self, factor: Node, scope: Scope) -> Tensor:
        """What one factor is multiplied by: the other factor, or one over the divisor."""
        left, right = self.factors
        other = scope[right if factor is left else left]
        return 1 / other if self.divides else other


@dataclass(eq=False, repr=False, kw_only=True)
class Wire(Node):
    """Moves elements, and may fill in others: constant floating-point tensors (a class token) and `Fill` numbers."""

    own_kind = "wire"

    constants: bool = False  # some outputs are filled in: they have no live source
    pads: bool = False  # some outputs are zero padding

    def transpose(self, mass: Tensor, scope: Scope, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Mass at the output carried back to each live operand."""
        facts = self.facts
        if facts.dropout or (facts.copies and mass.shape == shapes[0]):
            return (mass,)  # no element moves
        if facts.views and len(shapes) == 1:
            back = write_through(lambda x: self.move([x], scope), mass, shapes[0])
            if back is not None:
                return (back,)
        if facts.joins and all(isinstance(part, (Node, Ref)) for part in self.args[0]):
            return self._parted(mass, scope, shapes)
        return transpose(lambda *operands: self.move(operands, scope), mass, *shapes)

    def _parted(self, mass: Tensor, scope: Scope, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Mass of a concatenation, part by part."""
        parts, dim, own = self.args[0], self.args[1] if len(self.args) > 1 else 0, iter(shapes)
        all_shapes = [next(own) if isinstance(part, Node) else scope[part].shape for part in parts]
        sizes = [
            shape[dim] if len(shape) == mass.ndim else 0 for shape in all_shapes
        ]  # an empty list counts for nothing
        pieces = zip(mass.split(sizes, dim), parts, strict=True)
        return tuple(piece for piece, part in pieces if isinstance(part, Node))

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
    """Arguments of a wire with its live operands replaced in turn, and what it fills in by one number."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Node):
            return next(operands)
        if isinstance(leaf, Fill):
            return constant
        if isinstance(leaf, Ref):
            given = scope[leaf]
            floating = isinstance(given, Tensor) and given.is_floating_point()
            return torch.full_like(given, constant, dtype=dtype) if floating else given
        # a cast moves mass as it is
        return dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    return mapped(tree, value)
