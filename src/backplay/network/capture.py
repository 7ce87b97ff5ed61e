"""Capture: `torch.export` follows the model once, and its program becomes a `Network` (S1, S2)."""

from __future__ import annotations

import gc
import logging
import operator as python_operator
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import config as tracing

from backplay.entry import at, entry
from backplay.errors import CaptureError, InputError, first_line
from backplay.network import operators
from backplay.network.builder import Builder, Constants, functional
from backplay.network.compared import check_sound
from backplay.network.experts import experts_by_token
from backplay.network.graph import EXPORTING, Network, check_tensor, evaluation, logits_of
from backplay.network.lowering import lower
from backplay.network.model import Model, read_model
from backplay.network.mutation import follow_mutation
from backplay.network.nodes import Input, Node, Oracle, Ref
from backplay.network.precision import HALF, as_played, in_single, is_half, precision_of

Example = Tensor | Mapping[Any, Any]


@entry
def capture(model: Model, example: Example) -> Network:
    """Follow `model` on `example` and return its game graph, valid for every batch size.

    `example` is a tensor, or a dict of forward keywords of which exactly one is floating point and is the input.
    The model is captured in eval mode and given back as it was.
    """
    given = read_model(model, "capture")
    module = given.model if isinstance(given, Network) else given
    keywords = _pairs_of_samples(example if isinstance(example, Mapping) else {0: example})
    key = input_key(keywords)
    keywords[key] = as_played(keywords[key], precision_of(module.parameters(), keywords[key].dtype))
    with EXPORTING, _tidied(), torch.random.fork_rng(_devices(module)):
        network = _follow(module, keywords)
        check_sound(network, keywords)
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


def _follow(model: nn.Module, keywords: dict[Any, Any]) -> Network:
    program = _export(model, keywords)
    builder = Builder()
    try:
        input_node, output = _read(program, builder)
    except CaptureError:
        program = _functionalised(model, program)
        builder = Builder()
        input_node, output = _read(program, builder)
    return Network(model, program, builder, input_node, output, keywords)


def input_key(example: Mapping[Any, Any]) -> Any:
    """The one floating-point entry among the forward arguments; position 0 is taken as it is."""
    if 0 in example:
        check_tensor(example[0])
        return 0
    floating = [k for k, v in example.items() if isinstance(v, Tensor) and v.is_floating_point()]
    if len(floating) != 1:
        raise InputError(
            f"a dict of inputs needs exactly one floating-point tensor, the one to explain; got {floating or 'none'} "
            f"among {sorted(example)}; pass embeddings (inputs_embeds) and leave the others integer or boolean."
        )
    check_tensor(example[floating[0]])
    return floating[0]


def _pairs_of_samples(example: Mapping[Any, Any]) -> dict[Any, Any]:
    """The example with at least two samples: with one, export would fix the batch size (traps)."""
    batch = example[input_key(example)].shape[0]

    def double(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        alone = batch == 1 and value.ndim > 0 and value.shape[0] == 1
        return torch.cat([value.detach(), value.detach()]) if alone else value.detach().clone()

    with torch.inference_mode(False), torch.no_grad():
        return {k: double(v) for k, v in example.items()}


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


def _export(model: nn.Module, keywords: dict[Any, Any]) -> ExportedProgram:
    def dynamic(value: Any) -> Any:
        batched = isinstance(value, Tensor) and value.ndim > 0
        return {0: Dim.DYNAMIC} if batched else None

    traced, key = precision_of(model.parameters(), torch.float32), input_key(keywords)
    as_model = {key: keywords[key].to(traced)} if traced in HALF else {}  # traced as the model is, played in float32
    wrapped, inputs = _Logits(model, list(keywords)), tuple((keywords | as_model).values())
    shapes = {"inputs": tuple(dynamic(v) for v in inputs)}
    with evaluation(model), experts_by_token(model), torch.inference_mode(False), torch.no_grad(), _tersely():
        try:
            return torch.export.export(wrapped, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            # `len(x)` is a plain number to Python and fixes the batch; read from its bytecode, the model does not
            found = _from_bytecode(wrapped, inputs, shapes) if "specialized it to be a constant" in str(error) else None
            if found is None:
                raise CaptureError(_export_failure(wrapped, keywords, error)) from error
            return found


def _from_bytecode(wrapped: _Logits, inputs: tuple[Any, ...], shapes: dict[str, Any]) -> ExportedProgram | None:
    """The program as the exporter's other, stricter mode reads it; None if it cannot."""
    try:
        return torch.export.export(wrapped, inputs, dynamic_shapes=shapes, strict=True)
    except Exception:  # the first error says more of the model
        return None


def _export_failure(wrapped: _Logits, keywords: dict[Any, Any], error: Exception) -> str:
    """One sentence: is it the input that does not fit, or the model that cannot be followed?"""
    given = ", ".join(
        f"{'input' if k == 0 else k} {tuple(v.shape)} {v.dtype}" for k, v in keywords.items() if isinstance(v, Tensor)
    )
    name = type(wrapped.model).__name__
    half = any(is_half(tensor) for tensor in wrapped.parameters())
    try:
        with in_single(half):
            wrapped(*keywords.values())
    except Exception as own:
        return f"{name} itself fails on {given}: {first_line(own)}\nGive it an input that its forward accepts."
    return (
        f"torch.export cannot follow {name} on {given}: {first_line(error)}\n"
        "Control flow and shapes that depend on values cannot be captured: rewrite that part with tensor operations."
    )


def _functionalised(model: nn.Module, program: ExportedProgram) -> ExportedProgram:
    """Mutations through views, as a program without mutations."""
    with evaluation(model), torch.no_grad(), _tersely():
        return program.run_decompositions({})


def _read(program: ExportedProgram, builder: Builder) -> tuple[Input, Node]:
    """Walk over the program and collect nodes, constants and sizes."""
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for placeholder in program.graph.find_nodes(op="placeholder"):
        spec, value = kinds[placeholder.name], placeholder.meta["val"]
        user = spec.kind is InputKind.USER_INPUT
        builder.current = placeholder
        if user and isinstance(value, Tensor) and value.is_floating_point():
            node = Input(_no_function, (), name="input", operator="input")
            builder.values[placeholder] = builder.add(node)
        else:
            builder.values[placeholder] = builder.reference(placeholder)
            if user:
                builder.given.add(builder.values[placeholder])
    builder.constants = Constants(_tensors(program), builder.program)
    builder.unlearned = Constants(_tensors(program, learned=False), builder.program)
    (results,) = _read_calls(program.graph_module, builder)
    # a program without mutations returns what the model would have changed as well
    kept = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    output = results[kept.index(True)]
    inputs = [n for n in builder.nodes if isinstance(n, Input)]
    while isinstance(output, Ref) and output in builder.told:  # the refusal names what was detached first
        output = (*builder.told[output].reads, builder.told[output])[0]
        output = output if output.inputs else output.ref
    if not isinstance(output, Node):
        raise CaptureError("the model's output does not depend on its input, so there is nothing to explain.")
    return inputs[0], output


def _tensors(program: ExportedProgram, learned: bool = True) -> dict[Ref, Any]:
    """The model's tensors, parameters among them or not, and the program's own constants, as they are at capture."""
    known = {**program.constants, **program.state_dict}
    given = {InputKind.USER_INPUT} if learned else {InputKind.USER_INPUT, InputKind.PARAMETER}
    specs = [s for s in program.graph_signature.input_specs if s.kind not in given]
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
