"""What is explained of a text: a class by index or name, a token by its text, at a position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backplay.errors import InputError, InputTypeError, list_words, suggestion
from backplay.text.reader import Reader
from backplay.text.tokens import Tokens

Wanted = int | str | None  # a class, a label or token, or the model's own answer
Place = int | str | None  # a position, a word of the text, or what the model's kind suggests


@dataclass(frozen=True)
class Goal:
    """One logit of one text, or the difference of two."""

    index: int  # of the class or token
    name: str  # of the class, or the token's text
    position: int | None  # among the text's tokens; None where the model says one thing of the whole text
    value: float  # the logit itself, or the difference
    against: int | None = None  # the class or token whose logit is subtracted (S26b)
    against_name: str = ""
    classes: int = 0  # how many logits there are

    def target(self, shift: int = 0) -> tuple[int, ...]:
        """As games take it, in a text that `shift` tokens of padding stand before."""
        return self._place(self.index, shift)

    def _place(self, index: int, shift: int) -> tuple[int, ...]:
        return (index,) if self.position is None else (self.position + shift, index)

    def score(self, logits: Tensor, shift: int = 0) -> Tensor:
        """(B,) what is explained, of logits (B, classes) or (B, T, classes)."""
        found = logits[(slice(None), *self.target(shift))]
        return found if self.against is None else found - logits[(slice(None), *self._place(self.against, shift))]

    def weights(self, length: int, shift: int = 0) -> Tensor:
        """`w` over the logits, (classes,) or (length, classes): 1 at the target, −1 at what it is set against."""
        found = torch.zeros(self.classes) if self.position is None else torch.zeros(length, self.classes)
        found[self.target(shift)] = 1.0
        if self.against is not None:
            found[self._place(self.against, shift)] = -1.0
        return found


def read_goal(
    reader: Reader, tokens: Tokens, logits: Tensor, wanted: Wanted, place: Place, against: Wanted = None
) -> Goal:
    """The logit that is meant, of a text whose logits are (classes,) or (T, classes); less another one, if it is."""
    count = logits.shape[-1]
    speaks = logits.ndim == 2 and count >= reader.vocabulary > 0  # a language model
    if logits.ndim == 1:
        if place is not None:
            raise InputError(
                f"position={place!r} was given, and this model says one thing of the whole text; leave it."
            )
        position, here = None, logits
    else:
        position = _position(reader, tokens, place, speaks)
        here = logits[position]
    index = int(here.argmax()) if wanted is None else _index(reader, wanted, count, speaks, "target")
    name, value = _name(reader, index, speaks), float(here[index])
    if against is None:
        return Goal(index, name, position, value, classes=count)
    other = _index(reader, against, count, speaks, "against")
    if other == index:
        raise InputError(f"against={against!r} is {name!r}, which is explained itself; give another one, or a target.")
    return Goal(index, name, position, value - float(here[other]), other, _name(reader, other, speaks), count)


def _position(reader: Reader, tokens: Tokens, place: Place, speaks: bool) -> int:
    """Which token's logits are meant."""
    if isinstance(place, bool) or not isinstance(place, (int, str, type(None))):
        raise InputTypeError(f"position must be an int, a word of the text or None, got {type(place).__name__}.")
    if isinstance(place, str):
        return _found(tokens, place)
    if place is not None:
        if not -len(tokens) <= place < len(tokens):
            raise InputError(
                f"position={place} is out of range: the text {tokens.text[:40]!r} has {len(tokens)} tokens, so give "
                f"{-len(tokens)} to {len(tokens) - 1}."
            )
        return place % len(tokens)
    mask = getattr(reader.tokenizer, "mask_token_id", None)
    masked = [k for k, token in enumerate(tokens.ids) if token == mask]
    if len(masked) == 1:
        return masked[0]
    if speaks and mask is None:
        return len(tokens) - 1  # a causal model: what comes next
    if speaks:
        raise InputError(
            f"the text {tokens.text[:40]!r} has {len(masked)} {reader.tokenizer.mask_token} tokens; put one where the "
            "model should fill in a word, or give position=…, such as -1 for the last token of a causal model."
        )
    raise InputError(
        "this model classifies every token: say which one is meant, position=… as a number or as a word of the text."
    )


def _found(tokens: Tokens, word: str) -> int:
    """The first token of a word that stands in the text, or a token by its own spelling."""
    for k, token in enumerate(tokens.tokens):
        if word in (token, tokens.pieces[k]):
            return k
    for k in range(len(tokens)):
        if k and tokens.words[k] == tokens.words[k - 1]:
            continue
        whole = "".join(tokens.pieces[j] for j in range(len(tokens)) if tokens.words[j] == tokens.words[k])
        if whole.casefold() == word.casefold():
            return k
    shown = list_words([p for p, special in zip(tokens.pieces, tokens.special, strict=True) if not special])
    raise InputError(f"position={word!r} is no word of the text; its tokens are {shown}.")


def _index(reader: Reader, wanted: Wanted, count: int, speaks: bool, what: str) -> int:
    """A class by number, or by the name that the model or the vocabulary has for it."""
    if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
        raise InputTypeError(
            f"{what} must be None, an int, a label or a token, or a list with one for each text; got "
            f"{type(wanted).__name__}."
        )
    if isinstance(wanted, int):
        if not 0 <= wanted < count:
            raise InputError(
                f"{what} {wanted} is out of range: the model has {count} classes, so give 0 to {count - 1}."
            )
        return wanted
    return _token(reader, wanted, what) if speaks else _label(reader, wanted, count)


def _label(reader: Reader, wanted: str, count: int) -> int:
    known = {name: k for name, k in reader.labels.items() if k < count}
    if wanted in known:
        return known[wanted]
    alike = [k for name, k in known.items() if name.casefold() == wanted.casefold()]
    if len(alike) == 1:
        return alike[0]
    there = f"there are {list_words(list(known))}" if known else f"its {count} classes have none, give a number"
    raise InputError(f"no label is named {wanted!r}{suggestion(wanted, known)}: {there}.")


def _token(reader: Reader, wanted: str, what: str) -> int:
    """The id of a token: of its text as it stands (a space before it counts), or of the vocabulary's spelling."""
    tokenizer = reader.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    ids = [int(k) for k in tokenizer(wanted, add_special_tokens=False)["input_ids"]] if wanted else []
    if len(ids) == 1 and ids[0] != unknown:
        return ids[0]
    found = tokenizer.convert_tokens_to_ids(wanted)
    if isinstance(found, int) and (found != unknown or wanted == getattr(tokenizer, "unk_token", None)):
        return found
    if len(ids) > 1:
        names = list_words([str(t) for t in tokenizer.convert_ids_to_tokens(ids)])
        raise InputError(f"{what} {wanted!r} is {len(ids)} tokens, {names}; name one of them.")
    raise InputError(f"the vocabulary has no token {wanted!r}; give one of its tokens, or an id.")


def _name(reader: Reader, index: int, speaks: bool) -> str:
    if speaks:
        name = reader.tokenizer.convert_ids_to_tokens([index])[0]
        return str(index) if name is None else str(name)  # some models have more logits than tokens
    named = {k: name for name, k in reader.labels.items()}
    return named.get(index, str(index))
