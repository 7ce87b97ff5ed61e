"""A walk over the calls of an exported program: each becomes a node, a constant, a size or nothing."""

from __future__ import annotations

import operator as python_operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from backplay.entry import at
from backplay.errors import CaptureError
from backplay.network import operators
from backplay.network.arguments import Arguments
from backplay.network.nodes import Input, Node, Oracle, Ref
from backplay.network.reading import (
    activations,
    affine,
    arithmetic,
    attention,
    choices,
    mixes,
    mutation,
    norms,
    spelled,
    wires,
)
from backplay.network.reading.builder import Builder
from backplay.network.reading.calls import Constants, functional
from backplay.network.signature import user_names

# each registers its readings when it is imported
FAMILIES = (activations, affine, arithmetic, attention, choices, mixes, norms, spelled, wires)


def read_program(program: ExportedProgram, arguments: Arguments) -> tuple[Builder, Node]:
    """Walk over the program and collect nodes, constants and sizes; returns them, and the output."""
    builder = Builder()
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    users = user_names(program, arguments)
    explained = {users[key]: key for key in arguments.explained}
    for placeholder in program.graph.find_nodes(op="placeholder"):
        builder.current = placeholder
        if placeholder.name in explained:
            name = arguments.label(explained[placeholder.name])
            node = Input(_no_function, (), "input", name=name)
            builder.values[placeholder] = builder.add(node)
        else:
            builder.values[placeholder] = builder.reference(placeholder)
            if kinds[placeholder.name].kind is InputKind.USER_INPUT:
                builder.varying.add(builder.values[placeholder])
    builder.constants = Constants(_tensors(program), builder.statements)
    (results,) = _read_calls(program.graph_module, builder)
    # a program without mutations returns what the model would have changed as well
    kept = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    output = results[kept.index(True)]
    while isinstance(output, Ref) and output in builder.detached:  # the refusal names what was detached first
        output = (*builder.detached[output].detached_inputs, builder.detached[output])[0]
        output = output if output.inputs else output.ref
    if not isinstance(output, Node):
        raise CaptureError("the model's output does not depend on its input, so there is nothing to explain.")
    return builder, output


def _tensors(program: ExportedProgram) -> dict[Ref, Any]:
    """The model's tensors and the program's own constants, as they are at capture."""
    known = {**program.constants, **program.state_dict}
    specs = [s for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
    values = {Ref(s.arg.name): known.get(str(s.target)) for s in specs}
    return {ref: value.detach() for ref, value in values.items() if isinstance(value, Tensor)}


def _no_function(*args: Any) -> Any:
    raise AssertionError("the input is given, not computed")


def _read_calls(module: fx.GraphModule, builder: Builder) -> list[Any]:
    """Read every call of a graph, sub-graphs inlined, and return what it returns."""
    for node in module.graph.nodes:
        if node.op == "output":
            return [builder.values_of(a) for a in node.args]
        if node.op == "get_attr":
            builder.values[node] = getattr(module, node.target)
        elif node.op == "call_function":
            builder.current = node
            with at(builder.spot(node)):
                builder.values[node] = _read_call(node, builder)
                mutation.follow_mutation(node, builder)
    return []


def _read_call(node: fx.Node, builder: Builder) -> Any:
    if node.target is python_operator.getitem:
        return _item(builder.values[node.args[0]], node.args[1], node, builder)  # type: ignore[index]
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _inline(node, builder)
    value = node.meta.get("val")
    operands = [builder.values.get(n) for n in node.all_input_nodes]
    if isinstance(value, (int, float, bool)):
        return value
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return builder.reference(node)
    name = functional(node.target)[0] if hasattr(node.target, "overloadpacket") else str(node.target)
    if operators.meaning(name).valueless:
        return None
    if operators.meaning(name).shape_only:
        return builder.run_later(node, blank=0)
    if any(isinstance(leaf, Node) for leaf in operands):
        return builder.read(builder.call(node))
    if builder.reads_detached(operands):
        return builder.oracle(builder.call(node))
    return builder.run_later(node)


def _item(value: Any, index: Any, node: fx.Node, builder: Builder) -> Any:
    """One of several values of a call."""
    if isinstance(value, Ref) and value in builder.detached:
        operator = builder.detached[value].operator
        part = builder.add(Oracle(lambda several: several[index], (value,), operator))
        return builder.detach(part, node.meta["val"])
    if isinstance(value, Ref):
        return builder.run_later(node)
    if isinstance(value, Node):  # a several-valued operator without a kind
        part = Oracle(lambda pair: pair[index], (value,), value.operator, unsupported=True)
        return builder.add(part)
    if index >= len(value):  # statistics beside a norm: no value that mass could reach
        nothing = Oracle(_no_function, (), str(node.target), unsupported=True)
        return builder.add(nothing, torch.Size())
    made = value[index]
    return made() if callable(made) else made


def _inline(node: fx.Node, builder: Builder) -> Any:
    """`wrap_with_autocast(…, sub-graph, *operands)` and its like mean the calls of their sub-graph."""
    args = [builder.values_of(a) for a in node.args]
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
