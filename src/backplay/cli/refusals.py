"""Why a network has no game graph: every operator that stands in the way, not the first alone."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.export import ExportedProgram

from backplay.entry import place
from backplay.errors import CaptureError, list_words
from backplay.network.arguments import Arguments, read_arguments
from backplay.network.capture import _composed_of_others
from backplay.network.export import export, functionalised, tidied
from backplay.network.nodes import Node, Oracle
from backplay.network.precision import precision_of
from backplay.network.reading.program import read_program
from backplay.network.running import EXPORTING


def all_refusals(model: nn.Module, example: Any, first: CaptureError) -> CaptureError:
    """The error of a model that cannot be captured: the first one, or one that names all operators without a kind.

    `example` has two samples, as a program that is valid for any number of them needs.
    """
    try:
        with EXPORTING, tidied():
            found = _in_the_way(model, example)
    except CaptureError:  # nothing but the first one is known
        return first
    if len(found) < 2:
        return first
    return CaptureError(
        f"{len(found)} operators stand in the way of the walk, without a kind in the game: {list_words(found)}.\n"
        "Explain the part of the model behind them, or rewrite those modules."
    )


def _in_the_way(model: nn.Module, example: Any) -> list[str]:
    """Operators that the walk would have to cross and that have no kind, with their modules, from input to output."""
    given = read_arguments(model, example, None)
    given = given.played_in(precision_of(model.parameters(), given.x.dtype))
    program = export(model, given)
    found, composed = _met(program, given), _composed_of_others(program)
    if composed:  # what torch can spell out in others may have a game that way
        spelled = {node.path for node in _met(functionalised(model, program, composed), given)}
        found = [node for node in found if node.path in spelled]
    return list(dict.fromkeys(place(node) for node in found))


def _met(program: ExportedProgram, given: Arguments) -> list[Node]:
    """The nodes without a kind that mass meets, if it could cross each of them."""
    builder, output = read_program(program, given)
    reached: set[Node] = {output}
    found: list[Node] = []
    for node in reversed(builder.nodes):
        if node not in reached:
            continue
        if isinstance(node, Oracle):
            found.append(node)
            reached.update(node.inputs, node.detached_inputs)
        reached.update(node.carriers)
    return found[::-1]
