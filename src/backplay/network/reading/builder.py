"""What is collected while an exported program is read: nodes, constants and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from backplay.network import operators
from backplay.network.nodes import Diagonal, Input, Node, Oracle, Ref, Scope, leaves
from backplay.network.precision import single
from backplay.network.reading.calls import READINGS, Call, Constants, Statement, constant, functional
from backplay.network.running import own_name
from backplay.network.wires import Wire

AnyNode = TypeVar("AnyNode", bound=Node)


@dataclass(frozen=True)
class Spot:
    """Where a call of the program stands."""

    operator: str
    name: str
    path: str


@dataclass
class Builder:
    """Collects nodes, constants and sizes while it reads a graph."""

    nodes: list[Node] = field(default_factory=list[Node])  # in the order of the program
    statements: list[Statement] = field(default_factory=list[Statement])  # calls on constants, in order
    sizes: dict[str, Any] = field(default_factory=dict[str, Any])  # reference name -> int or sympy expression
    values: dict[fx.Node, Any] = field(default_factory=dict[fx.Node, Any])  # what each call has become
    meta: dict[str, Any] = field(default_factory=dict[str, Any])  # reference name -> traced value
    traced: dict[Node, torch.Size] = field(default_factory=dict[Node, torch.Size])  # symbolic shapes
    varying: set[Ref] = field(default_factory=set[Ref])  # references whose values change from play to play
    constants: Constants = field(default_factory=lambda: Constants({}, []))  # those known before a play
    # what the graph rests on of the constants' values: a question and its answer at capture (S3a, S5)
    decided: list[tuple[Callable[[Scope], bool], bool]] = field(
        default_factory=list[tuple[Callable[[Scope], bool], bool]]
    )
    detached: dict[Ref, Node] = field(default_factory=dict[Ref, Node])  # nodes whose values are read as constants
    not_floating: set[Node] = field(default_factory=set[Node])  # nodes whose values are integers or truth values
    log_sums: dict[Node, tuple[Node, int]] = field(  # log Σ exp -> what is summed, and along which axis
        default_factory=dict[Node, tuple[Node, int]]
    )
    current: fx.Node | None = None  # the call that is being read
    scratch: fx.Graph = field(default_factory=fx.Graph)  # calls that `spell` writes
    prefix: str = ""  # of the names of an inlined sub-graph

    # ---------------------------------------------------------------- nodes

    def add(self, node: AnyNode, shape: torch.Size | None = None) -> AnyNode:
        """Append a node that belongs to the call being read, of that call's shape unless another is given."""
        assert self.current is not None
        value = self.current.meta["val"]
        self.traced[node] = getattr(value, "shape", torch.Size()) if shape is None else shape
        refs = [leaf for leaf in leaves(node.args) if isinstance(leaf, Ref)]
        node.fleeting = node.fleeting or any(ref in self.varying for ref in refs)
        node.detached_inputs = tuple(dict.fromkeys(self.detached[ref] for ref in refs if ref in self.detached))
        if isinstance(value, Tensor) and not value.is_floating_point():
            self.not_floating.add(node)
        node.carries = isinstance(node, Input) or _may_carry(node)
        node.calls = self._calls()
        node.path = node.calls[-1][0] if node.calls else ""
        self.nodes.append(node)
        return node

    def _calls(self) -> tuple[tuple[str, str], ...]:
        assert self.current is not None
        stack = self.current.meta.get("nn_module_stack", {})
        return tuple((own_name(path), key) for key, (path, _) in stack.items())

    def spot(self, node: fx.Node) -> Spot:
        """Where the call that is being read stands, for errors."""
        calls = self._calls()
        return Spot(str(node.target).removeprefix("aten.").partition(".")[0], node.name, calls[-1][0] if calls else "")

    def extend(self, node: Node) -> None:
        """The call being read becomes part of an earlier node, which its module now names too."""
        node.calls = (*node.calls, *self._calls())

    def users(self, node: Node) -> int:
        """How many calls read the value of a node."""
        return sum(len(call.users) for call, value in self.values.items() if value is node)

    def expand(self, operand: Node, like: fx.Node) -> Node:
        """A broadcast operand is an expand wire before the node that broadcasts it (S7)."""
        shape = like.meta["val"].shape
        if list(self.traced[operand]) == list(shape):
            return operand
        args = operand, self.shape_of(like)
        wire = Wire(Tensor.expand, args, "expand", nonnegative=operand.nonnegative, helper=True)
        return self.add(wire, shape)

    def scaled(self, operand: Node, factor: float) -> Node:
        """Multiplication by a number as a node of its own (`sub`, `neg`, `add(alpha=)`)."""
        if factor == 1:
            return operand
        node = Diagonal(
            torch.mul,
            (operand, factor),
            "mul",
            operand=operand,
            scale=constant(factor),
            nonnegative=operand.nonnegative and factor >= 0,
            helper=True,
        )
        return self.add(node, self.traced[operand])

    # ---------------------------------------------------------------- calls

    def call(self, node: fx.Node) -> Call:
        """A call with its arguments replaced by what they have become."""
        name, op = functional(node.target)
        schema = op._schema.arguments
        given = {argument.name: self.values_of(value) for argument, value in zip(schema, node.args, strict=False)}
        given |= {key: self.values_of(value) for key, value in node.kwargs.items()}
        defaults = {a.name: a.default_value for a in schema if a.name not in given and a.has_default_value()}
        return Call(node, name, op, tuple(given.values()), tuple(node.kwargs), given | defaults)

    def values_of(self, tree: Any) -> Any:
        """Nested arguments of an exported call with its nodes replaced by what they have become."""
        if isinstance(tree, fx.Node):
            return self.values[tree]
        if isinstance(tree, torch.dtype):
            return single(tree)  # half precision is played in float32
        if isinstance(tree, (list, tuple)):
            return [self.values_of(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]
        return tree

    def read(self, call: Call) -> Any:
        """The node of a live call, by its row in `network.operators`; integers have no derivative, and are constants.

        An operator without a kind becomes an oracle that mass must not come to.
        """
        value, facts = call.node.meta.get("val"), operators.meaning(call.operator)
        if isinstance(value, Tensor) and operators.is_counting(value.dtype):
            return self.oracle(call)
        made = READINGS[facts.reading](self, call) if facts.reading else None
        if made is not None:
            return made
        unknown = Oracle(*call.itself, unsupported=not facts.slopeless)
        return self.add(unknown)

    def spell(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The node of a call that the program does not hold: for operators that are what they spell out (S3f)."""
        node, before = self._scratch(op, args, kwargs), self.current
        self.current = node
        try:
            call = self.call(node)
            operands = list(leaves([call.args, list(kwargs.values())]))
            if not any(isinstance(leaf, Node) for leaf in operands):
                return self.oracle(call) if self.reads_detached(operands) else self.run_later(node)
            return self.read(call)
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
                dtype = torch.bool if value in self.not_floating else like.dtype
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

    # ---------------------------------------------------------------- constants

    def reference(self, node: fx.Node) -> Ref:
        """A constant tensor or a size of the program, resolved when it is played."""
        value, name = node.meta.get("val"), f"{self.prefix}{node.name}"
        self.meta[name] = value
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            self.sizes[name] = value.node.expr
            self.varying.add(Ref(name))
        return Ref(name)

    def run_later(self, node: fx.Node, blank: int | None = None) -> Ref:
        """A call on constants alone: it is run as it stands, mutations included, before each play.

        `blank` is the position of an operand of which only shape and dtype matter: an empty tensor takes its place.
        """
        ref = self.reference(node)
        args, kwargs = self.values_of(list(node.args)), {k: self.values_of(v) for k, v in node.kwargs.items()}
        if blank is not None and (isinstance(args[blank], Node) or args[blank] in self.detached):
            args[blank] = self.empty_like(node.args[blank])  # type: ignore[arg-type]
        self._state(Statement(ref, node.target, args, kwargs))  # type: ignore[arg-type]
        return ref

    def computed(self, function: Callable[..., Tensor], *tensors: Ref) -> Ref:
        """A constant that is computed from constants before each play."""
        assert self.current is not None
        ref = Ref(f"{self.prefix}{self.current.name} {len(self.statements)}")
        self.meta[ref.name] = function(*(self.meta[t.name] for t in tensors))
        self._state(Statement(ref, function, list(tensors), {}))
        return ref

    def in_place_of(self, call: Call, function: Callable[..., Any], *args: Any) -> Ref:
        """A constant in the place of a live call: what the call makes of constants and sizes alone."""
        if self.reads_detached(args):
            oracle = Oracle(function, args, call.operator)
            return self.detach(self.add(oracle), call.node.meta["val"])
        ref = self.reference(call.node)
        self._state(Statement(ref, function, list(args), {}), varies=True)  # it is of the batch's shape
        return ref

    def empty_like(self, like: fx.Node) -> Ref:
        """An empty tensor in the shape of a live one."""
        ref = Ref(f"{self.prefix}blank {like.name}")
        source = next(n for n in self.nodes if isinstance(n, Input))
        dtype = None if like.meta["val"].is_floating_point() else like.meta["val"].dtype

        def make(x: Tensor, shape: list[int]) -> Tensor:
            return x.new_empty(shape, dtype=dtype)

        self._state(Statement(ref, make, [source, self.shape_of(like)], {}), varies=True)
        return ref

    def _state(self, statement: Statement, varies: bool = False) -> None:
        """Note a call on constants, and whether its value changes from play to play."""
        self.statements.append(statement)
        given = leaves([statement.args, list(statement.kwargs.values())])
        if varies or any(leaf in self.varying for leaf in given if isinstance(leaf, Ref)):
            self.varying.add(statement.ref)

    def detach(self, node: Node, traced: Any) -> Ref:
        """A value without a derivative, as the constant that all others read (S3d); `traced` is what export saw."""
        if node.ref is None:
            node.ref = Ref(f"detached {len(self.detached)}")
            self.detached[node.ref], self.meta[node.ref.name] = node, traced
            self.varying.add(node.ref)
        return node.ref

    def reads_detached(self, tree: Any) -> bool:
        """Whether nested arguments hold values of detached nodes."""
        return any(leaf in self.detached for leaf in leaves(tree) if isinstance(leaf, Ref))

    def oracle(self, call: Call) -> Ref:
        """A call without a derivative: a detached value, an index, whatever follows from detached values alone."""
        oracle = Oracle(*call.itself)
        return self.detach(self.add(oracle), call.node.meta.get("val"))

    # ---------------------------------------------------------------- shapes

    def size(self, value: Any) -> Any:
        """A dimension of a traced shape: an int, or a reference that is resolved with the batch size."""
        if isinstance(value, int):
            return value
        expression = value.node.expr
        name = f"size {expression}"
        self.sizes[name] = expression
        return Ref(name)

    def shape_of(self, node: fx.Node) -> list[Any]:
        """The shape of a call's value, as an argument of others."""
        return [self.size(s) for s in node.meta["val"].shape]

    def traced_shape(self, tensor: Node | Ref) -> torch.Size:
        """The traced shape of a node or a constant."""
        return self.traced[tensor] if isinstance(tensor, Node) else self.meta[tensor.name].shape

    def rank(self, tensor: Node | Ref) -> int:
        return len(self.traced_shape(tensor))

    def is_empty(self, tensor: Node | Ref) -> bool:
        """Whether a tensor holds no element, such as a fresh cache in front of keys and values."""
        return any(isinstance(s, int) and s == 0 for s in self.traced_shape(tensor))

    def is_floating(self, ref: Ref) -> bool:
        value = self.meta.get(ref.name)
        return isinstance(value, Tensor) and value.is_floating_point()

    def fewer(self, x: Node, reduced: Any) -> int:
        """How many elements of a tensor stand behind each one of the shape that it is reduced to."""
        whole, rest = (math.prod(s for s in shape if isinstance(s, int)) for shape in (self.traced[x], reduced))
        return whole // max(rest, 1)

    # ---------------------------------------------------------------- what constants decide

    def decide(self, holds: Callable[[Scope], bool]) -> bool:
        """Whether something holds of the constants; what rests on it is captured anew when that changes."""
        self.constants.was_read = False
        try:
            answer = holds(self.constants)
        except (KeyError, RuntimeError):  # a constant that changes from play to play
            return False
        if self.constants.was_read:
            self.decided.append((holds, answer))
        return answer

    def is_nonnegative(self, value: Any, negated: bool = False) -> bool:
        """Whether an operand, or minus it, is nowhere negative: a node by its kind, a constant by its entries (S5)."""
        if isinstance(value, Node):
            return value.nonnegative and not negated
        if isinstance(value, Ref):
            sign = -1 if negated else 1
            return self.decide(lambda constants: bool((sign * constants[value] >= 0).all()))
        return isinstance(value, (int, float)) and value >= 0


def _may_carry(node: Node) -> bool:
    """Whether mass may come to a node: it rests on something that carries, and has a derivative (S3d).

    An operator without a kind counts as if it had one, so that a walk that would have to cross it is refused.
    """
    operands = node.inputs if isinstance(node, Oracle) else node.carriers
    return any(n.carries for n in operands) and not (isinstance(node, Oracle) and not node.unsupported)
