"""Capture: `torch.export` follows the model once, and its program becomes a `Network` (S1, S2).

The captured program is then compared with the model itself (S38).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._ops import OperatorBase, OpOverload
from torch.export import ExportedProgram

from backplay.entry import entry
from backplay.errors import CaptureError
from backplay.network import operators
from backplay.network.arguments import Arguments, Inputs, read_arguments
from backplay.network.export import export, functionalised, tidied
from backplay.network.graph import Model, Network, read_model
from backplay.network.nodes import Affine, Mix
from backplay.network.precision import precision_of
from backplay.network.reading.calls import functional
from backplay.network.reading.program import read_program
from backplay.network.running import EXPORTING
from backplay.network.trial import check_runs

TOLERANCE = 1e-4  # of the replayed program beside the model, relative to the size of the logits
_warned: WeakSet[nn.Module] = WeakSet()  # each model once, however many shapes of it are captured


@entry
def capture(model: Model, example: Inputs, additional_forward_args: Any = None) -> Network:
    """Follow `model` on `example` and return its game graph, valid for every batch size.

    `example` is a tensor, a tuple of tensors, or a dict of forward keywords; floating-point tensors among them are
    explained, masks aside, and the others held fixed like `additional_forward_args`, which follow by position.
    The model is captured in eval mode and given back as it was.
    """
    given_model = read_model(model, "capture")
    module = given_model.model if isinstance(given_model, Network) else given_model
    given = read_arguments(module, example, additional_forward_args)
    given = given.played_in(precision_of(module.parameters(), given.x.dtype))
    with EXPORTING, tidied(), torch.random.fork_rng(_devices(module)):
        example = _pairs_of_samples(given, fixed=True)
        found = _attempted(module, example)
        if isinstance(found, CaptureError) and given.batch == 1 and any(map(_is_single, given.fixed.values())):
            example = _pairs_of_samples(given, fixed=False)
            found = _attempted(module, example)
        if isinstance(found, Network):
            return found
        try:
            check_runs(module, given, example)
            raise found
        finally:
            del found  # whose traceback holds this very frame


def _attempted(model: nn.Module, example: Arguments) -> Network | CaptureError:
    """The network of a model on an example, or why there is none."""
    try:
        return _compared(model, example)
    except CaptureError as error:
        return error


def _compared(model: nn.Module, arguments: Arguments) -> Network:
    """The network of a model on an example, compared with the model there."""
    network = _follow(model, arguments)
    check_sound(network, arguments)
    return network


def _devices(model: nn.Module) -> list[torch.device]:
    """The devices, other than the processor, whose random numbers a model may draw."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


def _follow(model: nn.Module, arguments: Arguments) -> Network:
    """The network of a model; a program whose mutations cannot be followed is written without them first."""
    program = export(model, arguments)
    try:
        builder, output = read_program(program, arguments)
    except CaptureError:
        program = functionalised(model, program)
        builder, output = read_program(program, arguments)
    try:
        return Network(model, program, builder, output, arguments)
    except CaptureError:
        network = _spelled_out(model, program, arguments)
        if network is None:
            raise
        return network


def _spelled_out(model: nn.Module, program: ExportedProgram, arguments: Arguments) -> Network | None:
    """The network of a program that torch has spelled out further; None where that has no game either."""
    composed = _composed_of_others(program)
    if not composed:
        return None
    try:
        program = functionalised(model, program, composed)
        return Network(model, program, *read_program(program, arguments), arguments)
    except CaptureError:  # the caller's own refusal names the operator that the model calls
        return None


def _composed_of_others(program: ExportedProgram) -> dict[OperatorBase, Callable[..., Any]]:
    """The operators of a program that have no row in `network.operators` and that torch can spell out in others."""
    known = torch.export.default_decompositions()
    called = {node.target for node in program.graph.nodes if isinstance(node.target, OpOverload)}
    names = {op: functional(op)[0] for op in called if op in known}
    unread = (op for op, name in names.items() if name not in operators.OPERATORS and not operators.is_recurrent(name))
    return {op: known[op] for op in unread}


def _pairs_of_samples(given: Arguments, fixed: bool) -> Arguments:
    """The example with at least two samples: with one, torch.export would take the batch size 1 for a constant.

    What is held fixed beside one sample may be a sample as well, or one thing for all samples.
    """
    single = given.batch == 1

    def double(key: Any, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        twice = single and (key in given.explained or (fixed and _is_single(value)))
        return torch.cat([value.detach(), value.detach()]) if twice else value.detach().clone()

    return replace(given.with_values({k: double(k, v) for k, v in given.items()}), said=given.described())


def _is_single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == 1


# ---------------------------------------------------------------- the program beside the model


def check_sound(network: Network, example: Mapping[Any, Any]) -> None:
    """Compare a fresh capture with its model on the example: randomness is refused, other differences are warned of.

    Two runs of the model tell randomness and counters from what the capture got wrong.
    """
    name = type(network.model).__name__
    replayed, network.example_logits = network.example_logits, torch.empty(0)
    model, again = (network.model_logits(example) for _ in range(2))
    agreed = _agree(network, example, replayed, model)
    if _difference(model, again) >= TOLERANCE:
        raise CaptureError(
            f"two runs of {name} on the same input differ: its forward pass draws random numbers or keeps state.\n"
            "Switch that off (dropout with training=self.training, no noise, no counters) and capture again."
        )
    if agreed or network.model in _warned:
        return
    _warned.add(network.model)
    warnings.warn(
        f"the capture of {name} is unsound: its replay is {_difference(replayed, model):.1e} off the model. A branch, "
        ".item() or tensor built from values was fixed at capture; rewrite that part with tensor operations.",
        stacklevel=2,
    )


def _agree(network: Network, example: Mapping[Any, Any], replayed: Tensor, model: Tensor) -> bool:
    if replayed.shape != model.shape:
        return False
    if _difference(replayed, model) < TOLERANCE:
        return True
    scope = network.scope(example, network.weights())
    for _ in network.steps(scope):
        pass
    return forward_error(network, scope, scope[network.output], model) < TOLERANCE


def _difference(replayed: Tensor, expected: Tensor) -> float:
    """The largest difference beside the largest number; what is not finite must be so in both."""
    if replayed.shape != expected.shape:
        return math.inf
    same = (replayed == expected) | (replayed.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    error = (replayed - expected).abs()[~same].max()
    size = expected[expected.isfinite()].abs()
    share = float(error / size.max()) if size.numel() else math.inf
    return math.inf if math.isnan(share) else share


def forward_error(network: Network, scope: Mapping[Any, Any], replayed: Tensor, model: Tensor) -> float:
    """`max|replayed − model| / max(max|model|, 1e-3 · max of the last affine node's |W||a|)`, 0 where both are 0."""
    error = (replayed - model).abs().max()
    if error == 0:
        return 0.0
    return float(error / torch.maximum(model.abs().max(), 1e-3 * _last_magnitude(network, scope)))


def _last_magnitude(network: Network, scope: Mapping[Any, Any]) -> Tensor:
    affine = [n for n in network.nodes if isinstance(n, Affine) and not isinstance(n, Mix)]
    if not affine:
        return torch.zeros(())
    last = affine[-1]
    return last.map.apply(scope[last.operand].abs(), last.weight(scope).abs()).max()
