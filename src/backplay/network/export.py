"""`torch.export` on the user's model: quietly, for every batch size, with one sentence where it fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OperatorBase
from torch.export import Dim, ExportedProgram
from torch.fx import config as tracing
from torch.utils._pytree import tree_map

from backplay.entry import without_gradients
from backplay.errors import CaptureError, first_line
from backplay.network.arguments import Arguments
from backplay.network.precision import HALF, precision_of
from backplay.network.running import evaluation, experts_by_token, logits_of
from backplay.network.silence import silence


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


def export(model: nn.Module, arguments: Arguments) -> ExportedProgram:
    """The model's program, in which the number of samples is free."""

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
    with evaluation(model), experts_by_token(model), without_gradients(), _tersely():
        try:
            return torch.export.export(wrapped, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            # `len(x)` is a plain number to Python and fixes the batch; read from its bytecode, the model does not
            fixed = "specialized it to be a constant" in str(error)
            program = _from_bytecode(wrapped, inputs, shapes) if fixed else None
            if program is None:
                raise CaptureError(_export_failure(model, arguments, error)) from error
            return program


def _from_bytecode(wrapped: _Logits, inputs: tuple[Any, ...], shapes: dict[str, Any]) -> ExportedProgram | None:
    """The program as the exporter's other, stricter mode reads it; None if it cannot."""
    try:
        return torch.export.export(wrapped, inputs, dynamic_shapes=shapes, strict=True)
    except Exception:  # the first error says more of the model
        return None


def _export_failure(model: nn.Module, arguments: Arguments, error: Exception) -> str:
    """One sentence on why the model cannot be followed."""
    name, given = type(model).__name__, arguments.described()
    if "onstraints violated" in str(error):
        return (
            f"torch.export cannot follow {name} on {given} for every batch size: it fixes the number of samples.\n"
            "Rewrite what counts samples in Python (a loop over x, torch.kron) with operations on whole batches."
        )
    return (
        f"torch.export cannot follow {name} on {given}: {first_line(error)}\n"
        "Control flow and shapes that depend on values cannot be captured: rewrite that part with tensor operations."
    )


def functionalised(
    model: nn.Module, program: ExportedProgram, composed: Mapping[OperatorBase, Callable[..., Any]] | None = None
) -> ExportedProgram:
    """The same program without mutations, for those that go through views; operators in `composed` are spelled out."""
    with evaluation(model), torch.no_grad(), _tersely():
        return program.run_decompositions(dict(composed or {}))


# ---------------------------------------------------------------- quiet and tidy


@contextmanager
def tidied() -> Generator[None]:
    """Collect the reference cycles that the exporter leaves, which hold the model's tensors.

    Objects that were there before are frozen meanwhile, so that the collector looks at new ones alone.
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
    """Without what torch logs and prints when its exporter fails: what matters of that is raised, in one line.

    It also notes where in the stack each operation was called, which takes a tenth of its time and helps nobody here.
    """
    before, tracing.do_not_emit_stack_traces = tracing.do_not_emit_stack_traces, True
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one opaque operator for a whole encoder layer
    try:
        with silence("torch"):
            yield
    finally:
        tracing.do_not_emit_stack_traces = before
        torch.backends.mha.set_fastpath_enabled(fused)
