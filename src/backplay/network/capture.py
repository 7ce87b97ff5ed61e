"""Capture: `torch.export` follows the model once, and its program becomes a `Network` (S1, S2)."""

from __future__ import annotations

import gc
import logging
import operator as python_operator
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import config as tracing
from torch.utils._pytree import tree_map

from backplay.entry import at, entry
from backplay.errors import CaptureError, first_line
from backplay.network import operators
from backplay.network.arguments import Arguments, Inputs, read
from backplay.network.builder import Builder, Constants, functional
from backplay.network.compared import check_sound
from backplay.network.experts import experts_by_token
from backplay.network.graph import Network
from backplay.network.lowering import lower
from backplay.network.model import Model, read_model
from backplay.network.mutation import follow_mutation
from backplay.network.nodes import Input, Node, Oracle, Ref
from backplay.network.precision import HALF, in_single, is_half, precision_of
from backplay.network.running import EXPORTING, evaluation, logits_of
from backplay.network.signature import user_names


@entry
def capture(model: Model, example: Inputs, additional_forward_args: Any = None) -> Network:
    """Follow `model` on `example` and return its game graph, valid for every batch size.

    `example` is a tensor, a tuple of tensors, or a dict of forward keywords; floating-point tensors among them are
    explained, masks aside, and the others held fixed like `additional_forward_args`, which follow by position.
    The model is captured in eval mode and given back as it was.
    """
    found = read_model(model, "capture")
    module = found.model if isinstance(found, Network) else found
    given = read(module, example, additional_forward_args)
    given = given.played_in(precision_of(module.parameters(), given.x.dtype))
    with EXPORTING, _tidied(), torch.random.fork_rng(_devices(module)):
        try:
            return _sound(module, _pairs_of_samples(given, fixed=True))
        except CaptureError:
            if given.batch > 1 or not any(_is_single(v) for v in given.fixed.values()):
                raise
        return _sound(module, _pairs_of_samples(given, fixed=False))


def _sound(model: nn.Module, arguments: Arguments) -> Network:
    network = _follow(model, arguments)
    check_sound(network, arguments)
    return network


def _devices(model: nn.Module) -> list[torch.device]:
    """The devices, other than the processor, whose random numbers a model may draw."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


@contextmanager
def _tidied() -> Generator[None]:
    """The exporter leaves reference cycles that hold the model's tensors: they go at once.

    What was there before is set aside meanwhile, so that the collector looks at new objects alone.
    """
    apart = gc.get_freeze_count() == 0  # else somebody has set objects aside for good
    if apart:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if apart:
            gc.unfreeze()


@contextmanager
def _tersely() -> Generator[None]:
    """torch logs and prints at length what its exporter trips over; what matters of that is raised, in one line.

    It also notes where in the stack each operation was called, which takes a tenth of its time and helps nobody here.
    """
    known = logging.Logger.manager.loggerDict.items()
    loggers = [each for name, each in known if isinstance(each, logging.Logger) and name.partition(".")[0] == "torch"]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    for handler in handlers:
        handler.addFilter(_nothing)
    before, tracing.do_not_emit_stack_traces = tracing.do_not_emit_stack_traces, True
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one opaque operator for a whole encoder layer
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tracing.do_not_emit_stack_traces = before
        torch.backends.mha.set_fastpath_enabled(fused)
        for handler in handlers:
            handler.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _follow(model: nn.Module, arguments: Arguments) -> Network:
    program = _export(model, arguments)
    builder = Builder()
    try:
        output = _read(program, builder, arguments)
    except CaptureError:
        program = _functionalised(model, program)
        builder = Builder()
        output = _read(program, builder, arguments)
    return Network(model, program, builder, output, arguments)


def _pairs_of_samples(given: Arguments, fixed: bool) -> Arguments:
    """The example with at least two samples: with one, export would fix the batch size (traps).

    What is held fixed beside one sample may be a sample as well, or one thing for all samples.
    """
    single = given.batch == 1

    def double(key: Any, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        twice = single and (key in given.explained or (fixed and _is_single(value)))
        return torch.cat([value.detach(), value.detach()]) if twice else value.detach().clone()

    with torch.inference_mode(False), torch.no_grad():
        return given.with_values({k: double(k, v) for k, v in given.items()})


def _is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == 1


class _Logits(nn.Module):
    """The model as a function of positional tensors to its logits alone.

    Caches and hidden states beside the logits need no export, and keywords no special case.
    """

    def __init__(self, model: nn.Module, names: list[Any]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.training = False

    def forward(self, *inputs: Any) -> Any:
        args = [v for k, v in zip(self.names, inputs, strict=True) if isinstance(k, int)]
        kwargs = {k: v for k, v in zip(self.names, inputs, strict=True) if isinstance(k, str)}
        return logits_of(self.model(*args, **kwargs))


def _export(model: nn.Module, arguments: Arguments) -> ExportedProgram:
    def dynamic(key: Any, value: Any) -> Any:
        """Samples are counted; what is held fixed may come by samples if there are as many, and else stays as it is."""
        if key in arguments.explained:
            return {0: Dim.DYNAMIC}
        counted = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == arguments.batch
        return {0: Dim.AUTO} if counted else tree_map(lambda leaf: None, value)

    traced = precision_of(model.parameters(), torch.float32)
    as_model = arguments  # traced as the model is, played in float32
    if traced in HALF:
        as_model = arguments.at([x.to(traced) for x in arguments.xs])
    wrapped, inputs = _Logits(model, list(arguments)), tuple(as_model.values())
    shapes = {"inputs": tuple(dynamic(k, v) for k, v in arguments.items())}
    with evaluation(model), experts_by_token(model), torch.inference_mode(False), torch.no_grad(), _tersely():
        try:
            return torch.export.export(wrapped, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            # `len(x)` is a plain number to Python and fixes the batch; read from its bytecode, the model does not
            found = _from_bytecode(wrapped, inputs, shapes) if "specialized it to be a constant" in str(error) else None
            if found is None:
                raise CaptureError(_export_failure(wrapped, arguments, error)) from error
            return found


def _from_bytecode(wrapped: _Logits, inputs: tuple[Any, ...], shapes: dict[str, Any]) -> ExportedProgram | None:
    """The program as the exporter's other, stricter mode reads it; None if it cannot."""
    try:
        return torch.export.export(wrapped, inputs, dynamic_shapes=shapes, strict=True)
    except Exception:  # the first error says more of the model
        return None


def _export_failure(wrapped: _Logits, arguments: Arguments, error: Exception) -> str:
    """One sentence: is it the input that does not fit, or the model that cannot be followed?"""
    given = ", ".join(
        f"{arguments.label(k) if k == 0 else arguments.names[k]} {tuple(v.shape)} {v.dtype}"
        for k, v in arguments.items()
        if isinstance(v, Tensor)
    )
    name = type(wrapped.model).__name__
    half = any(is_half(tensor) for tensor in wrapped.parameters())
    try:
        with in_single(half):
            wrapped(*arguments.values())
    except Exception as own:
        return f"{name} itself fails on {given}: {first_line(own)}\nGive it an input that its forward accepts."
    if "onstraints violated" in str(error):
        return (
            f"torch.export cannot follow {name} on {given} for every batch size: it fixes the number of samples.\n"
            "Rewrite what counts samples in Python (a loop over x, torch.kron) with operations on whole batches."
        )
    return (
        f"torch.export cannot follow {name} on {given}: {first_line(error)}\n"
        "Control flow and shapes that depend on values cannot be captured: rewrite that part with tensor operations."
    )


def _functionalised(model: nn.Module, program: ExportedProgram) -> ExportedProgram:
    """Mutations through views, as a program without mutations."""
    with evaluation(model), torch.no_grad(), _tersely():
        return program.run_decompositions({})


def _read(program: ExportedProgram, builder: Builder, arguments: Arguments) -> Node:
    """Walk over the program and collect nodes, constants and sizes; returns the output."""
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    users = user_names(program, arguments)
    explained = {users[key]: key for key in arguments.explained}
    for placeholder in program.graph.find_nodes(op="placeholder"):
        builder.current = placeholder
        if placeholder.name in explained:
            node = Input(_no_function, (), name=arguments.label(explained[placeholder.name]), operator="input")
            builder.values[placeholder] = builder.add(node)
        else:
            builder.values[placeholder] = builder.reference(placeholder)
            if kinds[placeholder.name].kind is InputKind.USER_INPUT:
                builder.given.add(builder.values[placeholder])
    builder.constants = Constants(_tensors(program), builder.program)
    (results,) = _read_calls(program.graph_module, builder)
    # a program without mutations returns what the model would have changed as well
    kept = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    output = results[kept.index(True)]
    while isinstance(output, Ref) and output in builder.told:  # the refusal names what was detached first
        output = (*builder.told[output].reads, builder.told[output])[0]
        output = output if output.inputs else output.ref
    if not isinstance(output, Node):
        raise CaptureError("the model's output does not depend on its input, so there is nothing to explain.")
    return output


def _tensors(program: ExportedProgram) -> dict[Ref, Any]:
    """The model's tensors and the program's own constants, as they are at capture."""
    known = {**program.constants, **program.state_dict}
    specs = [s for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
    found = {Ref(s.arg.name): known.get(str(s.target)) for s in specs}
    return {ref: value.detach() for ref, value in found.items() if isinstance(value, Tensor)}


def _no_function(*args: Any) -> Any:
    raise AssertionError("the input is given, not computed")


def _read_calls(module: fx.GraphModule, builder: Builder) -> list[Any]:
    """Lower every call of a graph (sub-graphs are inlined) and return what it returns."""

    for node in module.graph.nodes:
        if node.op == "output":
            return [builder.lower(a) for a in node.args]
        if node.op == "get_attr":
            builder.values[node] = getattr(module, node.target)
        elif node.op == "call_function":
            builder.current = node
            with at(builder.spot(node)):
                builder.values[node] = _read_call(node, builder)
                follow_mutation(node, builder)
    return []


def _read_call(node: fx.Node, builder: Builder) -> Any:
    if node.target is python_operator.getitem:
        return _item(builder.values[node.args[0]], node.args[1], node, builder)  # type: ignore[index]
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _inline(node, builder)
    value = node.meta.get("val")
    leaves = _leaves(builder, node)
    live = any(isinstance(leaf, Node) for leaf in leaves)
    if isinstance(value, (int, float, bool)):
        return value
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return builder.reference(node)
    name = functional(node.target)[0] if hasattr(node.target, "overloadpacket") else str(node.target)
    if name in operators.STATEMENTS:
        return None
    if name in operators.CREATIONS:
        return builder.run_later(node, blank=0)
    if live:
        return lower(builder, builder.call(node))
    if any(leaf in builder.told for leaf in leaves if isinstance(leaf, Ref)):
        return builder.oracle(builder.call(node))
    return builder.run_later(node)


def _leaves(builder: Builder, node: fx.Node) -> list[Any]:
    return [builder.values.get(n) for n in node.all_input_nodes]


def _item(value: Any, index: Any, node: fx.Node, builder: Builder) -> Any:
    if isinstance(value, Ref) and value in builder.told:
        part = builder.add(Oracle(lambda several: several[index], (value,), operator=builder.told[value].operator))
        return builder.tell(part, node.meta["val"])
    if isinstance(value, Ref):
        return builder.run_later(node)
    if isinstance(value, Node):  # a several-valued operator without a kind
        return builder.add(type(value)(lambda pair: pair[index], (value,), operator=value.operator, unsupported=True))  # type: ignore[call-arg]
    if index >= len(value):  # statistics beside a norm: no value that mass could reach
        return builder.add(Oracle(_no_function, (), operator=str(node.target), unsupported=True), torch.Size())
    made = value[index]
    return made() if callable(made) else made


def _inline(node: fx.Node, builder: Builder) -> Any:
    """`wrap_with_autocast(…, sub-graph, *operands)` and its like mean the calls of their sub-graph."""
    args = [builder.lower(a) for a in node.args]
    position = next((k for k, a in enumerate(args) if isinstance(a, fx.GraphModule)), None)
    if position is None or "wrap" not in str(node.target):
        raise CaptureError(
            f"the higher-order operator {node.target} has no kind; rewrite that part with tensor operations."
        )
    inner = args[position]
    placeholders = inner.graph.find_nodes(op="placeholder")
    builder.values.update(zip(placeholders, args[position + 1 :], strict=True))
    outer, builder.prefix = builder.prefix, f"{builder.prefix}{node.name} "
    (result,) = _read_calls(inner, builder)
    builder.prefix = outer
    return result
