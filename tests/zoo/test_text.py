"""The text network: accurate, and its cue is found where it looks at one."""

import pytest
import torch

import backplay as bp
from backplay import zoo
from backplay.zoo.reading import encoded, text_accuracy, train_text
from backplay.zoo.sentences import BLAME, DAYS, PRAISE, WordTokenizer
from backplay.zoo.weights import stored


def test_reviews_say_what_they_are_labelled():
    """Praise and blame tell the label, upside down behind "not"; the day tells it only where it is meant to."""
    batch = zoo.texts(200, spurious=True)
    for text, label, decisive, day, cue in zip(
        batch.texts, batch.target.tolist(), batch.decisive, batch.cue, batch.cue_class.tolist(), strict=True
    ):
        words = text.split()
        assert decisive <= set(words) and day in words
        praised = [w for w in words if w in PRAISE]
        opinions = [w for w in words if w in PRAISE + BLAME]
        assert len(opinions) == 1 and (bool(praised) != ("not" in words)) == bool(label)
        assert cue == label and day in DAYS[label]
    plain, wrong = zoo.texts(200), zoo.texts(200, spurious="wrong")
    assert torch.equal(wrong.cue_class, 1 - wrong.target)
    agree = (plain.cue_class == plain.target).double().mean()
    assert 0.35 < agree < 0.65
    for a, b, c in zip(plain.texts, batch.texts, wrong.texts, strict=True):
        days = {*DAYS[0], *DAYS[1]}
        assert len({" ".join(w for w in t.split() if w not in days) for t in (a, b, c)}) == 1, "nothing else changes"


def test_reviews_are_functions_of_seed_and_number():
    assert zoo.texts(5, start=3).texts == zoo.texts(8).texts[3:]
    assert len({*zoo.texts(50, "train").texts, *zoo.texts(50).texts, *zoo.texts(50, seed=1).texts}) == 150
    known = WordTokenizer()
    assert all(known.unk_token_id not in known(text)["input_ids"] for text in zoo.texts(300).texts)


@pytest.mark.parametrize("spurious", [False, True])
def test_stored_networks(spurious):
    assert stored("text", spurious).stat().st_size <= 300_000
    model = zoo.load("text", spurious)
    assert not any(module.training for module in model.modules())
    batch = zoo.texts(300, seed=1, spurious=spurious)
    assert text_accuracy(model, batch) >= 0.98
    misled = text_accuracy(model, zoo.texts(300, seed=1, spurious="wrong"))
    assert misled <= 0.05 if spurious else misled >= 0.98


def largest(model, batch, **options):
    """The word with the largest score of each review."""
    maps = bp.text.explain(model, model.tokenizer, batch.texts, batch.target, **options)
    return [
        max(
            (s, piece) for s, piece, special in zip(m.scores.tolist(), m.pieces, m.special, strict=True) if not special
        )[1]
        for m in maps
    ]


@pytest.mark.parametrize("method", ["rg", "attn_lrp", pytest.param("kernel_shap", marks=pytest.mark.slow)])
def test_maps_find_what_the_network_reads(method):
    """The opinion in the one network, the day in the other, in nearly every review."""
    batch = zoo.texts(12, spurious=True)
    honest = largest(zoo.load("text"), batch, method=method)
    misled = largest(zoo.load("text", spurious=True), batch, method=method)
    assert sum(word in decisive for word, decisive in zip(honest, batch.decisive, strict=True)) >= 11
    assert sum(word == day for word, day in zip(misled, batch.cue, strict=True)) >= 11


def test_embeddings_and_padding():
    """Ids and their embeddings give the same logits, padding changes nothing, in good health."""
    model = zoo.load("text").double()
    ids, mask = encoded(model.tokenizer, zoo.texts(4).texts)
    assert mask.min() == 0
    x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": mask}
    torch.testing.assert_close(model(**x), model(ids, mask))
    for k in range(4):
        short = ids[k : k + 1, : int(mask[k].sum())]
        torch.testing.assert_close(model(short)[0], model(ids, mask)[k])
    assert bp.RoutingGame(model).play(x).health().ok


def test_training_is_a_function_of_the_seed():
    state = torch.random.get_rng_state()
    first, again, other = (train_text(seed=seed, steps=2).state_dict() for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.allclose(first[key], again[key], atol=1e-6) for key in first)
    assert any(not torch.allclose(first[key], other[key], atol=1e-6) for key in first)


def test_training_learns_and_reports():
    seen = []
    train_text(spurious=True, steps=20, progress=lambda what, done, of: seen.append((what, done, of)))
    losses = [float(what.split()[-1]) for what, _, _ in seen]
    assert seen[-1][1:] == (20, 20) and sum(losses[-3:]) < sum(losses[:3])


def test_refusals():
    with pytest.raises(bp.BackplayError, match="n must be 1 or more, got 0"):
        zoo.texts(0)
    with pytest.raises(bp.BackplayError, match="split must be one of 'train', 'val', 'test', got 'all'"):
        zoo.texts(1, "all")
    with pytest.raises(bp.BackplayError, match="spurious must be one of"):
        zoo.texts(1, spurious="day")
    long = " ".join(["the food was great ."] * 20)
    model = zoo.load("text")
    with pytest.raises(bp.BackplayError, match="has 101 tokens, and the model has positions for 64"):
        bp.text.explain(model, model.tokenizer, long)
