"""What is collected while an exported program is read: nodes, constants and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from backplay.network import operators
from backplay.network.nodes import Diagonal, Input, Node, Oracle, Ref, Scope, Wire, resolve
from backplay.network.precision import single


@dataclass
class Call:
    """One call of the exported program, its arguments bound to their names."""

    node: fx.Node
    operator: str
    op: Any
    args: tuple[Any, ...]
    keywords: tuple[str, ...]
    named: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def get(self, name: str, default: Any = None) -> Any:
        value = self.named.get(name)
        return default if value is None else value

    @property
    def function(self) -> Callable[..., Any]:
        count, op, keywords = len(self.args) - len(self.keywords), self.op, self.keywords
        if not keywords:
            return op
        return lambda *args: op(*args[:count], **dict(zip(keywords, args[count:], strict=True)))


@dataclass(frozen=True)
class Statement:
    """`ref = function(*args, **kwargs)` on constants and sizes."""

    ref: Ref
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Spot:
    """Where a call of the program stands."""

    operator: str
    name: str
    path: str


def functional(target: Any) -> tuple[str, Any]:
    """The operator's plain name and its out-of-place twin."""
    packet = target.overloadpacket
    name: str = packet.__name__
    if name in ("view", "_unsafe_view"):  # other strides than the traced ones must do as well
        return "view", torch.ops.aten.reshape.default
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
        packet = getattr(torch.ops.aten, name)
        overload = target._overloadname
        target = getattr(packet, overload if overload in packet.overloads() else packet.overloads()[0])
    return operators.SPECIAL.get(name, name), target


@dataclass
class Builder:
    """Collects nodes, constants and sizes while it reads a graph."""

    nodes: list[Node] = field(default_factory=list[Node])
    program: list[Statement] = field(default_factory=list["Statement"])  # calls on constants, in order
    sizes: dict[str, Any] = field(default_factory=dict[str, Any])  # reference name -> int or sympy expression
    values: dict[fx.Node, Any] = field(default_factory=dict[fx.Node, Any])
    meta: dict[str, Any] = field(default_factory=dict[str, Any])  # reference name -> traced value
    traced: dict[Node, torch.Size] = field(default_factory=dict[Node, torch.Size])  # symbolic shapes
    given: set[Ref] = field(default_factory=set[Ref])  # references that change from play to play
    constants: Scope = field(default_factory=dict[Any, Any])  # values of constants that are known before a play
    # what the graph rests on of the constants' values: a question and its answer at capture (S3a, S5)
    decided: list[tuple[Callable[[Scope], bool], bool]] = field(
        default_factory=list[tuple[Callable[[Scope], bool], bool]]
    )
    told: dict[Ref, Node] = field(default_factory=dict[Ref, Node])  # values of nodes that are read as constants
    whole: set[Node] = field(default_factory=set[Node])  # nodes whose values are no floating-point numbers
    current: fx.Node | None = None
    scratch: fx.Graph = field(default_factory=fx.Graph)  # calls that `spell` writes
    prefix: str = ""  # of the names of an inlined sub-graph

    def add(self, node: Node, shape: torch.Size | None = None) -> Node:
        """Append a node that belongs to the call being read, of that call's shape unless told otherwise."""
        assert self.current is not None
        value = self.current.meta["val"]
        self.traced[node] = getattr(value, "shape", torch.Size()) if shape is None else shape
        refs = [leaf for leaf in flat(node.args) if isinstance(leaf, Ref)]
        node.fleeting = node.fleeting or any(ref in self.given for ref in refs)
        node.reads = tuple(dict.fromkeys(self.told[ref] for ref in refs if ref in self.told))
        if isinstance(value, Tensor) and not value.is_floating_point():
            self.whole.add(node)
        node.carries = isinstance(node, Input) or _may_carry(node)
        node.calls = self._calls()
        node.path = node.calls[-1][0] if node.calls else ""
        self.nodes.append(node)
        return node

    def _calls(self) -> tuple[tuple[str, str], ...]:
        assert self.current is not None
        stack = self.current.meta.get("nn_module_stack", {})
        return tuple((path.removeprefix("model").removeprefix("."), key) for key, (path, _) in stack.items())

    def spot(self, node: fx.Node) -> Spot:
        """Where the call that is being read stands, for errors."""
        calls = self._calls()
        return Spot(str(node.target).removeprefix("aten.").partition(".")[0], node.name, calls[-1][0] if calls else "")

    def reference(self, node: fx.Node) -> Ref:
        """A constant tensor or a size of the program, resolved when it is played."""
        value, name = node.meta.get("val"), f"{self.prefix}{node.name}"
        self.meta[name] = value
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            self.sizes[name] = value.node.expr
            self.given.add(Ref(name))
        return Ref(name)

    def run_later(self, node: fx.Node, blank: int | None = None) -> Ref:
        """A call on constants alone: it is run as it stands, mutations included, before each play.

        `blank` is the position of an operand of which only shape and dtype matter: an empty tensor takes its place.
        """
        ref = self.reference(node)
        args, kwargs = self.lower(list(node.args)), {k: self.lower(v) for k, v in node.kwargs.items()}
        if blank is not None and (isinstance(args[blank], Node) or args[blank] in self.told):
            args[blank] = self._blank(node.args[blank])  # type: ignore[arg-type]
        self.program.append(Statement(ref, node.target, args, kwargs))  # type: ignore[arg-type]
        if any(leaf in self.given for leaf in flat([args, list(kwargs.values())]) if isinstance(leaf, Ref)):
            self.given.add(ref)
        return ref

    def _blank(self, like: fx.Node) -> Ref:
        """An empty tensor in the shape of a live one."""
        ref = Ref(f"{self.prefix}blank {like.name}")
        source = next(n for n in self.nodes if isinstance(n, Input))
        dtype = None if like.meta["val"].is_floating_point() else like.meta["val"].dtype

        def make(x: Tensor, shape: list[int]) -> Tensor:
            return x.new_empty(shape, dtype=dtype)

        self.program.append(Statement(ref, make, [source, self.shape_of(like)], {}))
        self.given.add(ref)  # as large as the batch
        return ref

    def tell(self, node: Node, traced: Any) -> Ref:
        """A value without a derivative, as the constant that all others read (S3d); `traced` is what export saw."""
        if node.ref is None:
            node.ref = Ref(f"told {len(self.told)}")
            self.told[node.ref], self.meta[node.ref.name] = node, traced
            self.given.add(node.ref)
        return node.ref

    def oracle(self, call: Call) -> Ref:
        """A call whose value is told: a detached value, an index, whatever follows from told values alone."""
        return self.tell(self.add(Oracle(call.function, call.args, operator=call.operator)), call.node.meta.get("val"))

    def compute(self, call: Call, function: Callable[..., Any], *args: Any) -> Ref:
        """A constant in the place of a live call: what the call makes of constants and sizes alone."""
        if any(leaf in self.told for leaf in flat(args) if isinstance(leaf, Ref)):
            return self.tell(self.add(Oracle(function, args, operator=call.operator)), call.node.meta["val"])
        ref = self.reference(call.node)
        self.program.append(Statement(ref, function, list(args), {}))
        self.given.add(ref)  # of the batch's shape
        return ref

    def like(self, call: Call) -> Ref:
        """An empty tensor like the value of a call."""
        return self._blank(call.node)

    def spell(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The node of a call that the program does not hold: for operators that are what they spell out (S3f)."""
        node, before = self._scratch(op, args, kwargs), self.current
        self.current = node
        try:
            call = self.call(node)
            leaves = flat([call.args, list(kwargs.values())])
            if not any(isinstance(leaf, Node) for leaf in leaves):
                told = any(leaf in self.told for leaf in leaves if isinstance(leaf, Ref))
                return self.oracle(call) if told else self.run_later(node)
            found = LOWERINGS.get(call.operator)
            made = None if found is None else found(self, call)
            if made is None:
                return self.add(Oracle(call.function, call.args, operator=call.operator, unsupported=True))
            return made
        finally:
            self.current = before

    def _scratch(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """A call as the exporter would have written it, with the value that it would have seen."""
        assert self.current is not None
        traced = self.current.meta["val"]
        like = traced[0] if isinstance(traced, (list, tuple)) else traced

        def place(value: Any) -> Any:
            if isinstance(value, list):
                return [place(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(value, (Node, Ref)):
                return value
            given = self.scratch.placeholder(f"given_{len(self.scratch.nodes)}")
            self.values[given] = value
            if isinstance(value, Node):
                dtype = torch.bool if value in self.whole else like.dtype
                given.meta["val"] = torch.empty(self.traced[value], dtype=dtype, device=like.device)
            else:
                given.meta["val"] = self.meta[value.name]
            return given

        with like.fake_mode:
            places = tuple(place(a) for a in args)
            node = self.scratch.call_function(op, places, kwargs)
            node.name = f"spelled_{node.name}"
            node.meta["val"] = op(*fx.map_arg(places, lambda given: given.meta["val"]), **kwargs)
        node.meta["nn_module_stack"] = self.current.meta.get("nn_module_stack", {})
        return node

    def extend(self, node: Node) -> None:
        """The call being read becomes part of an earlier node, which its module now names too."""
        node.calls = (*node.calls, *self._calls())

    def users(self, node: Node) -> int:
        """How many calls read the value of a node."""
        found = [key for key, value in self.values.items() if value is node]
        return sum(len(key.users) for key in found)

    def is_floating(self, ref: Ref) -> bool:
        value = self.meta.get(ref.name)
        return isinstance(value, Tensor) and value.is_floating_point()

    def is_empty(self, ref: Ref) -> bool:
        return any(isinstance(s, int) and s == 0 for s in self.meta[ref.name].shape)

    def fewer(self, x: Node, reduced: Node) -> int:
        """How many elements of a tensor stand behind each one of what it was reduced to."""
        whole, rest = (math.prod(s for s in self.traced[n] if isinstance(s, int)) for n in (x, reduced))
        return whole // max(rest, 1)

    def decide(self, holds: Callable[[Scope], bool]) -> bool:
        """Whether something holds of the constants; what rests on it is captured anew when that changes."""
        read = _Read(self.constants)
        try:
            found = holds(read)
        except (KeyError, RuntimeError):  # a constant that changes from play to play
            return False
        if read.keys_read:
            self.decided.append((holds, found))
        return found

    def is_nonnegative(self, value: Any, negated: bool = False) -> bool:
        """Whether an operand, or minus it, is nowhere negative: a node by its kind, a constant by its entries (S5)."""
        if isinstance(value, Node):
            return value.nonnegative and not negated
        if isinstance(value, Ref):
            sign = -1 if negated else 1
            return self.decide(lambda constants: bool((sign * constants[value] >= 0).all()))
        return isinstance(value, (int, float)) and value >= 0

    def rank(self, ref: Ref) -> int:
        return len(self.meta[ref.name].shape)

    def call(self, node: fx.Node) -> Call:
        name, op = functional(node.target)
        bound: dict[str, Any] = {}
        arguments = op._schema.arguments
        for argument, value in zip(arguments, node.args, strict=False):
            bound[argument.name] = self.lower(value)
        for key, value in node.kwargs.items():
            bound[key] = self.lower(value)
        keywords = tuple(node.kwargs)
        named = bound | {a.name: a.default_value for a in arguments if a.name not in bound and a.has_default_value()}
        return Call(node, name, op, tuple(bound.values()), keywords, named)

    def lower(self, tree: Any) -> Any:
        """Replace nodes of the exported graph by ours."""
        if isinstance(tree, fx.Node):
            return self.values[tree]
        if isinstance(tree, torch.dtype):
            return single(tree)  # half precision is played in float32
        if isinstance(tree, (list, tuple)):
            return [self.lower(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]
        return tree

    def size(self, value: Any) -> Any:
        """A dimension of a traced shape: an int, or a reference that is resolved with the batch size."""
        if isinstance(value, int):
            return value
        expression = value.node.expr
        name = f"size {expression}"
        self.sizes[name] = expression
        return Ref(name)

    def shape_of(self, node: fx.Node) -> list[Any]:
        return [self.size(s) for s in node.meta["val"].shape]

    def expand(self, operand: Node, like: fx.Node) -> Node:
        """A broadcast operand is an expand wire before the node that broadcasts it (S7)."""
        shape = like.meta["val"].shape
        if list(self.traced[operand]) == list(shape):
            return operand
        wire = Wire(Tensor.expand, (operand, self.shape_of(like)), operator="expand", nonnegative=operand.nonnegative)
        wire.helper = True
        return self.add(wire, shape)

    def scaled(self, operand: Node, factor: float) -> Node:
        """Multiplication by a number as a node of its own (`sub`, `neg`, `add(alpha=)`)."""
        if factor == 1:
            return operand
        node = Diagonal(torch.mul, (operand, factor), operator="mul")
        node.operand, node.scale = operand, constant(factor)
        node.nonnegative, node.helper = operand.nonnegative and factor >= 0, True
        return self.add(node, self.traced[operand])


def _may_carry(node: Node) -> bool:
    """Whether mass may come to a node: it rests on something that carries, and is not told (S3d).

    An operator without a kind counts as if it did, so that a walk that would have to cross it is refused.
    """
    operands = node.inputs if isinstance(node, Oracle) else node.carriers
    return any(n.carries for n in operands) and not (isinstance(node, Oracle) and not node.unsupported)


class _Read(Mapping[Any, Any]):
    """Constants, with a note of whether any was read."""

    def __init__(self, constants: Scope) -> None:
        self._constants, self.keys_read = constants, 0

    def __getitem__(self, key: Any) -> Any:
        self.keys_read += 1
        return self._constants[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)


class Constants(Mapping[Any, Any]):
    """Constants whose values are known before the model is played: its tensors, and what is computed from them.

    They are read on the processor, where the grid of S3a is. A `KeyError` where a value depends on the input's size or
    on an argument that changes from play to play.
    """

    def __init__(self, tensors: Mapping[Ref, Any], program: list[Statement]) -> None:
        self._known, self._program = dict(tensors), program

    def __getitem__(self, key: Any) -> Any:
        if key not in self._known:
            statement = next((s for s in self._program if s.ref == key), None)
            if statement is None:
                raise KeyError(key)
            self._known[key] = self._run(statement)
        value = self._known[key]
        return value.cpu() if isinstance(value, Tensor) else value

    def _run(self, statement: Statement) -> Any:
        """What a call on constants gives; of one that fills a tensor in the size of the batch, the one number in it."""
        name = getattr(getattr(statement.function, "overloadpacket", None), "__name__", "")
        if "zeros" in name or "ones" in name:
            return torch.tensor(float("ones" in name), dtype=torch.float64)
        if "full" in name and isinstance(statement.args[-1], (int, float)):
            return torch.tensor(float(statement.args[-1]), dtype=torch.float64)
        args = resolve(statement.args, self)
        try:
            return statement.function(*args, **{k: resolve(v, self) for k, v in statement.kwargs.items()})
        except (IndexError, RuntimeError) as error:  # one number cannot stand for a tensor whose axes are asked for
            raise KeyError(statement.ref) from error

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def flat(tree: Any) -> list[Any]:
    """The leaves of nested arguments."""
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in flat(item)]  # pyright: ignore[reportUnknownVariableType]
    return [tree]


def is_live(value: Any) -> bool:
    """Whether an argument is a tensor that mass may come to; what is detached is a constant (S3d)."""
    return isinstance(value, Node) and value.carries


def constant(value: Any) -> Callable[[Scope], Tensor]:
    """A number, a reference or a detached value as a function of the scope."""

    def read(scope: Scope) -> Tensor:
        found = scope[value] if isinstance(value, (Ref, Node)) else value
        return found if isinstance(found, Tensor) else torch.tensor(float(found), dtype=torch.float64)

    return read


Lowering = Callable[[Builder, Call], Any]
LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register the function that turns calls of these operators into nodes."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return register
