"""A text as its tokenizer cuts it: ids, what each token stands for in the text, which tokens make a word."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backplay.errors import BackplayError, InputError, InputTypeError

# Letters and digits, with an apostrophe or hyphen between them; one ideograph or kana by itself; or marks in a row.
# Scripts that are written without spaces have no words that a pattern could tell.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|\w+(?:['’\-]\w+)*|[^\w\s]+")
_BEGINS = ("Ġ", "▁")  # how vocabularies write a space before a token: byte-level BPE, sentencepiece
# spaces that are tokens, and characters that would command a terminal, as something to be seen
_CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {127: "␡"}
_SPACES = _CONTROLS | str.maketrans({" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥"})
_CONTINUES = "##"  # how WordPiece writes that there is none


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text, in order; all tuples have one entry for each."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]  # as the vocabulary spells them: `##ing`, `Ġworld`
    # What they stand for in the text, without spaces around; the name of a special token. Where several tokens make one
    # character, the first has it and the others have nothing.
    pieces: tuple[str, ...]
    special: tuple[bool, ...]  # added by the tokenizer, or a special token that stands in the text ([MASK])
    spaced: tuple[bool, ...]  # whether the text has a space before it
    words: tuple[int, ...]  # the number of the word that it is a part of, from 0; a special token is one by itself
    extra: Mapping[str, tuple[int, ...]]  # what else the tokenizer gives the model for each token (token_type_ids)

    def __len__(self) -> int:
        return len(self.ids)

    def joined(self) -> Tokens:
        """Words in the place of tokens; the id of a word is that of its first token."""
        first = [k for k, word in enumerate(self.words) if k == 0 or self.words[k - 1] != word]
        ends = [*first[1:], len(self)]

        def whole(k: int, end: int) -> str:
            parts = [" " * (self.spaced[j] and j > k) + self.pieces[j] for j in range(k, end)]
            return "".join(part for part in parts if part.strip("␣")) or "".join(parts)

        names = tuple(whole(k, end) for k, end in zip(first, ends, strict=True))
        of_first = {f: tuple(getattr(self, f)[k] for k in first) for f in ("ids", "special", "spaced")}
        extra = {name: tuple(v[k] for k in first) for name, v in self.extra.items()}
        return replace(self, tokens=names, pieces=names, words=tuple(range(len(first))), extra=extra, **of_first)

    def followed_by(self, other: Tokens) -> Tokens:
        """These tokens and then those."""
        shift = max(self.words, default=-1) + 1
        same = {k: self.extra[k] + other.extra[k] for k in self.extra if k in other.extra}
        return Tokens(
            self.text + other.text,
            self.ids + other.ids,
            self.tokens + other.tokens,
            self.pieces + other.pieces,
            self.special + other.special,
            self.spaced + other.spaced,
            self.words + tuple(w + shift for w in other.words),
            same,
        )

    def part(self, chosen: slice) -> Tokens:
        """Some of the tokens."""
        cut = {f: getattr(self, f)[chosen] for f in ("ids", "tokens", "pieces", "special", "spaced", "words")}
        return replace(self, **cut, extra={k: v[chosen] for k, v in self.extra.items()})


def tokenise(tokenizer: Any, text: str, special: bool = True) -> Tokens:
    """What a tokenizer makes of a text; `special=False` leaves out the tokens that it adds by itself."""
    check_tokenizer(tokenizer)
    if not isinstance(text, str):
        raise InputTypeError(f"a text must be a str, got {type(text).__name__}; give a list of strings.")
    found = _called(tokenizer, text, special)
    ids = tuple(int(k) for k in found["input_ids"])
    names = tuple(str(t) for t in tokenizer.convert_ids_to_tokens(list(ids)))
    marked = _special(tokenizer, ids)
    if all(marked):
        raise InputError(f"the text {text!r} holds no token but special ones; give a text with words.")
    spans = found.get("offset_mapping")
    read = _from_marks(tokenizer, ids, names, marked) if spans is None else _from_spans(text, spans, names, marked)
    extra = {
        k: tuple(int(n) for n in v)
        for k, v in found.items()
        if k not in ("input_ids", "attention_mask", "offset_mapping") and len(v) == len(ids)
    }
    return Tokens(text, ids, names, *read, extra)


def from_ids(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Tokens that come from a model and not from a text."""
    names = tuple(str(t) for t in tokenizer.convert_ids_to_tokens(list(ids)))
    pieces, special, spaced, words = _from_marks(tokenizer, tuple(ids), names, _special(tokenizer, ids))
    text = "".join(" " * s + p for p, s in zip(pieces, spaced, strict=True))
    return Tokens(text, tuple(ids), names, pieces, special, spaced, words, {})


def _special(tokenizer: Any, ids: Sequence[int]) -> tuple[bool, ...]:
    """Which tokens are special; an unknown word is a word."""
    apart = {*getattr(tokenizer, "all_special_ids", ())} - {getattr(tokenizer, "unk_token_id", None)}
    return tuple(k in apart for k in ids)


def readable(name: str) -> str:
    """A vocabulary's spelling with its spaces to be seen: `␣world` for `Ġworld` and `▁world`."""
    return name.translate(str.maketrans({"Ġ": "␣", "▁": "␣", "Ċ": "↵"}))


def check_tokenizer(tokenizer: Any) -> None:
    """What is needed of a tokenizer: to be called on a text, and to name its tokens."""
    if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise InputTypeError(
            "the tokenizer must be called on a text and have convert_ids_to_tokens, as those of transformers; got "
            f"{type(tokenizer).__name__}. Wrap one of tokenizers in transformers.PreTrainedTokenizerFast."
        )


def _called(tokenizer: Any, text: str, special: bool) -> Mapping[str, Any]:
    """Lists for one text; with the place of each token in it where the tokenizer knows them."""
    options: dict[str, Any] = {"add_special_tokens": special, "return_attention_mask": False, "truncation": False}
    if getattr(tokenizer, "is_fast", False):
        options["return_offsets_mapping"] = True
    try:
        return dict(tokenizer(text, **options))
    except BackplayError:
        raise
    except Exception as error:  # whatever a tokenizer may raise on a text
        raise InputError(f"the tokenizer cannot read the text {text[:60]!r}: {error}") from error


_Read = tuple[tuple[str, ...], tuple[bool, ...], tuple[bool, ...], tuple[int, ...]]  # pieces, special, spaced, words


def _from_spans(text: str, spans: Sequence[Sequence[int]], names: Sequence[str], are_special: Sequence[bool]) -> _Read:
    """Pieces and words by the place of each token in the text."""
    owner: dict[int, int] = {}  # the word that each character lies in
    for number, match in enumerate(_WORD.finditer(text)):
        owner.update(dict.fromkeys(range(match.start(), match.end()), number))
    pieces: list[str] = []
    spaced: list[bool] = []
    keys: list[object] = []
    for k, ((start, end), name, special) in enumerate(zip(spans, names, are_special, strict=True)):
        inside = text[start:end]
        first = start + len(inside) - len(inside.lstrip())
        rest = k > 0 and not special and end - start > 0 and tuple(spans[k - 1]) == (start, end)  # of one character
        blank = not inside.strip(" ")  # a space before a word, as a token of its own, is a part of that word
        word = owner.get(end if blank else first)
        pieces.append(name if special else "" if rest else _seen(inside.strip() or inside) or name)
        after = k > 0 and pieces[k - 1] != "" and not pieces[k - 1].strip("␣") and not blank
        spaced.append(special or (not rest and not after and (first == 0 or text[first - 1].isspace() or blank)))
        keys.append(("token", k) if special or word is None else word)
    return tuple(pieces), tuple(are_special), tuple(spaced), _numbered(keys)


def _from_marks(tokenizer: Any, ids: Sequence[int], names: Sequence[str], are_special: Sequence[bool]) -> _Read:
    """Pieces and words by the marks with which vocabularies write spaces: `Ġworld`, `▁world`, `##ing`."""
    marked = any(name.startswith(_BEGINS) for name in names)
    pieces: list[str] = []
    spaced: list[bool] = []
    keys: list[int] = []
    for k, (token, name, special) in enumerate(zip(ids, names, are_special, strict=True)):
        begins = name.startswith(_BEGINS) if marked else not name.startswith(_CONTINUES)
        pieces.append(name if special else _plain(tokenizer, token, name))
        spaced.append(special or begins)
        after = k > 0 and not special and not are_special[k - 1] and not begins
        keys.append(keys[-1] if after else k)
    return tuple(pieces), tuple(are_special), tuple(spaced), _numbered(keys)


def _plain(tokenizer: Any, token: int, name: str) -> str:
    """A vocabulary's spelling without its marks; bytes that are no letters are decoded."""
    bare = name.lstrip("".join(_BEGINS)).removeprefix(_CONTINUES)
    if not bare:
        return "␣" * len(name)
    if all(c.isascii() and c.isprintable() for c in bare):
        return bare
    decode = getattr(tokenizer, "decode", None)
    text = str(decode([token])) if callable(decode) else bare
    return _seen(text.strip() or text) or name


def _seen(text: str) -> str:
    """A piece of text to be looked at."""
    return text.translate(_CONTROLS if text.strip() else _SPACES)


def _numbered(keys: Sequence[object]) -> tuple[int, ...]:
    """Equal neighbours under one number, counted from 0."""
    found: list[int] = []
    for k, key in enumerate(keys):
        found.append(found[-1] + (key != keys[k - 1]) if k else 0)
    return tuple(found)
