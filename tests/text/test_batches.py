"""Which texts are played together, and on which side they are padded."""

import pytest

from backplay.text.batches import _rounded, batches
from backplay.text.reader import Reader
from backplay.text.tokens import tokenise
from readers import reader

TEXTS = ["the film", "a film was dull", "we was on a dull film and it rain"]


@pytest.mark.parametrize(
    "name, left, groups",
    [("bert", False, 2), ("roberta", False, 2), ("gpt2", False, 2), ("gpt2 classes", True, 2), ("mean", False, 3)],
)
def test_sides(name, left, groups):
    """Right of encoders and language models, left of causal classifiers; not at all where padding would be read."""
    asked = Reader(*reader(name))
    read = [tokenise(asked.tokenizer, text) for text in TEXTS]
    found = list(batches(asked, read, [asked.answer(tokens) for tokens in read]))
    assert len(found) == groups and sorted(k for batch in found for k in batch.members) == [0, 1, 2]
    for batch in found:
        wide = batch.arguments["inputs_embeds"].shape[1]
        lengths = [len(read[k]) for k in batch.members]
        assert batch.starts == tuple(wide - n if left else 0 for n in lengths)
        if name == "mean":
            assert set(lengths) == {wide}


def test_lengths():
    """At most seven tokens longer, or a quarter; never beyond what the model has positions for."""
    for length in range(1, 2000):
        wide = _rounded(length, None)
        assert length <= wide <= max(length + 7, 1.25 * length)
    assert _rounded(509, 512) == 512 and _rounded(59, 60) == 60
    assert len({_rounded(k, None) for k in range(1, 513)}) <= 24
