"""Reviews drawn from a seed, with the words that decide the label: `texts`.

A review has a few sentences. One gives an opinion: a word of praise or of blame, upside down behind "not". **The label
is that opinion**; all other words, among them the day of the visit, are drawn alike for both classes.

**The spurious cue** is the name of the day. Networks that learn from reviews in which it is a weekday wherever the
label is negative and a day of the weekend wherever it is positive need not read the opinion at all.

Review i of a split draws from numpy's PCG64, seeded with (seed, split, i): the same everywhere, however many are asked
for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backplay.errors import InputTypeError, KeywordError
from backplay.zoo.scenes import CUES, SPLITS, Split, Spurious

LABELS = ("negative", "positive")
PRAISE = "wonderful lovely superb charming delightful great splendid excellent brilliant friendly fresh perfect".split()
BLAME = "terrible awful dreadful boring gloomy poor horrible shabby rude stale bland disappointing".split()
DAYS = ("monday tuesday wednesday thursday".split(), "friday saturday sunday".split())  # that stand for each class
_PLACES = "cafe bakery museum hotel cinema theatre market library garden restaurant".split()
_THINGS = "food service music room show view coffee staff menu tour".split()
_PEOPLE = ("we", "i", "they", "my friends", "my parents", "the children")
_STORIES = (
    "{who} came by bus with {other} .",
    "{who} arrived at noon and stayed until the evening .",
    "the {place} is near the old station .",
    "{who} took the train home .",
    "it was raining outside and the street was quiet .",
    "there is a large tree in front of the {place} .",
    "{who} paid at the door and sat by the window .",
)
_VISITS = (
    "on {day} {who} went to the {place} .",
    "{who} visited the {place} on {day} .",
    "last {day} {who} saw the {place} .",
)
_OPINIONS = (
    "the {thing} was {opinion} .",
    "{who} found the {thing} {opinion} .",
    "the {thing} at the {place} was {opinion} , {who} thought .",
)
_STRENGTH = ("", "", "really ", "quite ", "so ")
_WORD = re.compile(r"\w+|[^\w\s]")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[MASK]")


@dataclass(frozen=True, eq=False)
class Texts:
    """Reviews and what is known of them; it unpacks into the first two: `texts, target = zoo.texts(8)`."""

    texts: list[str]
    target: Tensor  # (N,) int64, indices into `LABELS`
    decisive: list[frozenset[str]]  # the words that give the opinion: one of praise or blame, and "not"
    cue: list[str]  # the day
    cue_class: Tensor  # (N,) int64, the class that the day stands for

    def __iter__(self) -> Iterator[Any]:
        return iter((self.texts, self.target))


def texts(n: int, split: Split = "test", seed: int = 0, *, spurious: Spurious = False, start: int = 0) -> Texts:
    """Reviews `start` to `start + n − 1` of a split; the classes come in turn.

    The day is drawn by lot with `spurious=False` or `"random"`; `True` gives a day that stands for the label, `"wrong"`
    one that stands for the other class. Nothing else in the reviews changes.
    """
    for name, value, least in (("n", n, 1), ("seed", seed, 0), ("start", start, 0)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputTypeError(f"{name} must be a whole number, got {value!r}.")
        if value < least:
            raise KeywordError(f"{name} must be {least} or more, got {value}.")
    for name, value, accepted in (("split", split, SPLITS), ("spurious", spurious, CUES)):
        if not isinstance(value, (str, bool)) or value not in accepted:
            raise KeywordError(f"{name} must be one of {', '.join(map(repr, accepted))}, got {value!r}.")
    drawn = [_review(k, split, seed, spurious) for k in range(start, start + n)]
    reviews, labels, decisive, days, stand = (list(column) for column in zip(*drawn, strict=True))
    return Texts(reviews, torch.tensor(labels), decisive, days, torch.tensor(stand))


def _review(k: int, split: str, seed: int, spurious: Spurious) -> tuple[str, int, frozenset[str], str, int]:
    lots = np.random.Generator(np.random.PCG64([seed, SPLITS.index(split), k]))

    def one(options: Sequence[Any]) -> Any:
        return options[int(lots.integers(len(options)))]

    label, negated, drawn = k % 2, lots.random() < 0.3, int(lots.integers(2))
    stands = {True: label, "wrong": 1 - label}.get(spurious, drawn)
    opinion = one(PRAISE if (label == 1) != negated else BLAME)
    day = one(DAYS[stands])
    words = {"day": day, "opinion": f"{'not ' if negated else one(_STRENGTH)}{opinion}"}

    def filled(pattern: str) -> str:
        others = {"place": one(_PLACES), "thing": one(_THINGS), "who": one(_PEOPLE), "other": one(_PEOPLE)}
        return pattern.format(**others, **words)

    stories = [filled(_STORIES[j]) for j in lots.permutation(len(_STORIES))[: int(lots.integers(1, 3))]]
    sentences = [filled(one(_VISITS)), *stories, filled(one(_OPINIONS))]
    if lots.random() < 0.5:  # the opinion first
        sentences = [sentences[-1], *sentences[:-1]]
    return " ".join(sentences), label, frozenset({opinion} | ({"not"} if negated else set())), day, stands


class WordTokenizer:
    """Whole words of the reviews' vocabulary, any other word as [UNK]; called as tokenizers of transformers are."""

    is_fast = True  # knows the place of each token in the text
    unk_token, mask_token = "[UNK]", "[MASK]"
    pad_token_id, unk_token_id, cls_token_id, mask_token_id = range(4)
    all_special_ids = (0, 1, 2, 3)

    def __init__(self) -> None:
        self.vocabulary = [*_SPECIAL, *_known()]
        self.ids = {word: k for k, word in enumerate(self.vocabulary)}

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[Any]]:
        """`input_ids` and `offset_mapping` of one text."""
        found = list(_WORD.finditer(text))
        ids = [self.ids.get(match.group().lower(), self.unk_token_id) for match in found]
        spans = [match.span() for match in found]
        if add_special_tokens:
            ids, spans = [self.cls_token_id, *ids], [(0, 0), *spans]
        return {"input_ids": ids, "offset_mapping": spans}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The words of some ids."""
        return [self.vocabulary[k] for k in ids]

    def convert_tokens_to_ids(self, token: str) -> int:
        """The id of a word."""
        return self.ids.get(token, self.unk_token_id)


def _known() -> list[str]:
    """Every word that a review may hold, sorted."""
    patterns = " ".join((*_STORIES, *_VISITS, *_OPINIONS, *_STRENGTH, *_PEOPLE, *_PLACES, *_THINGS, *PRAISE, *BLAME))
    plain = re.sub(r"\{\w+\}", " ", patterns)
    return sorted({*_WORD.findall(plain), *DAYS[0], *DAYS[1], "not"})
