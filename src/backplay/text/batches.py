"""Texts of like length, played together: how they are padded so that each is read as if it stood alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import UnsupportedError
from backplay.text.reader import Reader
from backplay.text.tokens import Tokens

_STEP = 8  # lengths are rounded up to multiples of this, of long texts to multiples of an eighth to a quarter


@dataclass(frozen=True)
class Batch:
    """Some of the texts, as one call of `forward`."""

    members: tuple[int, ...]  # which of the texts
    arguments: dict[str, Tensor]
    starts: tuple[int, ...]  # where each text begins: behind its padding, if that is on the left
    padded: bool


def batches(reader: Reader, texts: Sequence[Tokens], answers: Sequence[Tensor]) -> Iterator[Batch]:
    """The texts in groups of like length; every answer is what the model says to a text alone.

    A model is captured for each length (seconds), so lengths are rounded up and padded. Padding goes to the right, else
    to the left: what the model then says of each text is compared with what it says of the text alone. Where neither
    agrees (a mean over all positions, an attention without a mask) texts of equal length are played together.
    """
    rounded: dict[int, list[int]] = {}
    for k, tokens in enumerate(texts):
        rounded.setdefault(_rounded(len(tokens), reader.longest), []).append(k)
    for length, members in sorted(rounded.items()):
        found = _padded(reader, texts, answers, members, length)
        if found is None:
            yield from unpadded(reader, texts, answers, members)
        else:
            yield found


def unpadded(
    reader: Reader, texts: Sequence[Tokens], answers: Sequence[Tensor], members: Sequence[int]
) -> Iterator[Batch]:
    """These texts, those of equal length together."""
    for size in sorted({len(texts[k]) for k in members}):
        yield _alike(reader, texts, answers, [k for k in members if len(texts[k]) == size])


def _rounded(length: int, longest: int | None) -> int:
    """A length that many texts share: at most seven tokens longer, or a quarter."""
    step = max(_STEP, 2 ** (length.bit_length() - 3))
    wide = -(-length // step) * step
    return wide if longest is None else min(wide, max(length, longest))


def _padded(
    reader: Reader, texts: Sequence[Tokens], answers: Sequence[Tensor], members: Sequence[int], length: int
) -> Batch | None:
    """The texts padded to one length, if the model reads each as if it stood alone."""
    if "attention_mask" not in reader.takes:
        return None
    for left in (False, True):
        arguments = reader.arguments([texts[k] for k in members], length, left)
        starts = tuple(length - len(texts[k]) if left else 0 for k in members)
        found = Batch(tuple(members), arguments, starts, padded=True)
        if _agrees(reader, found, texts, answers):
            return found
    return None


def _alike(reader: Reader, texts: Sequence[Tokens], answers: Sequence[Tensor], members: Sequence[int]) -> Batch:
    """Texts of one length, without padding."""
    arguments = reader.arguments([texts[k] for k in members])
    found = Batch(tuple(members), arguments, (0,) * len(members), padded=False)
    if not _agrees(reader, found, texts, answers):
        raise UnsupportedError(
            "the model answers otherwise to inputs_embeds than to the input_ids that they are the embeddings of, so "
            "no map of its embeddings explains it; play them yourself with bp.explain."
        )
    return found


def _agrees(reader: Reader, batch: Batch, texts: Sequence[Tokens], answers: Sequence[Tensor]) -> bool:
    """Whether every text gets the answer that it gets alone, to half of the digits."""
    for part in range(0, len(batch.members), 16):  # logits over a vocabulary are large
        logits = reader.run({k: v[part : part + 16] for k, v in batch.arguments.items()})
        for k, start, found in zip(
            batch.members[part : part + 16], batch.starts[part : part + 16], logits, strict=True
        ):
            alone = answers[k]
            own = found[start : start + len(texts[k])] if alone.ndim == 2 else found
            error = (own - alone).abs().amax()
            if not bool(error <= torch.finfo(alone.dtype).eps ** 0.5 * alone.abs().amax().clamp(min=1e-3)):
                return False
    return True
