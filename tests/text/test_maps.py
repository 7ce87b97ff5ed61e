"""Token maps against maps of the embeddings, made by hand with `bp.explain` on one text without padding."""

import copy
import math

import pytest
import torch

import backplay as bp
from closeness import assert_near
from readers import FAMILIES, TEXTS, digits, reader
from series import series

# models that answer at every token, and where they are asked
PLACES = {"bert tokens": 2, "t5 encoder": 2, "bert masked": 2}
EVERY = [name for name in FAMILIES if name != "t5"]


def by_hand(name, text, target, method="rg", **params):
    """The embeddings of a text alone, as they are, and the map of them summed over features."""
    model, tokenizer = reader(name)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}
    found = bp.explain(model, x, target, method=method, **params)[0]
    return found.norm(dim=-1) if method in ("gradient", "smoothgrad", "sg") else found.sum(-1)


@pytest.mark.slow
@pytest.mark.parametrize("name", series(EVERY, ("bert", "gpt2 classes")))
def test_scores_are_those_of_each_text_alone(name):
    """Three texts of three lengths in one call: the same numbers as one by one without padding."""
    model, tokenizer = reader(name)
    maps = bp.text.explain(model, tokenizer, TEXTS, position=PLACES.get(name))
    assert len(maps) == len(TEXTS)
    for text, found in zip(TEXTS, maps, strict=True):
        ids = tokenizer(text)["input_ids"]
        answer = model(torch.tensor([ids]))
        logits = (answer if name == "mean" else answer.logits).detach()
        place = PLACES.get(name, len(ids) - 1)
        here = logits[0, place] if logits.ndim == 3 else logits[0]
        assert found.goal.index == int(here.argmax())
        assert_near(found.value, here.max().item(), 1e-6, what="value")
        assert found.tokens == tokenizer.convert_ids_to_tokens(ids) and len(found.scores) == len(ids)
        target = (place, found.goal.index) if logits.ndim == 3 else found.goal.index
        assert_near(found.scores, by_hand(name, text, target), digits(name), what=text)
        assert found.scores.abs().max() > 0


@pytest.mark.parametrize("name", series(["bert", "llama", "qwen3", "modernbert"], ("bert",)))
def test_eager_and_fused_attention(name):
    """Either way of computing attention gives the same maps."""
    maps = [bp.text.explain(*reader(name, attention), TEXTS[:2]) for attention in ("sdpa", "eager")]
    for fused, told in zip(*maps, strict=True):
        assert_near(told.scores, fused.scores, 1e-5)


def test_padding_that_is_nan_inside(monkeypatch):
    """ModernBERT's eager attention is NaN where a window holds padding alone; the answer does not read it.

    Whether padded texts get their own answers to half of the digits is decided by its softmax in float32, so by the
    processor. Where they do, they are played again without padding.
    """
    model, tokenizer = reader("modernbert", "eager")
    alone = [bp.text.explain(model, tokenizer, text)[0] for text in TEXTS[:2]]
    monkeypatch.setattr("backplay.text.batches._agrees", lambda *_: True)
    for one, told in zip(alone, bp.text.explain(model, tokenizer, TEXTS[:2]), strict=True):
        assert_near(told.scores, one.scores, 1e-5)


def fitting(name):
    """The methods that apply to the embeddings of a model."""
    model, tokenizer = reader(name)
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}
    network = bp.capture(model, x)
    return [method for method, info in bp.methods().items() if info.fits(network)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_every_method_that_fits(name):
    """Games, gradients (of which the length counts), LRP and attention maps: in a padded batch as by hand and alone."""
    methods = fitting(name)
    needed = {"rg", "sg", "gradient_x_input", "integrated_gradients", "attn_lrp", "raw_attention", "rollout", "gae"}
    assert needed | {"tibav", "lrp_epsilon", "deeplift", "smoothgrad"} <= set(methods)
    model, tokenizer = reader(name)
    params = {"smoothgrad": {"n": 3}, "integrated_gradients": {"steps": 3}}
    for method in methods:
        if method == "smoothgrad":  # its noise has the shape of the padded text
            continue
        chosen = params.get(method, {})
        maps = bp.text.explain(model, tokenizer, TEXTS[:2], target=1, method=method, **chosen)
        for text, found in zip(TEXTS, maps, strict=False):
            assert found.method == method and found.scores.abs().max() > 0
            assert_near(found.scores, by_hand(name, text, 1, method, **chosen), 1e-8, what=f"{method}: {text}")
            assert (found.arrives is None) == (method not in ("rg", "sg"))


def test_random_methods_do_not_hear_other_texts():
    """SmoothGrad's noise has the shape of the padded text, which is the text's own affair."""
    model, tokenizer = reader("bert")
    together = bp.text.explain(model, tokenizer, TEXTS, 1, method="smoothgrad", n=3)
    for text, found in zip(TEXTS, together, strict=True):
        alone = bp.text.explain(model, tokenizer, text, 1, method="smoothgrad", n=3)[0]
        assert_near(alone.scores, found.scores)


def test_the_stopping_game_times_the_input_is_summed():
    model, tokenizer = reader("bert")
    found = bp.text.explain(model, tokenizer, TEXTS[0], 1, method="sg", multiply_by_input=True)[0]
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}
    assert_near(found.scores, bp.StoppingGame(model, multiply_by_input=True).attribute(x, 1).sum(-1)[0])


def test_share_that_arrives():
    """What a play says of the same text: walks that end neither in † nor in constants."""
    model, tokenizer = reader("bert")
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}
    for method, game in (("rg", bp.RoutingGame), ("sg", bp.StoppingGame)):
        found = bp.text.explain(model, tokenizer, TEXTS, target=1, method=method)[0]
        play = game(model).play(x, 1)
        assert found.arrives == pytest.approx(float(1 - play.cemetery - play.constant), rel=1e-8)
        assert 0 < found.arrives < 1


def test_parameters_reach_the_method():
    model, tokenizer = reader("bert")
    warm, cold = (bp.text.explain(model, tokenizer, TEXTS[0], 1, tau=tau)[0] for tau in (1.0, 0.5))
    assert_near(cold.scores, by_hand("bert", TEXTS[0], 1, tau=0.5))
    assert (cold.scores - warm.scores).abs().max() > 1e-3 * warm.scores.abs().max()
    assert "tau=0.5" in cold.caption() and "tau" not in bp.text.explain(model, tokenizer, TEXTS[0], 1)[0].caption()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_words_are_sums_of_their_tokens(name):
    model, tokenizer = reader(name)
    found = bp.text.explain(model, tokenizer, TEXTS[0])[0]
    words = found.words()
    plain = [word for word, special in zip(words.pieces, words.special, strict=True) if not special]
    assert plain == ["the", "film", "was", "unforgettable", "!"]
    assert float(words.scores.sum()) == pytest.approx(float(found.scores.sum()))
    parts = {"un", "forget", "table"}
    inside = sum(s for s, piece in zip(found.scores.tolist(), found.pieces, strict=True) if piece in parts)
    assert float(words.scores[words.pieces.index("unforgettable")]) == pytest.approx(inside)
    assert words.value == found.value and words.words().pieces == words.pieces


def test_a_position_in_words():
    """The explained token's word."""
    model, tokenizer = reader("bert tokens")
    found = bp.text.explain(model, tokenizer, TEXTS[0], position="unforgettable")[0]
    assert found.pieces[found.position] == "un"
    words = found.words()
    assert words.pieces[words.position] == "unforgettable"


def test_lists_and_single_texts():
    model, tokenizer = reader("bert")
    alone = bp.text.explain(model, tokenizer, TEXTS[0], "good")
    assert isinstance(alone, list) and len(alone) == 1 and alone[0].target == "good" and alone[0].goal.index == 2
    many = bp.text.explain(model, tokenizer, [TEXTS[k % 3] for k in range(20)], [k % 3 for k in range(20)])
    assert [one.goal.index for one in many] == [k % 3 for k in range(20)]
    assert [one.text for one in many] == [TEXTS[k % 3] for k in range(20)]
    for k in (3, 7, 17):
        assert_near(many[k].scores, by_hand("bert", TEXTS[k % 3], k % 3), 1e-8)


def test_the_model_is_left_as_it_was():
    """Training mode, gradients and weights stay."""
    model, tokenizer = reader("bert")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    try:
        found = bp.text.explain(model, tokenizer, TEXTS[0], 1)[0]
        assert all(module.training for module in model.modules())
    finally:
        model.eval()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_near(found.scores, by_hand("bert", TEXTS[0], 1), 1e-8, what="in eval mode all the same")


def test_half_precision():
    """Played in float32 (S38)."""
    model, tokenizer = copy.deepcopy(reader("bert")[0]).half(), reader("bert")[1]
    half = bp.text.explain(model, tokenizer, TEXTS[0], 1)[0]
    single = bp.text.explain(model.float(), tokenizer, TEXTS[0], 1)[0]
    assert half.scores.dtype == torch.float32
    assert_near(half.scores, single.scores, 1e-3)


def test_plain_forms():
    """`to_dict` holds plain values; `repr` and `str` are texts without tensors."""
    import json

    model, tokenizer = reader("bert")
    found = bp.text.explain(model, tokenizer, TEXTS[0], "good", tau=0.5)[0]
    kept = json.loads(json.dumps(found.to_dict()))
    assert kept["tokens"] == found.tokens and kept["target"] == "good" and math.isclose(kept["value"], found.value)
    assert "tensor(" not in repr(found) and repr(found).startswith("TokenMap(") and len(repr(found)) < 300
    assert "unforgettable" not in str(found) and "unforgettable" in str(found.words())
