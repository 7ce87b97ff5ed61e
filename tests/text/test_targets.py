"""What is explained: classes by index and name, tokens, positions; and what is refused, in one clear line."""

import re

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near
from readers import TEXTS, digits, reader, tokenizer

MASKED = "the film was [MASK] !"


def explained(name, *args, texts=TEXTS[0], **options):
    return bp.text.explain(*reader(name), texts, *args, method="gradient_x_input", **options)[0]


def logits_of(name, text):
    model, words = reader(name)
    return model(torch.tensor([words(text)["input_ids"]])).logits[0].detach()


def test_classes_by_index_and_name():
    logits = logits_of("bert", TEXTS[0])
    for target, index in ((0, 0), ("so so", 1), ("GOOD", 2), (None, int(logits.argmax()))):
        found = explained("bert", target)
        assert found.goal.index == index and found.target == ["bad", "so so", "good"][index]
        assert found.value == pytest.approx(float(logits[index])) and found.position is None
    with_classes = bp.text.explain(*reader("mean"), TEXTS[0], "good", method="gradient")[0]
    assert with_classes.goal.index == 2, "names that the model itself bears"


def test_one_for_each_text():
    found = bp.text.explain(*reader("bert"), TEXTS, ["bad", None, 2], method="gradient")
    assert [one.goal.index for one in found][::2] == [0, 2]
    assert [one.goal.index for one in bp.text.explain(*reader("bert"), TEXTS[:2], torch.tensor([2, 0]))] == [2, 0]
    places = bp.text.explain(*reader("bert tokens"), TEXTS[:2], 1, position=[1, "it"], method="gradient")
    assert places[0].position == 1 and places[1].pieces[places[1].position] == "it"


@pytest.mark.parametrize("name", ["bert", "gpt2", "bert tokens"])
@pytest.mark.parametrize("method", ["gradient_x_input", "rg", "kernel_shap"])
def test_one_rather_than_another(name, method):
    """The difference of two logits: linear methods give the difference of two maps, games play its weights (S26b)."""
    place = 2 if name == "bert tokens" else None
    given = {"method": method, "position": place}
    model, words = reader(name)
    found = bp.text.explain(model, words, TEXTS[:2], 1, against=2, **given)
    plus, minus = (bp.text.explain(model, words, TEXTS[:2], k, **given) for k in (1, 2))
    for text, one, a, b in zip(TEXTS[:2], found, plus, minus, strict=True):
        assert one.value == pytest.approx(a.value - b.value, abs=1e-6) and one.against == b.target
        if method != "rg":
            assert_near(one.scores, a.scores - b.scores, 1e-4, what=text)
            continue
        ids = words(text, return_tensors="pt")["input_ids"]
        x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}
        weights = torch.zeros_like(model(ids).logits)
        here = weights[0] if weights.ndim == 2 else weights[0, -1 if place is None else place]
        here[1], here[2] = 1.0, -1.0
        assert_near(one.scores, bp.explain(model, x, weights, method="rg")[0].sum(-1), digits(name), what=text)
    assert "rather than" in found[0].caption() and "difference of logits" in found[0].html()


def test_the_other_one_by_name():
    found = explained("bert", "bad", against="good")
    assert found.goal.against == 2 and found.to_dict()["against"] == "good" and found.words().against == "good"
    each = bp.text.explain(*reader("bert"), TEXTS[:2], 0, method="gradient", against=[None, 1])
    assert each[0].against is None and each[1].against == "so so"
    with pytest.raises(bp.BackplayError, match="explained itself"):
        explained("bert", "bad", against=0)
    with pytest.raises(bp.BackplayError, match="against 7 is out of range"):
        explained("bert", "bad", against=7)


def test_causal_models_at_the_last_token_or_any_other():
    logits = logits_of("gpt2", TEXTS[0])
    last = explained("gpt2")
    assert last.position == len(logits) - 1 and last.value == pytest.approx(float(logits[-1].max()))
    middle = explained("gpt2", 7, position=3)
    assert middle.value == pytest.approx(float(logits[3, 7]))
    assert middle.scores[:4].abs().min() > 0 and not middle.scores[4:].any(), "no later token counts"
    assert explained("gpt2", 7, position=-1).position == len(logits) - 1
    assert explained("gpt2", 7, position="unforgettable").position == middle.pieces.index("un")


def test_tokens_by_their_text():
    words = tokenizer("bpe")
    for target, token in ((" film", "Ġfilm"), ("Ġfilm", "Ġfilm"), ("!", "!"), ("<|end|>", "<|end|>")):
        found = explained("gpt2", target)
        assert found.goal.index == words.convert_tokens_to_ids(token) and found.target == token
    assert explained("bert masked", "film", texts=MASKED).target == "film"
    assert explained("bert masked", "##able", texts=MASKED).target == "##able"
    assert "␣film" in explained("gpt2", " film").caption()


def test_masked_models_at_their_mask():
    logits = logits_of("bert masked", MASKED)
    found = explained("bert masked", texts=MASKED)
    assert found.position == 4 and found.pieces[4] == "[MASK]" and found.special[4]
    assert found.value == pytest.approx(float(logits[4].max()))
    assert explained("bert masked", texts=TEXTS[0], position=2).position == 2


REFUSED = {
    "empty": ("bert", "", {}, "the text '' is empty; give a text with words."),
    "blank": ("bert", " \n", {}, "is empty; give a text with words."),
    "none": ("bert", [], {}, "there is no text to explain; give at least one."),
    "number": ("bert", [3], {}, "a text must be a str, got int; give a list of strings."),
    "bytes": ("bert", b"film", {}, "texts must be a str or a list of them, got bytes."),
    "only special": ("bert", "[SEP]", {}, "holds no token but special ones"),
    "long": ("bert", "film " * 600, {}, "has 602 tokens, and the model has positions for 512; give a shorter text"),
    "long roberta": ("roberta", "film " * 511, {}, "has 513 tokens, and the model has positions for"),
    "unknown label": (
        "bert",
        TEXTS,
        {"target": "god"},
        "no label is named 'god' (did you mean good?): there are [bad,",
    ),
    "class too large": (
        "bert",
        TEXTS,
        {"target": 3},
        "target 3 is out of range: the model has 3 classes, so give 0 to",
    ),
    "float": ("bert", TEXTS, {"target": 1.0}, "target must be None, an int, a label or a token"),
    "too many targets": ("bert", TEXTS, {"target": [1, 2]}, "2 entries of target for 3 texts: give one, or one for"),
    "several tokens": ("gpt2", TEXTS, {"target": " unforgettable"}, "is 3 tokens, [Ġun, forget, table]; name one"),
    "no such token": ("bert masked", MASKED, {"target": "😀"}, "the vocabulary has no token '😀'"),
    "no mask": ("bert masked", TEXTS[0], {}, "has 0 [MASK] tokens; put one where"),
    "two masks": ("bert masked", "[MASK] film [MASK]", {}, "has 2 [MASK] tokens; put one where"),
    "which token": ("bert tokens", TEXTS, {"target": 1}, "this model classifies every token: say which one is meant"),
    "position of a class": ("bert", TEXTS, {"position": 1}, "position=1 was given, and this model says one thing"),
    "position too large": ("gpt2", TEXTS[0], {"position": 9}, "has 9 tokens, so give -9 to 8."),
    "position of no word": ("gpt2", TEXTS[0], {"position": "dog"}, "position='dog' is no word of the text; its tokens"),
    "position of a type": ("gpt2", TEXTS[0], {"position": 1.5}, "position must be an int, a word of the text or None"),
    "no method": ("bert", TEXTS, {"method": "rgg"}, "no method named 'rgg' (did you mean"),
    "no parameter": ("bert", TEXTS, {"temperature": 1}, "unknown parameter 'temperature'"),
    "bad parameter": ("bert", TEXTS, {"tau": -1}, "tau=-1 is out of range"),
    "a method of images": (
        "bert",
        TEXTS,
        {"method": "gradcam"},
        "'gradcam' does not fit this network: it explains one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    name, texts, options, message = REFUSED[case]
    with pytest.raises(bp.BackplayError, match=re.escape(message)) as caught:
        bp.text.explain(*reader(name), texts, **options)
    assert len(str(caught.value).splitlines()) <= 2


class Deaf(nn.Module):
    """Takes ids alone."""

    def forward(self, input_ids):
        return input_ids[:, :2].float()


class Bare(nn.Module):
    """Takes embeddings, and does not tell where they come from."""

    def forward(self, inputs_embeds):
        return inputs_embeds[:, 0]


def test_wrong_models_and_tokenizers():
    model, words = reader("bert")
    with pytest.raises(bp.BackplayError, match="Deaf cannot be explained on tokens: forward takes no inputs_embeds"):
        bp.text.explain(Deaf(), words, TEXTS)
    with pytest.raises(bp.BackplayError, match="there is no get_input_embeddings"):
        bp.text.explain(Bare(), words, TEXTS)
    with pytest.raises(bp.BackplayError, match=r"takes a torch\.nn\.Module"):
        bp.text.explain("bert", words, TEXTS)
    with pytest.raises(bp.BackplayError, match=r"Wrap one of tokenizers in transformers\.PreTrainedTokenizerFast"):
        bp.text.explain(model, words.backend_tokenizer, TEXTS)
    with pytest.raises(bp.BackplayError, match="must be called on a text"):
        bp.text.explain(model, None, TEXTS)


def test_a_classifier_without_a_padding_token(monkeypatch):
    """A tokenizer without one is fine where the model can do without; a GPT-2 classifier cannot."""
    model, words = reader("gpt2 classes")
    assert words.pad_token is None
    monkeypatch.setattr(model.config, "pad_token_id", None)
    with pytest.raises(bp.BackplayError, match=r"knows no padding token: set model\.config\.pad_token_id") as caught:
        bp.text.explain(model, words, TEXTS, method="gradient")
    assert len(str(caught.value).splitlines()) == 1
