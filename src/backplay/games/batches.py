"""A batch of any size in one call: as many samples at once as memory likes, and progress for those who wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from backplay.errors import KeywordError, NonFiniteError
from backplay.games.neurons import names_neurons, one_a_sample, read_neurons
from backplay.inputs import Target, part_of, read_target
from backplay.network import Network
from backplay.network.arguments import Arguments
from backplay.network.indicator import all_finite
from backplay.network.layout import PLAIN, Layout
from backplay.progress import Progress

Explain = Callable[[Arguments, Any], Sequence[Tensor]]


def check_size(internal_batch_size: int | None) -> None:
    """A number of samples, or None."""
    size = internal_batch_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise KeywordError(f"internal_batch_size={size!r} is out of range: it must be None or an integer >= 1.")


def in_parts(
    network: Network,
    given: Arguments,
    target: Target,
    explain: Explain,
    what: str,
    at_once: int | None = None,
    layout: Layout = PLAIN,
) -> list[Tensor]:
    """What `explain` finds for each part of a batch, put together: tensors with the samples where `layout` says."""
    size = network.at_once(given.x) if at_once is None else at_once
    if given.batch <= size:
        return list(explain(given, target))
    found: list[Sequence[Tensor]] = []
    with Progress(what, given.batch) as progress:
        for part, one in _parts(network, given, size):
            found.append(explain(one, _part(target, network, given.batch, part)))
            progress.advance(one.batch)
    return [layout.joined(parts) for parts in zip(*found, strict=True)]


def check_finite(maps: Sequence[Tensor]) -> Sequence[Tensor]:
    """A map of NaN or Inf is an error, never a result (S38)."""
    for found in maps:
        if not all_finite(found):
            bad = ~torch.isfinite(found)
            raise NonFiniteError(
                f"{int(bad.sum())} of {found.numel()} entries of the map are NaN or infinite: they leave the range of "
                f"{found.dtype}.\nPlay in float64 (model.double(), x.double()), or with a temperature nearer to 1."
            )
    return maps


def targets_of(network: Network, given: Arguments, target: Target) -> Tensor:
    """(B, n) the index that is explained in each sample, or its weights over the logits."""

    if names_neurons(target):
        return read_neurons(target, network, given.batch).places()

    def find(part: Arguments, wanted: Any) -> list[Tensor]:
        return [read_target(wanted, network.model_logits(part), part).given]

    return in_parts(network, given, target, find, "reading targets")[0]


def _part(target: Target, network: Network, batch: int, part: slice) -> Any:
    """The target of some samples."""
    if names_neurons(target):
        return one_a_sample(target, batch)[part]
    return part_of(target, batch, len(network.output.shape) - 1, part)


def _parts(network: Network, given: Arguments, size: int) -> Iterator[tuple[slice, Arguments]]:
    """Samples, with what is held fixed beside them; what is one for all samples goes with each part."""
    by_sample = {*given.explained, *network.signature.per_sample}
    for start in range(0, given.batch, size):
        part = slice(start, min(start + size, given.batch))
        yield part, given.with_values({k: given[k][part] for k in by_sample if given[k].shape[0] == given.batch})
