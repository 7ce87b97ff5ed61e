"""From raw strings to token maps: `bp.text.explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backplay.entry import entry
from backplay.errors import InputError, InputTypeError, KeywordError, NonFiniteError
from backplay.games import RoutingGame, StoppingGame
from backplay.methods.registry import Explainer, find
from backplay.network.captures import Captures
from backplay.text import perturbation
from backplay.text.batches import Batch, batches, unpadded
from backplay.text.maps import TokenMap, TokenMaps
from backplay.text.reader import Reader
from backplay.text.targets import Goal, Place, Wanted, read_goal
from backplay.text.tokens import Tokens, tokenise

_GAMES = {"rg": RoutingGame, "sg": StoppingGame}


@entry
def explain(
    model: Any,
    tokenizer: Any,
    texts: str | Sequence[str],
    target: Wanted | Sequence[Wanted] = None,
    method: str = "rg",
    *,
    position: Place | Sequence[Place] = None,
    against: Wanted | Sequence[Wanted] = None,
    **params: Any,
) -> TokenMaps:
    """What each token of each text contributes to a logit of a text model: a list of `TokenMap`.

    `target` is None (the model's own answer), a class by index or label, of a language model a token by its text or id;
    a list has one for each text. Models that answer at every token are explained at `position`: a number (negative from
    the end) or a word of the text, or a list of them. Without it a causal model is explained at the last token and a
    masked one at its mask token. With `against`, another class or token, the difference of both logits is explained:
    why the target rather than that.

    Any method of `bp.methods()` that fits embeddings may be named, `lime` and `kernel_shap` too: they hide words.

        bp.text.explain(model, tokenizer, ["a film to remember", "two hours lost"], target="POSITIVE")
    """
    reader = Reader(model, tokenizer)
    way = Route.named(reader, method, params)
    strings = [texts] if isinstance(texts, str) else _listed(texts)
    read = [read_text(reader, text) for text in strings]
    answers = [reader.answer(tokens) for tokens in read]
    asked = [_each(v, len(read), n) for v, n in ((target, "target"), (position, "position"), (against, "against"))]
    goals = [read_goal(reader, *five) for five in zip(read, answers, *asked, strict=True)]
    found: dict[int, TokenMap] = {}
    for batch, scored in _scored(way, read, answers, goals):
        for k, scores, arrives in zip(batch.members, scored.scores, scored.arrives, strict=True):
            found[k] = TokenMap(read[k], scores, goals[k], method, params, arrives)
    return TokenMaps(found[k] for k in range(len(read)))


@dataclass(frozen=True)
class Scored:
    """What a method finds for the texts of a batch."""

    scores: list[Tensor]  # (T,) each, on the CPU
    arrives: list[float | None]


@dataclass(frozen=True)
class Route:
    """A method with its parameters, on a reader's model."""

    reader: Reader
    method: str
    params: Mapping[str, Any]
    explainer: Explainer | None  # None for LIME and KernelSHAP, which are others on words than on pictures

    @staticmethod
    def named(reader: Reader, method: str, params: Mapping[str, Any]) -> Route:
        """The method of that name, its parameters checked."""
        info = find(method)
        if method in perturbation.NAMES:
            return Route(reader, method, perturbation.check(info, params), None)
        explainer = Explainer(reader.model, method, **params)
        if explainer.layer is not None:
            raise KeywordError(
                f"layer={explainer.layer!r}: a text's scores are those of its tokens; for a layer's relevance use "
                "bp.explain on its embeddings."
            )
        return Route(reader, method, explainer.params, explainer)

    def scores(self, batch: Batch, texts: Sequence[Tokens], goals: Sequence[Goal]) -> Scored:
        """Scores of the batch's texts; `texts` and `goals` are all of them."""
        if self.explainer is None:
            found = perturbation.explain(self.method, self.reader, batch, texts, goals, self.params)
            dtype = batch.arguments["inputs_embeds"].dtype
            return Scored([f.to(dtype) for f in found], [None] * len(found))
        targets = _targets(batch, goals)
        lengths = [len(texts[k]) for k in batch.members]
        maps, arrives = self.maps(batch.arguments, targets)
        sums = self.by_token(maps)
        rows = zip(sums, batch.starts, lengths, strict=True)
        return Scored([row[start : start + length].clone() for row, start, length in rows], arrives)

    def by_token(self, maps: Tensor) -> Tensor:
        """(B, T) of a map (B, T, D), on the CPU: summed over the embedding, or the length of a gradient.

        Contributions add up to something. The entries of a gradient do not: behind a layer norm, which ignores what all
        features share, they even sum to 0.
        """
        slopes = find(self.method).slopes or (self.method == "sg" and not self.params["multiply_by_input"])
        return (maps.norm(dim=-1) if slopes else maps.sum(-1)).detach().cpu()

    def maps(
        self, arguments: Mapping[str, Tensor], targets: list[tuple[int, ...]] | Tensor
    ) -> tuple[Any, list[float | None]]:
        """The map of the explained inputs, and the share of each sample's walk that arrives at them."""
        assert self.explainer is not None
        if self.method not in _GAMES:
            return self.explainer.attribute(arguments, targets), [None] * len(targets)
        network, _ = Captures.held(self.reader.model).prepare(arguments)
        game = _GAMES[self.method](network, **self.params)
        size = max(1, game.together(arguments))
        found: list[Any] = []
        arrives: list[float | None] = []
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            play = game.play({k: v[part] for k, v in arguments.items()}, targets[part])
            found.append(play.attribution())
            arrived = sum(play.marginal(node).flatten(1).sum(1) for node in network.inputs)
            arrives += torch.as_tensor(arrived).tolist()
        if isinstance(found[0], Tensor):
            return torch.cat(found), arrives
        return {key: torch.cat([f[key] for f in found]) for key in found[0]}, arrives


def _targets(batch: Batch, goals: Sequence[Goal]) -> list[tuple[int, ...]] | Tensor:
    """What is explained of each text of a batch, as games take it: an index, or weights where logits are compared."""
    own = [(goals[k], start) for k, start in zip(batch.members, batch.starts, strict=True)]
    if all(goal.against is None for goal, _ in own):
        return [goal.target(start) for goal, start in own]
    embedded = batch.arguments["inputs_embeds"]
    return torch.stack([goal.weights(embedded.shape[1], start) for goal, start in own]).to(embedded)


def _scored(
    way: Route, texts: Sequence[Tokens], answers: Sequence[Tensor], goals: Sequence[Goal]
) -> Iterator[tuple[Batch, Scored]]:
    """Every batch with its scores.

    A position of padding that sees padding alone (a window of local attention) may be NaN inside the model, where no
    answer reads it. Its map is NaN all the same, so such texts are played again without padding.
    """
    for batch in batches(way.reader, texts, answers):
        try:
            yield batch, way.scores(batch, texts, goals)
        except NonFiniteError:
            if not batch.padded:
                raise
            for part in unpadded(way.reader, texts, answers, batch.members):
                yield part, way.scores(part, texts, goals)


def _listed(texts: Any) -> list[Any]:
    if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Sequence):
        raise InputTypeError(f"texts must be a str or a list of them, got {type(texts).__name__}.")
    if not texts:
        raise InputError("there is no text to explain; give at least one.")
    return list(texts)  # pyright: ignore[reportUnknownArgumentType]


def read_text(reader: Reader, text: Any) -> Tokens:
    """The tokens of a text that the model can read."""
    if isinstance(text, str) and not text.strip():
        raise InputError(f"the text {text!r} is empty; give a text with words.")
    tokens = tokenise(reader.tokenizer, text)
    reader.check_length(tokens)
    return tokens


def _each(given: Any, count: int, what: str) -> list[Any]:
    """One for each text, or the same for all of them."""
    if isinstance(given, Tensor) and not given.is_floating_point():
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:  # pyright: ignore[reportUnknownArgumentType]
        raise InputError(
            f"{len(given)} entries of {what} for {count} texts: give one, or one for each text."  # pyright: ignore[reportUnknownArgumentType]
        )
    return list(given)  # pyright: ignore[reportUnknownArgumentType]
