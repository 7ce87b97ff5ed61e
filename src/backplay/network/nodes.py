"""The nodes of a network graph, one class for each way to compute and to carry mass (S3), and how they are run.

A node says what it computes (`function` on `args`), what mass may move to (`carriers`) and what is static about its
output (`shape`, `layout`, `nonnegative`). It knows nothing of games. Wires, choices and attention have files of their
own. `forward` is the one interpreter: the network's own pass, deformed passes and passes over a part of the graph
(`rerun`) all go through it.

Words for where mass goes: `carries` is False for what is detached and for what rests on that alone: no mass may come
there. The `carriers` of a node are the operands that mass may move on to. Of the two factors of a `Product` those that
are `carrying` get it. `Network.reached` are all nodes that mass comes to, from the output on, from carrier to carrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar

from torch import Tensor

from backplay.entry import at
from backplay.network.layout import PLAIN, Layout
from backplay.network.linear import LinearMap
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
    return compiled(tree)(scope)


def compiled(tree: Any) -> Callable[[Scope], Any]:
    """`resolve` of these arguments, ready to be called on many scopes: what is known already is looked at once."""
    if isinstance(tree, (Node, Ref)):
        return itemgetter(tree)
    if not isinstance(tree, (list, tuple)):
        constant = tree.value if isinstance(tree, Fill) else tree
        return lambda scope: constant
    parts = [compiled(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]
    kind: type[list[Any]] | type[tuple[Any, ...]] = type(tree)
    if not any(isinstance(leaf, (Node, Ref)) for leaf in leaves(tree)):
        known = kind([part({}) for part in parts])
        return lambda scope: known
    return lambda scope: kind([part(scope) for part in parts])


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
    """The value of a node where some values before it are changed: only what depends on them is run again."""
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
        """How mass moves here, one of the kinds in the specification's table (S3); several classes may share one.

        To the kind "oracle" no mass comes, be it for its class, `Oracle`, or for where it stands.
        """
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
        for made in ("inputs", "_arguments"):
            self.__dict__.pop(made, None)

    def run(self, scope: Scope) -> Any:
        """The forward value."""
        with at(self):
            return self.function(*self._arguments(scope))

    @cached_property
    def _arguments(self) -> Callable[[Scope], Any]:
        """Its arguments on a scope."""
        return compiled(self.args)

    def __repr__(self) -> str:
        return f"{self.name}: {self.kind} {self.shape}"


@dataclass(eq=False, repr=False, kw_only=True)
class Oracle(Node):
    """A value that players know and that never carries mass: softmax weights, indices, whatever is detached.

    Where mass would have to pass one without a kind the network is refused; any other is a constant there (S3d). The
    paper's sign oracle and addition oracle are something else: coins that kernels toss to send mass on.
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

    @property
    def unsigned(self) -> bool:
        """Whether no contribution is negative, so that there is one stream and no outside option (S18)."""
        return self.operand.nonnegative and not self.signed_weights


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
    """Addition of two live operands of equal shape; mass goes to one by a toss of a coin, the addition oracle."""

    own_kind = "sum"


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
    """A product or quotient of two live tensors of equal shape; a factor not `carrying` acts as a scale (S17)."""

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
