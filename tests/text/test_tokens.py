"""Tokens of a text: what they stand for, which are special, which make a word."""

import pytest

import backplay as bp
from backplay.text.tokens import from_ids, tokenise
from backplay.zoo.sentences import WordTokenizer
from readers import TEXTS, tokenizer

KINDS = ("wordpiece", "bpe", "unigram")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*TEXTS, "it wasn't  on, (a) well-known 😀 film\n\nof Zürich"])
def test_pieces_make_the_text(kind, text):
    """Put together with their spaces, the pieces are the text but for the number of spaces."""
    found = tokenise(tokenizer(kind), text)
    assert found.tokens == tuple(tokenizer(kind).convert_ids_to_tokens(tokenizer(kind)(text)["input_ids"]))
    shown = "".join(
        " " * spaced + piece
        for piece, spaced, special in zip(found.pieces, found.spaced, found.special, strict=True)
        if not special
    )
    assert shown.replace("␣", " ").replace("↵", " ").split() == text.split()
    added = len(found) - len(tokenise(tokenizer(kind), text, special=False))
    assert sum(found.special) == added == {"wordpiece": 2, "bpe": 0, "unigram": 1}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_words(kind):
    found = tokenise(tokenizer(kind), "it wasn't dull, 😀 (a well-known story)!").joined()
    plain = [p for p, special in zip(found.pieces, found.special, strict=True) if not special]
    assert plain == ["it", "wasn't", "dull", ",", "😀", "(", "a", "well-known", "story", ")!"]
    assert found.words == tuple(range(len(found)))


def test_ideographs_are_words_of_their_own():
    found = tokenise(tokenizer("bpe"), "映画 film").joined()
    assert found.pieces == ("映", "画", "film")


@pytest.mark.parametrize("kind", KINDS)
def test_written_tokens(kind):
    """From ids alone, as a model writes them: the same words as from the text."""
    found = tokenise(tokenizer(kind), "a dull film in November", special=False)
    written = from_ids(tokenizer(kind), found.ids)
    assert written.tokens == found.tokens and written.special == found.special
    assert [p.lower() for p in written.joined().pieces] == [p.lower() for p in found.joined().pieces]


def test_characters_of_several_tokens_and_of_command():
    """The first token of a character shows it; nothing that commands a terminal is left in a piece."""
    found = tokenise(tokenizer("bpe"), "😀 \x1b[31m film")
    assert found.pieces.count("😀") == 1 and found.pieces.count("") == 3
    assert "\x1b" not in "".join(found.pieces) and "␛" in "".join(found.pieces)
    assert "\x1b" not in "".join(from_ids(tokenizer("bpe"), found.ids).pieces)


def test_unknown_words_are_words():
    found = tokenise(tokenizer("wordpiece"), "the 😀 film")
    assert found.tokens[2] == "[UNK]" and found.pieces[2] == "😀" and not found.special[2]


def test_a_tokenizer_of_ones_own():
    """The zoo's is no transformers tokenizer; without places in the text the vocabulary's marks tell the words."""
    found = tokenise(WordTokenizer(), "The FOOD was zzz.")
    assert found.tokens == ("[CLS]", "the", "food", "was", "[UNK]", ".")
    assert found.pieces == ("[CLS]", "The", "FOOD", "was", "zzz", ".")

    class Marked:
        def __call__(self, text, **_):
            return {"input_ids": [0, 1, 2, 3]}

        def convert_ids_to_tokens(self, ids):
            return [["un", "##forget", "##table", "film"][k] for k in ids]

    found = tokenise(Marked(), "unforgettable film")
    assert found.pieces == ("un", "forget", "table", "film") and found.words == (0, 0, 0, 1)
    assert found.joined().pieces == ("unforgettable", "film")


def test_a_tokenizer_that_fails():
    class Broken:
        def __call__(self, text, **_):
            raise RuntimeError("no such thing")

        def convert_ids_to_tokens(self, ids):
            return []

    with pytest.raises(bp.BackplayError, match="the tokenizer cannot read the text 'film': no such thing"):
        tokenise(Broken(), "film")
