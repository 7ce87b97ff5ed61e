"""What a language model reads as it writes: `bp.text.generation`, a matrix of tokens read × tokens written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import InputError, InputTypeError, KeywordError, UnsupportedError
from backplay.text import html, terminal
from backplay.text.batches import Batch, batches
from backplay.text.explaining import Route, Scored, read_text
from backplay.text.maps import TokenMap
from backplay.text.reader import Reader
from backplay.text.shown import Shown
from backplay.text.targets import Goal
from backplay.text.tokens import Tokens, from_ids, tokenise


@dataclass(frozen=True, eq=False, repr=False)
class GenerationMap(Shown):
    """A row for each token that is read, of prompt and completion; a column for each that is written."""

    source: Tokens  # the prompt, then the completion
    prompt_length: int  # how many of them are the prompt's; those of an encoder, and the decoder's first, among them
    scores: Tensor  # (prompt + completion, completion); NaN where a token was not there yet
    goals: tuple[Goal, ...]  # the logit of each written token
    method: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arrives: tuple[float | None, ...] = ()

    @property
    def written(self) -> list[str]:
        """What is written, a column each: the completion's tokens as they stand in the text."""
        return self.pieces[self.prompt_length :]

    @property
    def values(self) -> Tensor:
        """(completion,) the logit of each written token."""
        return torch.tensor([goal.value for goal in self.goals], dtype=torch.float64)

    @property
    def scale(self) -> float:
        """The largest score in size among rows that are not special."""
        rows = self.scores[~torch.tensor(self.source.special)].nan_to_num()
        largest = float(rows.abs().max()) if rows.numel() else 0.0
        return largest or float(self.scores.nan_to_num().abs().max()) or 1.0

    def __len__(self) -> int:
        return len(self.goals)

    def __getitem__(self, k: int) -> TokenMap:
        """The map of one written token over all that stands before it."""
        if not -len(self) <= k < len(self):
            raise IndexError(f"step {k} is out of range: {len(self)} tokens were written.")
        k %= len(self)
        read = self.prompt_length + k
        return TokenMap(
            self.source.part(slice(0, read)),
            self.scores[:read, k],
            self.goals[k],
            self.method,
            self.params,
            self.arrives[k],
        )

    def caption(self) -> str:
        """What was explained and how, in a line."""
        known = [a for a in self.arrives if a is not None]
        walk = f" · {100 * min(known):.2g} to {100 * max(known):.2g} % of a walk arrives" if known else ""
        return f"{len(self)} tokens written after {self.prompt_length} · {self.way}{walk}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for JSON; None where a token was not there yet."""
        rows = [[None if s != s else s for s in row] for row in self.scores.tolist()]
        return {
            "tokens": self.tokens,
            "pieces": self.pieces,
            "prompt_length": self.prompt_length,
            "scores": rows,
            "values": self.values.tolist(),
            "method": self.method,
            "params": dict(self.params),
            "arrives": list(self.arrives),
        }

    def html(self) -> str:
        """A table that needs nothing else."""
        return html.matrix(self)

    def lines(self, coloured: bool) -> str:
        return terminal.matrix(self, coloured)

    def __repr__(self) -> str:
        return f"GenerationMap({''.join(self.written)[:40]!r}; {self.caption()})"


@entry
def generation(
    model: Any,
    tokenizer: Any,
    prompt: str,
    completion: str | None = None,
    method: str = "rg",
    *,
    max_new_tokens: int = 20,
    generation_args: Mapping[str, Any] | None = None,
    **params: Any,
) -> GenerationMap:
    """What every token of prompt and completion contributes to the logit of each token that is written.

    The completion is the one that is given (with the space that stands before it), or what the model's own `generate`
    writes: at most `max_new_tokens`, with any other of its keywords in `generation_args`. Causal models and those with
    encoder and decoder are taken; a column is the play of that step alone.

        bp.text.generation(model, tokenizer, "The capital of France is", " Paris").show()
    """
    reader = Reader(model, tokenizer)
    way = Route.named(reader, method, params)
    read = read_text(reader, prompt)
    seconds = bool(getattr(reader.config, "is_encoder_decoder", False))
    if completion is None:
        written = _generated(reader, read, max_new_tokens, generation_args or {}, seconds)
    else:
        read, written = _given(reader, read, completion, seconds)
    if seconds:
        read = read.followed_by(from_ids(tokenizer, [_start(reader)]))
    whole = read.followed_by(written)
    play = _translated if seconds else _continued
    goals, scored = play(reader, way, read, written)
    scores = torch.full((len(whole), len(written)), torch.nan, dtype=scored.scores[0].dtype)
    for k, row in enumerate(scored.scores):
        scores[: len(read) + k, k] = row[: len(read) + k]
    return GenerationMap(whole, len(read), scores, goals, method, params, tuple(scored.arrives))


def _continued(reader: Reader, way: Route, read: Tokens, written: Tokens) -> tuple[tuple[Goal, ...], Scored]:
    """A causal model: one text, played once for each written token at the position before it."""
    seen = read.followed_by(written.part(slice(0, len(written) - 1)))
    reader.check_length(seen)
    answer = reader.answer(seen)
    if answer.ndim != 2 or answer.shape[1] < reader.vocabulary:
        raise InputError(
            f"{type(reader.model).__name__} is no language model: it does not say which token comes next; use "
            "bp.text.explain."
        )
    goals = tuple(_goal(answer[len(read) - 1 + k], len(read) - 1 + k, written, k) for k in range(len(written)))
    alone = next(iter(batches(reader, [seen], [answer])))
    repeated = {name: value.repeat(len(written), *[1] * (value.ndim - 1)) for name, value in alone.arguments.items()}
    batch = Batch(tuple(range(len(written))), repeated, alone.starts * len(written), alone.padded)
    return goals, way.scores(batch, [seen] * len(written), goals)


def _translated(reader: Reader, way: Route, read: Tokens, written: Tokens) -> tuple[tuple[Goal, ...], Scored]:
    """Encoder and decoder: the embeddings of both are explained; the decoder's first token is the prompt's last."""
    if way.explainer is None:
        raise UnsupportedError(f"{way.method!r} is for one text; this model reads two, its own output is the second.")
    encoded = read.part(slice(0, len(read) - 1))
    decoded = [*read.ids[-1:], *written.ids[:-1]]
    arguments = reader.arguments([encoded])
    ids = torch.tensor([decoded], device=reader.device)
    answer = reader.run({**arguments, "decoder_inputs_embeds": reader.embed(ids, decoder=True)})[0]
    goals = tuple(_goal(answer[k], len(encoded) + k, written, k) for k in range(len(written)))
    arguments["decoder_inputs_embeds"] = reader.embed(ids, decoder=True)
    repeated = {name: value.repeat(len(written), *[1] * (value.ndim - 1)) for name, value in arguments.items()}
    maps, arrives = way.maps(repeated, [(k, goal.index) for k, goal in enumerate(goals)])
    both = torch.cat([way.by_token(maps[name]) for name in ("inputs_embeds", "decoder_inputs_embeds")], 1)
    return goals, Scored(list(both), arrives)


def _goal(logits: Tensor, position: int, written: Tokens, k: int) -> Goal:
    return Goal(written.ids[k], written.tokens[k], position, float(logits[written.ids[k]]))


def _start(reader: Reader) -> int:
    """The token that a decoder begins with."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        found = getattr(reader.config, name, None)
        if isinstance(found, int):
            return found
    raise InputError("the model's configuration names no decoder_start_token_id; set it.")


def _given(reader: Reader, read: Tokens, completion: Any, seconds: bool) -> tuple[Tokens, Tokens]:
    """Prompt and given completion; as one text where its tokens begin with the prompt's, else one after the other."""
    if not isinstance(completion, str):
        raise InputTypeError(f"completion must be a str or None, got {type(completion).__name__}.")
    if not completion:
        raise InputError("the completion is empty; give the text that was written, or None to let the model write.")
    if not seconds:
        both = tokenise(reader.tokenizer, read.text + completion)
        if both.ids[: len(read)] == read.ids and len(both) > len(read):
            return both.part(slice(0, len(read))), both.part(slice(len(read), len(both)))
    return read, tokenise(reader.tokenizer, completion, special=False)


def _generated(reader: Reader, read: Tokens, max_new_tokens: int, settings: Mapping[str, Any], seconds: bool) -> Tokens:
    """What the model's own `generate` writes."""
    write: Any = getattr(reader.model, "generate", None)
    if not callable(write):
        raise InputTypeError(f"{type(reader.model).__name__} has no generate; give the completion.")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise KeywordError(f"max_new_tokens={max_new_tokens!r} is out of range: it must be an integer >= 1.")
    ids = torch.tensor([read.ids], device=reader.device)
    chosen = {"pad_token_id": reader.filler, "max_new_tokens": max_new_tokens, **settings}
    with reader.reading():
        wrote: Any = write(input_ids=ids, attention_mask=torch.ones_like(ids), **chosen)
    out: list[int] = wrote[0].tolist()
    found = out[1:] if seconds else out[len(read) :]
    if not found:
        raise InputError("the model's generate wrote nothing; give a completion, or a longer max_new_tokens.")
    return from_ids(reader.tokenizer, found)
