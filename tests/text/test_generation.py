"""The matrix of a generation: every column is the play of that step alone."""

import json
import re

import pytest
import torch

import backplay as bp
from closeness import assert_near
from readers import digits, reader
from series import series

PROMPT, COMPLETION = "the film was", " unforgettable"


@pytest.mark.slow
@pytest.mark.parametrize("name", series(["gpt2", "llama", "qwen3", "gemma"], ("gpt2",)))
def test_columns_are_single_plays(name):
    """Each written token against `bp.explain` on the tokens before it, and nothing behind them."""
    model, tokenizer = reader(name)
    found = bp.text.generation(model, tokenizer, PROMPT, COMPLETION)
    ids = tokenizer(PROMPT + COMPLETION)["input_ids"]
    first = len(tokenizer(PROMPT)["input_ids"])
    assert found.tokens == tokenizer.convert_ids_to_tokens(ids) and found.prompt_length == first
    assert found.scores.shape == (len(ids), len(ids) - first) and found.written == ["un", "forget", "table"]
    for k in range(len(found)):
        before = torch.tensor([ids[: first + k]])
        x = {"inputs_embeds": model.get_input_embeddings()(before).detach(), "attention_mask": torch.ones_like(before)}
        alone = bp.explain(model, x, ids[first + k]).sum(-1)[0]
        assert_near(found.scores[: first + k, k], alone, digits(name), what=f"step {k}")
        assert found.scores[first + k :, k].isnan().all()
        logit = model(before).logits[0, -1, ids[first + k]].item()
        assert float(found.values[k]) == pytest.approx(logit, rel=1e-6)
        step = found[k]
        assert step.tokens == found.tokens[: first + k] and step.target == found.tokens[first + k]
        assert_near(step.scores, alone, digits(name))
        assert step.position == first + k - 1
    assert found[-1].target == found.tokens[-1] and 0 < found[0].arrives < 1


def test_the_step_is_what_explain_says():
    model, tokenizer = reader("gpt2")
    found = bp.text.generation(model, tokenizer, PROMPT, COMPLETION, method="gradient_x_input")
    alone = bp.text.explain(model, tokenizer, PROMPT, " un", method="gradient_x_input")[0]
    assert_near(found[0].scores, alone.scores, 1e-9)
    assert found[0].caption() == alone.caption()


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_what_the_model_writes(name):
    """`generate`'s own tokens, greedy and by lot with a seed, explained as if they had been given."""
    model, tokenizer = reader(name)
    found = bp.text.generation(model, tokenizer, PROMPT, max_new_tokens=3)
    prompt = tokenizer(PROMPT, return_tensors="pt")
    quiet = {"pad_token_id": 0, "max_new_tokens": 3, "do_sample": False}
    out = model.generate(prompt["input_ids"], attention_mask=torch.ones_like(prompt["input_ids"]), **quiet)[0].tolist()
    expected = out[1:] if name == "t5" else out[prompt["input_ids"].shape[1] :]
    assert [goal.index for goal in found.goals] == expected
    torch.manual_seed(1)
    drawn = bp.text.generation(model, tokenizer, PROMPT, max_new_tokens=3, generation_args={"do_sample": True})
    assert len(drawn) <= 3


def test_encoder_and_decoder():
    """Both texts are explained: the encoder's, and what the decoder has written."""
    model, tokenizer = reader("t5")
    found = bp.text.generation(model, tokenizer, PROMPT, "dull film", method="gradient_x_input")
    source = tokenizer(PROMPT)["input_ids"]
    target = tokenizer("dull film", add_special_tokens=False)["input_ids"]
    start = [model.config.decoder_start_token_id]
    assert found.tokens == tokenizer.convert_ids_to_tokens(source + start + target)
    assert found.prompt_length == len(source) + 1
    table = model.get_input_embeddings().weight.detach()
    read, written = table[source][None].requires_grad_(), table[start + target[:-1]][None].requires_grad_()
    logits = model(inputs_embeds=read, decoder_inputs_embeds=written).logits[0]
    for k, token in enumerate(target):
        slopes = torch.autograd.grad(logits[k, token], (read, written), retain_graph=True)
        alone = torch.cat([(g * x).sum(-1)[0] for g, x in zip(slopes, (read, written), strict=True)])
        assert_near(found.scores[: len(source) + 1 + k, k], alone[: len(source) + 1 + k], 1e-5)
        assert not alone[len(source) + 1 + k :].any(), "a decoder looks back alone"
    assert found[1].position == len(source) + 1


def test_shown():
    """A table in HTML and on a terminal, with every number and no cell that was not there yet."""
    model, tokenizer = reader("gpt2")
    found = bp.text.generation(model, tokenizer, PROMPT, COMPLETION, tau=0.5)
    first, count = found.prompt_length, len(found)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", found.html())
    assert len(cells) == (first + count) * count
    assert sum(cell == "" for cell in cells) == count * (count + 1) // 2
    lines = str(found).splitlines()
    assert len(lines) == first + count + 3 and "tau=0.5" in lines[0]
    assert lines[2].split()[1:] == [f"{s:+.2g}" for s in found.scores[0].tolist()]
    assert found._repr_html_() == found.html() and repr(found).startswith("GenerationMap('unforgettable'")
    kept = json.loads(json.dumps(found.to_dict()))
    assert kept["scores"][-1] == [None] * count and kept["tokens"] == found.tokens


def test_the_figure_shows_the_numbers():
    model, tokenizer = reader("gpt2")
    found = bp.text.generation(model, tokenizer, PROMPT, COMPLETION)
    figure = found.plot()
    image = figure.axes[0].images[0]
    assert_near(image.get_array().filled(0.0), found.scores.nan_to_num())
    low, high = image.get_clim()
    assert low == -high == -found.scale
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == found.pieces
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == found.written


def test_refusals():
    model, tokenizer = reader("gpt2")
    for options, message in (
        ({"completion": ""}, "the completion is empty"),
        ({"completion": 3}, "completion must be a str or None, got int"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 is out of range"),
        ({"completion": " film", "method": "gradcam"}, "does not fit this network"),
    ):
        with pytest.raises(bp.BackplayError, match=re.escape(message)):
            bp.text.generation(model, tokenizer, PROMPT, **options)
    with pytest.raises(bp.BackplayError, match="is no language model"):
        bp.text.generation(*reader("bert"), PROMPT, COMPLETION)
    with pytest.raises(bp.BackplayError, match="has no generate; give the completion"):
        bp.text.generation(*reader("mean"), PROMPT)
    with pytest.raises(bp.BackplayError, match="'lime' is for one text"):
        bp.text.generation(*reader("t5"), PROMPT, COMPLETION, method="lime")
    with pytest.raises(IndexError, match="step 9 is out of range"):
        bp.text.generation(model, tokenizer, PROMPT, COMPLETION, method="gradient")[9]
