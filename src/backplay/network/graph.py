"""The network graph: what is played on. Knows nothing of games."""

from __future__ import annotations

import copy
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from backplay.errors import CaptureError, InputError, InputTypeError, suggestion
from backplay.network.arguments import Arguments, read_arguments
from backplay.network.choices import Max
from backplay.network.nodes import Input, Node, Ref, forward
from backplay.network.precision import SingleScope, is_half, precision_of
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Constants
from backplay.network.reading.layouts import lay_out
from backplay.network.reading.reach import played_on
from backplay.network.running import EXPORTING, answer, own_name
from backplay.network.signature import Signature, substitute
from backplay.network.weights import Snapshot, Weights, refuse_nonfinite

MANY = 16  # samples that run together where memory is no matter
_LARGE = 24 << 20  # bytes; allocators hand larger blocks back at once, and their pages are cleared again at every use


class Network:
    """A flat DAG of nodes, each of one kind, that refers to the tensors of its model."""

    def __init__(
        self, model: nn.Module, program: ExportedProgram, builder: Builder, output: Node, example: Arguments
    ) -> None:
        self.model, self.output, self.example = model, output, example
        self.keys = example.explained
        self.signature = Signature.of(program, example)
        self._specs = [s for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
        self.learnable = _by_last_use(program)  # names of parameters, the one that is read last first
        self._lifted = dict(program.constants)  # the program's own constants
        names = {own_name(str(s.target)): str(s.target) in self._lifted for s in self._specs}
        owners = itertools.groupby(names, lambda name: name.rpartition(".")[0])
        # of the model's tensors: the path of each module that holds some, and their names
        self._places = [(path.split(".") if path else [], list(group)) for path, group in owners]
        self._constant = {name for name, lifted in names.items() if lifted}
        self._holds_half = _holds_half(program)
        self._changing = [own_name(name) for name in program.graph_signature.buffers_to_mutate.values()]
        self.statements, self._sizes, self._decided = builder.statements, builder.sizes, builder.decided
        self._size_cache: dict[tuple[int, ...], dict[Any, Any]] = {}
        self._spent: dict[frozenset[Node], dict[Node, list[Node]]] = {}  # by what is kept
        self._weights: Weights | None = None
        self._lock = threading.RLock()

        self.inputs: tuple[Input, ...] = tuple(n for n in builder.nodes if isinstance(n, Input))
        self.nodes, self.reached = played_on(builder, output)  # in the order of the program; those mass can reach
        self.consumers = Counter(dict.fromkeys(self.nodes, 0))
        self.consumers.update(operand for node in self.nodes for operand in node.inputs)
        self._largest, self.example_logits = lay_out(self, example, builder)  # elements of a value of one sample

    def __repr__(self) -> str:
        kinds = sorted({n.kind for n in self.nodes})
        counts = ", ".join(f"{sum(n.kind == k for n in self.nodes)} {k}" for k in kinds)
        return f"Network({type(self.model).__name__}: {len(self.nodes)} nodes; {counts})"

    def __reduce__(self) -> tuple[Any, ...]:
        """An exported program cannot be pickled: what is sent is the model, and it is captured again there."""
        return _recaptured, (self.model, self.example)

    def __copy__(self) -> Network:
        """The same graph on the same model: nothing is captured again, as it would be by way of `__reduce__`."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        """The same graph on a copy of the model."""
        return self.on(copy.deepcopy(self.model, memo))

    @property
    def input(self) -> Input:
        """The one explained input; where there are several, each has the name of its parameter."""
        first, *others = self.inputs
        if others:
            names = ", ".join(n.name for n in self.inputs)
            raise InputError(f"this network has {len(self.inputs)} explained inputs, {names}; name one of them.")
        return first

    # ---------------------------------------------------------------- constants

    def tensors(self) -> dict[str, Tensor]:
        """The model's parameters and buffers that the program reads, as they are now."""
        tensors: dict[str, Tensor] = {}
        with EXPORTING:
            for path, names in self._places:
                owner = _module(self.model, path)
                for name in names:
                    held = _tensor(owner, name.rpartition(".")[2], attribute=name in self._constant)
                    if held is not None:
                        tensors[name] = held
                    elif name not in self._constant:
                        raise CaptureError(
                            f"the model has changed: {name!r} is gone since it was captured; capture it again."
                        )
        return tensors

    @property
    def precision(self) -> torch.dtype:
        """What the model computes in; half precision is played in float32 (S38)."""
        return precision_of(self.tensors().values(), self.signature.dtype)

    def _is_half(self) -> bool:
        return self._holds_half or any(is_half(t) for t in self.tensors().values())

    def parameter_names(self) -> dict[Any, str]:
        """Parameters and buffers of the model, by their name in the program."""
        known = self.tensors()
        named = {Ref(s.arg.name): own_name(str(s.target)) for s in self._specs}
        return {ref: name for ref, name in named.items() if name in known}

    def on(self, model: nn.Module) -> Network:
        """The same graph with the tensors of another copy of the model; nodes are shared."""
        twin = copy.copy(self)
        twin.model, twin._weights = model, None
        twin._lock = threading.RLock()
        return twin

    def weights(self) -> Weights:
        """The model's present state; what was prepared from an earlier one is dropped (S1)."""
        tensors = self.tensors()
        with self._lock:
            if self._weights is None or not self._weights.snapshot.still(tensors):
                refuse_nonfinite(tensors)
                constants = self._constants(tensors)
                if self._decides_otherwise(constants):
                    raise CaptureError(
                        "the model has changed: constants that decide which factor carries, or whether values are "
                        "negative, are others than when it was captured; capture it again."
                    )
                self._weights = Weights(Snapshot.at(tensors), constants)
            return self._weights

    def changed_since(self, weights: Weights) -> str | None:
        """The first tensor of the model that is not as it was when these weights were read; None if all of them are."""
        return weights.snapshot.changed(self.tensors())

    def outgrown(self) -> bool:
        """Whether constants have changed so that the model would be captured as another graph (S3a, S5)."""
        return bool(self._decided) and self._decides_otherwise(self._constants(self.tensors()))

    def _decides_otherwise(self, constants: dict[Any, Any]) -> bool:
        known = Constants(constants, self.statements)
        return any(holds(known) != answer for holds, answer in self._decided)

    def unprepare(self) -> None:
        """Drop what was derived from the weights; it is made again when it is needed."""
        with self._lock:
            self._weights = None

    def _constants(self, tensors: dict[str, Tensor]) -> dict[Any, Any]:
        """The model's tensors and the program's own constants, by their names in the program."""
        device = next((t.device for t in tensors.values()), torch.device("cpu"))
        constants: dict[Any, Any] = {}
        for spec in self._specs:
            target = own_name(str(spec.target))
            constants[Ref(spec.arg.name)] = (
                tensors[target].detach()
                if target in tensors
                else torch.as_tensor(self._lifted[str(spec.target)]).to(device)
            )
        return constants

    # ---------------------------------------------------------------- running

    def scope(self, x: Mapping[Any, Any], weights: Weights) -> dict[Any, Any]:
        """Values of the inputs, of every constant and of every size for a batch."""
        kind = SingleScope if weights.halves or any(is_half(v) for v in x.values()) else dict[Any, Any]
        scope = kind(zip(self.inputs, (x[key] for key in self.keys), strict=True))
        scope.update(weights.constants)
        scope.update(self._sizes_of(x))
        for key, ref in self.signature.fixed.items():
            scope[ref] = x[key]
        for statement in self.statements:
            scope[statement.ref] = statement.run(scope)
        return scope

    def steps(
        self,
        scope: dict[Any, Any],
        deform: Callable[[Node], Any] | None = None,
        forgetful: bool = False,
        kept: frozenset[Node] | None = None,
    ) -> Iterator[Node]:
        """The program run on a scope: each node, as soon as its value is written there.

        `deform` may give another value for a node, which then drives all behind it; None leaves it as it is. The
        forgetful free each value after its last use, but for the output; who names what is to be `kept` keeps that, and
        winners, as well. Of a tensor that is freed the shape is left in its place.
        """
        if kept is None and not forgetful:
            yield from forward(self.nodes, scope, deform)
            return
        spent = self._last_read(kept or frozenset())
        for node in forward(self.nodes, scope, deform):
            yield node
            for operand in spent.get(node, ()):
                scope[operand] = getattr(scope[operand], "shape", None)
            if forgetful and isinstance(node, Max):
                scope.pop(node.place, None)

    def _last_read(self, kept: frozenset[Node]) -> dict[Node, list[Node]]:
        """For each node the operands that nobody reads behind it, but for the output and what is to be `kept`."""
        if kept not in self._spent:
            last = {operand: node for node in self.nodes for operand in node.inputs}
            spent: dict[Node, list[Node]] = {}
            for operand, node in last.items():
                if operand is not self.output and operand not in kept:
                    spent.setdefault(node, []).append(operand)
            self._spent[kept] = spent
        return self._spent[kept]

    def run(self, inputs: Mapping[Any, Any]) -> Tensor:
        """Logits of the captured program."""
        scope = self.scope(inputs, self.weights())
        for _ in self.steps(scope, forgetful=True):
            pass
        return scope[self.output]

    def _sizes_of(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        bound = self.signature.bind(x)
        key = tuple(bound.values())
        if key not in self._size_cache:
            self._size_cache[key] = {Ref(n): substitute(e, bound) for n, e in self._sizes.items()}
        return self._size_cache[key]

    def misfit(self, given: Arguments) -> str | None:
        """Why the forward arguments do not fit what was captured; None if they do."""
        return self.signature.misfit(given)

    def check(self, given: Any, extra: Any = None) -> Arguments:
        """The forward arguments, if they fit what was captured; tensors are copied."""
        given = read_arguments(self.model, given, extra)
        why = self.misfit(given)
        if why is not None:
            raise InputError(why)
        given = given.in_order(self.example).played_in(self.precision)
        given.check_finite()
        copies = {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in given.items()}
        return given.with_values(self.signature.expanded(copies))

    def together(self, x: Tensor) -> int:
        """How many inputs like these are best run at once by who makes them one by one."""
        return min(self.at_once(x), MANY)

    def at_once(self, x: Tensor) -> int:
        """How many samples of a batch are best run at once: on a processor so few that no value is a large block."""
        return max(_LARGE // (x.element_size() * self._largest), 1) if x.device.type == "cpu" else MANY

    def model_logits(self, inputs: Mapping[Any, Any]) -> Tensor:
        """What the model itself computes, in eval mode; half precision is evaluated in float32 (S38)."""
        return answer(self.model, inputs, self._is_half(), self._changing)

    # ---------------------------------------------------------------- names

    def find(self, name: str | Node) -> Node:
        """The node of that name, or the last operation of the module of that name."""
        if isinstance(name, Node):
            if name in self.consumers:
                return name
            raise InputError(f"{name!r} belongs to another network; ask for one of this network's nodes.")
        named = [n for n in self.inputs if n.name == name]
        if named or name == "input":
            return named[0] if named else self.input
        ends: dict[str, Node] = {}
        for node in self.nodes:
            for path, key in node.calls:
                if path == name and name:
                    ends[key] = node
        if len(ends) > 1:
            names = [f"{n.name}#1" if n.name == name else n.name for n in ends.values()]
            raise InputError(f"{name!r} is ambiguous: the module is called {len(ends)} times; name one of {names}.")
        if ends:
            return next(iter(ends.values()))
        exact = {n.name: n for n in self.nodes}
        exact |= {f"{n}#1": node for n, node in exact.items() if f"{n}#2" in exact}
        if name in exact:
            return exact[name]
        modules = {path for n in self.nodes for path, _ in n.calls if path}
        raise InputError(
            f"no node or module named {name!r} in this network{suggestion(name, sorted({*exact, *modules}))}; "
            "print(game.inspect(x)) lists all, with game = bp.RoutingGame(model)."
        )


def _by_last_use(program: ExportedProgram) -> tuple[str, ...]:
    """The model's parameters from the output to the input: the one that the forward pass reads last comes first.

    A parameter that is read several times stands where it is read last; one that is never read stands at the end.
    """
    place = {node: k for k, node in enumerate(program.graph.nodes)}
    named = program.graph_signature.inputs_to_parameters
    read = {named[n.name]: max((place[u] for u in n.users), default=-1) for n in place if n.name in named}
    return tuple(own_name(name) for name in sorted(read, key=lambda name: -read[name]))


def _holds_half(program: ExportedProgram) -> bool:
    """Whether anything in the program, or in its sub-graphs, has half precision."""
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    return any(is_half(node.meta.get("val")) for graph in graphs for node in graph.nodes)


def _recaptured(model: nn.Module, example: Arguments) -> Network:
    from backplay.network.capture import capture  # which builds networks, and imports this module

    return capture(model, example)


def _module(model: nn.Module, path: list[str]) -> Any:
    """The module that a path leads to, or another object that holds tensors; None where it leads nowhere."""
    owner: Any = model
    for name in path:
        inside = isinstance(owner, nn.Module) and name in owner._modules
        owner = owner._modules[name] if inside else getattr(owner, name, None)
    return owner


def _tensor(owner: Any, name: str, attribute: bool) -> Tensor | None:
    """A parameter or buffer of a module; where the exporter took a constant, also a plain `attribute`."""
    held = None
    if isinstance(owner, nn.Module):
        held = owner._parameters.get(name, owner._buffers.get(name))
    if held is None and attribute:
        held = getattr(owner, name, None)
    return held if isinstance(held, Tensor) else None


# ---------------------------------------------------------------- what may be given as a model


class Holder(Protocol):
    """A module with what belongs to it, such as a loaded model with its preprocessing."""

    @property
    def model(self) -> nn.Module: ...


Model = nn.Module | Network | Holder


def read_model(model: object, asking: str = "a game") -> nn.Module | Network:
    """The module or the network that is meant."""
    if isinstance(model, (nn.Module, Network)):
        return model
    held = getattr(model, "model", None)
    if isinstance(held, nn.Module) and not isinstance(model, type):
        return held
    raise InputTypeError(
        f"{asking} takes a torch.nn.Module, a backplay.Network or a loaded model, got {type(model).__name__}; "
        "wrap a function in a module's forward."
    )
