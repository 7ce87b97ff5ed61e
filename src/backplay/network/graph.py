"""The network graph: what is played on. Knows nothing of games."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from backplay.errors import CaptureError, InputError, suggestion
from backplay.network.arguments import Arguments, Key, read
from backplay.network.attention import Attention
from backplay.network.builder import Builder, Constants, Statement
from backplay.network.layout import PLAIN, Layout
from backplay.network.nodes import Input, Node, Ref, Wire, resolve
from backplay.network.precision import SingleScope, in_single, is_half, precision_of
from backplay.network.reach import mark_oracles, name_all, reachable, reached_by_mass, read_once
from backplay.network.refusals import mixes_samples
from backplay.network.running import EXPORTING, as_they_are, evaluation, logits_of
from backplay.network.signature import Signature, substitute
from backplay.network.weights import Weights, fingerprints

MANY = 16  # samples that run together where memory is no matter
_LARGE = 24 << 20  # bytes; allocators hand larger blocks back at once, and their pages are cleared again at every use


class Network:
    """A flat DAG of nodes, each of one kind, that refers to the tensors of its model."""

    def __init__(
        self,
        model: nn.Module,
        program: ExportedProgram,
        builder: Builder,
        output: Node,
        example: Arguments,
    ) -> None:
        self.model, self.output = model, output
        self.inputs: tuple[Input, ...] = tuple(n for n in builder.nodes if isinstance(n, Input))
        self._specs = [s for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
        self.learnable = _by_last_use(program)
        self._lifted = dict(program.constants)
        self._holds_half = _holds_half(program)
        self.changing = [_own_name(name) for name in program.graph_signature.buffers_to_mutate.values()]
        self.program, self._sizes, self._decided = builder.program, builder.sizes, builder.decided
        self._size_cache: dict[tuple[int, ...], dict[Any, Any]] = {}
        self.example, self.signature = example, Signature.of(program, example)
        self.keys = example.explained
        self._weights: Weights | None = None
        self._lock, self._settled = threading.RLock(), threading.local()

        self.nodes = reachable(builder.nodes, output)
        self.carrying = reached_by_mass(self.nodes, output, builder)
        self.nodes = read_once(self.nodes, self.carrying, output)
        mark_oracles(self.nodes, output)
        name_all(self.nodes)
        self.consumers = Counter(dict.fromkeys(self.nodes, 0))
        self.consumers.update(operand for node in self.nodes for operand in node.inputs)
        self.example_logits = self._trace(example, builder)
        self._find_samples(example, builder)

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
        with EXPORTING:
            named: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
            named |= dict(self.model.named_buffers(remove_duplicate=False))
        targets = [_own_name(str(s.target)) for s in self._specs]
        missing = [
            t for t, s in zip(targets, self._specs, strict=True) if t not in named and str(s.target) not in self._lifted
        ]
        if missing:
            raise CaptureError(
                f"the model has changed: {missing[0]!r} is gone since it was captured; capture it again."
            )
        attributes = {t: v for t in targets if t not in named and isinstance(v := _attribute(self.model, t), Tensor)}
        return {t: named[t] for t in targets if t in named} | attributes

    @property
    def precision(self) -> torch.dtype:
        """What the model computes in; half precision is played in float32 (S38)."""
        return precision_of(self.tensors().values(), self.signature.dtype)

    def _is_half(self) -> bool:
        return self._holds_half or any(is_half(t) for t in self.tensors().values())

    def parameter_names(self) -> dict[Any, str]:
        """Parameters and buffers of the model, by their name in the program."""
        known = self.tensors()
        named = {Ref(s.arg.name): _own_name(str(s.target)) for s in self._specs}
        return {ref: name for ref, name in named.items() if name in known}

    def on(self, model: nn.Module) -> Network:
        """The same graph with the tensors of another copy of the model; nodes are shared."""
        twin = copy.copy(self)
        twin.model, twin._weights = model, None
        twin._lock, twin._settled = threading.RLock(), threading.local()
        return twin

    def weights(self) -> Weights:
        """The model's present state; what was prepared from an earlier one is dropped (S1)."""
        tensors = self.tensors()
        settled: Weights | None = getattr(self._settled, "weights", None)
        if settled is not None and settled.untouched(tensors):
            return settled
        prints = fingerprints(tensors)
        with self._lock:
            if self._weights is None or not self._weights.fresh(prints):
                constants = self._static(tensors)
                if self._differs(constants):
                    raise CaptureError(
                        "the model has changed: constants that decide which factor carries, or whether values are "
                        "negative, are others than when it was captured; capture it again."
                    )
                self._weights = Weights(prints, constants)
            return self._weights

    def outgrown(self) -> bool:
        """Whether constants have changed so that the model would be captured as another graph (S3a, S5)."""
        return bool(self._decided) and self._differs(self._static(self.tensors()))

    def _differs(self, constants: dict[Any, Any]) -> bool:
        known = Constants(constants, self.program)
        return any(holds(known) != answer for holds, answer in self._decided)

    def unprepare(self) -> None:
        """Drop what was derived from the weights; it is made again when it is asked for."""
        with self._lock:
            self._weights = None

    @contextmanager
    def settled(self) -> Generator[None]:
        """For a call that runs many inputs: it looks at the entries of the model's tensors once, not for each of them.

        What changes on the way is still seen, by pointers and version counters.
        """
        before: Weights | None = getattr(self._settled, "weights", None)
        self._settled.weights = self.weights()
        try:
            yield
        finally:
            self._settled.weights = before

    def _static(self, tensors: dict[str, Tensor]) -> dict[Any, Any]:
        device = next((t.device for t in tensors.values()), torch.device("cpu"))
        constants: dict[Any, Any] = {}
        for spec in self._specs:
            target = _own_name(str(spec.target))
            value = (
                tensors[target].detach()
                if target in tensors
                else torch.as_tensor(self._lifted[str(spec.target)]).to(device)
            )
            constants[Ref(spec.arg.name)] = value
        return constants

    def scope(self, x: Mapping[Any, Any], weights: Weights) -> dict[Any, Any]:
        """Values of the inputs, of every constant and of every size for a batch."""
        kind = SingleScope if weights.halves or any(is_half(v) for v in x.values()) else dict[Any, Any]
        scope = kind(zip(self.inputs, (x[key] for key in self.keys), strict=True))
        scope.update(weights.constants)
        scope.update(self._sizes_of(x))
        for key, ref in self.signature.fixed.items():
            scope[ref] = x[key]
        for statement in self.program:
            scope[statement.ref] = _execute(statement, scope)
        return scope

    def steps(
        self, scope: dict[Any, Any], deform: Callable[[Node], Any] | None = None, forgetful: bool = False
    ) -> Iterator[Node]:
        """The program run on a scope: each node, as soon as its value is written there.

        `deform` may give another value for a node, which then drives all behind it; None leaves it as it is. The
        forgetful free each value after its last use, but for the output.
        """
        waiting = dict(self.consumers)
        for node in self.nodes:
            if not isinstance(node, Input):
                value = None if deform is None else deform(node)
                node.settle(scope, node.run(scope) if value is None else value)
            yield node
            for operand in node.inputs if forgetful else ():
                waiting[operand] -= 1
                if waiting[operand] == 0 and operand is not self.output:
                    scope[operand] = None

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
        given = read(self.model, given, extra)
        why = self.misfit(given)
        if why is not None:
            raise InputError(why)
        given = given.in_order(self.example).played_in(self.precision)
        given.check_finite()
        with torch.inference_mode(False), torch.no_grad():
            copies = {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in given.items()}
            return given.with_values(self.signature.expanded(copies))

    # ---------------------------------------------------------------- shapes

    def together(self, x: Tensor) -> int:
        """How many inputs like these are best run at once by who makes them one by one."""
        return min(self.at_once(x), MANY)

    def at_once(self, x: Tensor) -> int:
        """How many samples of a batch are best run at once: on a processor so few that no value is a large block."""
        return max(_LARGE // (x.element_size() * self._largest), 1) if x.device.type == "cpu" else MANY

    def _trace(self, example: Arguments, builder: Builder) -> Tensor:
        """Run the example once: concrete shapes, where the samples lie in each tensor, how large one can be; logits."""
        self._largest = 1  # elements of a sample
        with torch.inference_mode(False), torch.no_grad():
            scope = self.scope(example, self.weights())
            batch = example.batch
            for node in self.steps(scope, forgetful=True):
                value = scope[node]
                if isinstance(value, Tensor):
                    self._largest = max(self._largest, _elements(node, scope) // batch)
                    node.layout = self._layout(node, scope, batch, builder.traced[node])
                    node.shape = tuple(-1 if d == node.layout.dim else s for d, s in enumerate(value.shape))
                elif node.inputs:  # several tensors, as their operand lies
                    node.layout = node.inputs[0].layout
            return scope[self.output]

    def _layout(self, node: Node, scope: Mapping[Any, Any], batch: int, traced: torch.Size) -> Layout:
        """Where the samples lie in a node's tensor: dimensions that grow with the batch tell, and what wires move."""
        if isinstance(node, Input):
            return PLAIN
        if isinstance(node, Wire):
            if scope[node].numel() == 0:
                raise CaptureError(
                    f"{node.operator} in module {node.path!r} leaves nothing of its input: a tensor of shape "
                    f"{tuple(scope[node].shape)}; take it out of the model."
                )
            owners = node.move([n.layout.owners(batch, tuple(scope[n].shape)) for n in node.inputs], scope)
            found = Layout.of(_fill_constants(owners), batch)
            if found is not None:
                self.signature.learn(traced[found.dim] if found.dim < len(traced) else 0)
                return found
            if node.kind != "oracle":
                raise CaptureError(mixes_samples(node))
        source = (*node.carriers, *node.inputs, *node.reads)[0].layout  # what is told may lie in another order
        dims = [d for d, size in enumerate(traced) if self.signature.counts(size)]
        if scope[node].ndim == 0 or (node.kind != "oracle" and not dims):
            raise CaptureError(mixes_samples(node))
        return Layout(dims[0] if dims else source.dim, source.outer, source.inner)

    def _find_samples(self, example: Arguments, builder: Builder) -> None:
        """Whether fixed tensors with as many entries as samples, and a size of their own, hold one for each of these.

        A size that is an axis of some value beside the samples' counts something else, such as prompts. Else the
        program tells: an entry for each sample is missed where there are twice as many samples.
        """
        axes = {s for n in self.nodes for size in builder.traced[n] for s in self.signature.symbols_of(size)}
        for key in self.signature.uncertain(example):
            size = self.signature.shapes[key][0]
            if size not in axes and (example.x.device.type != "cpu" or not self._does_without(key, example)):
                self.signature.batch |= {size}

    def _does_without(self, key: Key, example: Arguments) -> bool:
        twice = {k: torch.cat([example[k], example[k]]) for k in self.signature.by_samples(example) if k != key}
        try:
            with torch.inference_mode(False), torch.no_grad():
                self.run(example.with_values(twice))
        except Exception:  # whatever an operator says to arguments that do not go together
            return False
        return True

    def model_logits(self, inputs: Mapping[Any, Any]) -> Tensor:
        """What the model itself computes, in eval mode; half precision is evaluated in float32 (S38)."""
        # a forward pass may change its input in place
        inputs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
        args = [v for k, v in inputs.items() if isinstance(k, int)]
        with EXPORTING, evaluation(self.model), in_single(self._is_half()), as_they_are(self.model, self.changing):
            out = self.model(*args, **{k: v for k, v in inputs.items() if isinstance(k, str)})
        return logits_of(out)

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
            "`[n.name for n in play.network.nodes]` lists all names."
        )


def _by_last_use(program: ExportedProgram) -> tuple[str, ...]:
    """The model's parameters from the output to the input: the one that the forward pass reads last comes first.

    A parameter that is read several times stands where it is read last; one that is never read stands at the end.
    """
    place = {node: k for k, node in enumerate(program.graph.nodes)}
    named = program.graph_signature.inputs_to_parameters
    read = {named[n.name]: max((place[u] for u in n.users), default=-1) for n in place if n.name in named}
    return tuple(_own_name(name) for name in sorted(read, key=lambda name: -read[name]))


def _holds_half(program: ExportedProgram) -> bool:
    """Whether anything in the program, or in its sub-graphs, has half precision."""
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    return any(is_half(node.meta.get("val")) for graph in graphs for node in graph.nodes)


def _recaptured(model: nn.Module, example: Arguments) -> Network:
    from backplay.network.capture import capture  # which builds networks, and imports this module

    return capture(model, example)


def _elements(node: Node, scope: Mapping[Any, Any]) -> int:
    """Elements of a node's value, or of the weights that a fused attention keeps to itself."""
    value: Tensor = scope[node]
    if isinstance(node, Attention) and node.told is None:
        return max(value.numel(), value[..., 0].numel() * scope[node.operand].shape[-2])
    return value.numel()


def _own_name(target: str) -> str:
    """The name of a tensor or module in the model itself: capture wraps it once."""
    return target.removeprefix("model").removeprefix(".")


def _attribute(model: nn.Module, path: str) -> Any:
    """A tensor that hangs on a module as a plain attribute, if the path leads to one."""
    found: Any = model
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _execute(statement: Statement, scope: Mapping[Any, Any]) -> Any:
    args = resolve(statement.args, scope)
    return statement.function(*args, **{k: resolve(v, scope) for k, v in statement.kwargs.items()})


def _fill_constants(owners: Tensor) -> Tensor:
    """Constant and padded elements, which have no number, belong to the sample of their neighbours along the batch."""
    if bool((owners > 0).all()):
        return owners
    for dim in range(owners.ndim):
        line = owners.movedim(dim, 0).flatten(1).amax(1) if owners.ndim > 1 else owners
        filled = line.view([-1 if d == dim else 1 for d in range(owners.ndim)]).expand(owners.shape)
        if bool((line > 0).all()) and torch.equal(torch.where(owners == 0, filled, owners), filled):
            return filled
    return owners
