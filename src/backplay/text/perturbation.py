"""LIME and KernelSHAP over words: words are hidden and the model is asked again.

The pieces are the words of the text; special tokens are always shown. A word's coefficient is shared out evenly among
its tokens, so that the scores of its tokens sum to it. What is fitted is the target's logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from backplay.errors import KeywordError, instead
from backplay.methods.perturbation import coalitions, constrained_regression, weighted_ridge
from backplay.methods.registry import MethodInfo
from backplay.text.batches import Batch
from backplay.text.reader import Reader
from backplay.text.targets import Goal
from backplay.text.tokens import Tokens

NAMES = ("lime", "kernel_shap")
HIDING = ("mask", "zero", "mean")
_ROWS = 32  # perturbed texts that are read at once

Ask = Callable[[Tensor], Tensor]  # rows of ones and zeros (n, words) -> (n,) logits


def check(info: MethodInfo, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of LIME or KernelSHAP on text: those on images without superpixels, and another baseline."""
    known = [name for name in info.params if name != "segments"]
    for name in params:
        if name not in known:
            raise KeywordError(f"unknown parameter {name!r}{instead(name, known, f'on text {info.name!r} takes')}.")
    hiding = params.get("baseline", "mask")
    if hiding not in HIDING:
        raise KeywordError(
            f"baseline={hiding!r} is out of range: on text it must be one of {', '.join(map(repr, HIDING))}."
        )
    others = {name: value for name, value in params.items() if name != "baseline"}
    checked = info.check(others)
    return {name: checked[name] for name in known} | {"baseline": hiding}


def explain(
    name: str, reader: Reader, batch: Batch, texts: Sequence[Tokens], goals: Sequence[Goal], params: Mapping[str, Any]
) -> list[Tensor]:
    """The scores (T,) of each text of a batch."""
    found: list[Tensor] = []
    for row, k in enumerate(batch.members):
        owner = _owners(texts[k])
        words = int(owner.max()) + 1
        ask = _asker(reader, batch, row, texts[k], goals[k], owner, params["baseline"])
        fit = _lime if name == "lime" else _shapley
        weights = fit(ask, words, params)
        counts = torch.bincount(owner[owner >= 0], minlength=words)
        shares = torch.cat([weights / counts, weights.new_zeros(1)])  # the last is for special tokens, owner −1
        found.append(shares[owner])
    return found


def _owners(tokens: Tokens) -> Tensor:
    """(T,) the word that each token is a part of, counted without special tokens; −1 for those."""
    plain = [w for w, special in zip(tokens.words, tokens.special, strict=True) if not special]
    number = {word: k for k, word in enumerate(dict.fromkeys(plain))}
    pairs = zip(tokens.words, tokens.special, strict=True)
    return torch.tensor([-1 if special else number[word] for word, special in pairs])


def _asker(reader: Reader, batch: Batch, row: int, tokens: Tokens, goal: Goal, owner: Tensor, baseline: str) -> Ask:
    start, count = batch.starts[row], len(tokens)
    own = {name: value[row : row + 1] for name, value in batch.arguments.items()}
    embedded = own["inputs_embeds"]
    inside = slice(start, start + count)
    hidden = _hidden(reader, embedded[0, inside], owner, baseline)

    def ask(shown: Tensor) -> Tensor:
        answers: list[Tensor] = []
        for rows in shown.split(_ROWS):
            visible = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)[:, owner] > 0  # (k, T), special tokens shown
            x = embedded.repeat(len(rows), 1, 1)
            x[:, inside] = torch.where(visible[:, :, None].to(x.device), x[:, inside], hidden)
            others = {k: v.expand(len(rows), *v.shape[1:]) for k, v in own.items() if k != "inputs_embeds"}
            answers.append(goal.score(reader.run({"inputs_embeds": x, **others}), start))
        return torch.cat(answers).double().cpu()

    return ask


def _hidden(reader: Reader, embedded: Tensor, owner: Tensor, baseline: str) -> Tensor:
    """(D,) what stands in the place of a hidden token: the mask token's embedding, 0, or the mean of the text."""
    if baseline == "zero":
        return torch.zeros_like(embedded[0])
    if baseline == "mean":
        return embedded[(owner >= 0).to(embedded.device)].mean(0)
    for name in ("mask_token_id", "unk_token_id", "pad_token_id"):
        token = getattr(reader.tokenizer, name, None)
        if isinstance(token, int):
            return reader.embed(torch.tensor([[token]]))[0, 0]
    return torch.zeros_like(embedded[0])


def _lime(ask: Ask, words: int, params: Mapping[str, Any]) -> Tensor:
    """Ridge regression on which words are shown, weighted by the cosine distance from the whole text."""
    generator = torch.Generator().manual_seed(params["seed"])
    shown = torch.randint(0, 2, (params["n"], words), generator=generator).double()
    shown[0] = 1
    distance = 1 - shown.mean(1).sqrt()
    weights = torch.exp(-distance.square() / params["width"] ** 2).sqrt()
    return weighted_ridge(shown, ask(shown), weights, params["ridge"])


def _shapley(ask: Ask, words: int, params: Mapping[str, Any]) -> Tensor:
    """Shapley values of the words; they sum to `f(text) − f(all words hidden)`, and are exact where `2^M − 2 ≤ n`."""
    nothing, everything = ask(torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, words))
    if words == 1:
        return (everything - nothing)[None]
    shown, weights = coalitions(words, params["n"], torch.Generator().manual_seed(params["seed"]))
    return constrained_regression(shown, ask(shown) - nothing, weights, everything - nothing)
