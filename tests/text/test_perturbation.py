"""LIME and KernelSHAP over words, against Shapley's formula and a regression in numpy."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch

import backplay as bp
from closeness import assert_near
from readers import TEXTS, reader

TEXT = TEXTS[0]  # the film was un forget table !: five words
COUNT = 5


def logit(name, hidden, target, baseline):
    """The logit of a text in which some words are replaced, token by token."""
    model, tokenizer = reader(name)
    ids = tokenizer(TEXT)["input_ids"]
    found = bp.text.explain(model, tokenizer, TEXT, target, method="gradient")[0].source
    plain = [w for w, special in zip(found.words, found.special, strict=True) if not special]
    number = {word: k for k, word in enumerate(dict.fromkeys(plain))}
    x = model.get_input_embeddings()(torch.tensor([ids])).detach().clone()
    own = x[0][[not s for s in found.special]].mean(0)
    mask = model.get_input_embeddings()(torch.tensor(tokenizer.mask_token_id or 0)).detach()
    fill = {"zero": torch.zeros_like(own), "mean": own, "mask": mask}[baseline]
    for k, special in enumerate(found.special):
        if not special and number[found.words[k]] in hidden:
            x[0, k] = fill
    out = model(inputs_embeds=x, attention_mask=torch.ones(1, len(ids), dtype=torch.long)).logits.detach()
    return float(out[0, target] if out.ndim == 2 else out[0, -1, target])


@pytest.mark.slow
@pytest.mark.parametrize("name, baseline", [("bert", "mask"), ("bert", "zero"), ("bert", "mean"), ("gpt2", "zero")])
def test_shapley_values(name, baseline):
    model, tokenizer = reader(name)
    found = bp.text.explain(model, tokenizer, TEXT, 1, method="kernel_shap", baseline=baseline)[0].words()
    everyone = frozenset(range(COUNT))
    value = {
        frozenset(s): logit(name, everyone - set(s), 1, baseline)
        for k in range(COUNT + 1)
        for s in combinations(range(COUNT), k)
    }
    exact = [
        sum(
            (value[frozenset(s) | {i}] - value[frozenset(s)]) / (COUNT * comb(COUNT - 1, k))
            for k in range(COUNT)
            for s in combinations(sorted(everyone - {i}), k)
        )
        for i in range(COUNT)
    ]
    plain = [s for s, special in zip(found.scores.tolist(), found.special, strict=True) if not special]
    assert_near(plain, exact, 1e-9)
    assert sum(abs(s) for s, special in zip(found.scores.tolist(), found.special, strict=True) if special) == 0
    assert sum(plain) == pytest.approx(value[everyone] - value[frozenset()])


def test_lime_is_its_regression():
    model, tokenizer = reader("bert")
    found = bp.text.explain(model, tokenizer, TEXT, 1, method="lime", n=40, seed=3)[0].words()
    shown = torch.randint(0, 2, (40, COUNT), generator=torch.Generator().manual_seed(3)).numpy()
    shown[0] = 1
    y = np.array([logit("bert", {k for k in range(COUNT) if not row[k]}, 1, "mask") for row in shown])
    cosine = shown.sum(1) / np.sqrt(COUNT * np.maximum(shown.sum(1), 1))
    weights = np.sqrt(np.exp(-((1 - cosine) ** 2) / 0.25**2))
    rows = np.column_stack([shown, np.ones(len(shown))])
    ridge = np.diag([1.0] * COUNT + [0.0])
    expected = np.linalg.solve(rows.T @ (weights[:, None] * rows) + ridge, rows.T @ (weights * y))[:COUNT]
    plain = [s for s, special in zip(found.scores.tolist(), found.special, strict=True) if not special]
    assert_near(plain, expected, 1e-8)


def test_tokens_share_their_word_evenly():
    model, tokenizer = reader("bert")
    found = bp.text.explain(model, tokenizer, TEXT, 1, method="kernel_shap")[0]
    shares = dict(zip(found.pieces, found.scores.tolist(), strict=True))
    assert shares["un"] == shares["forget"] == shares["table"] != 0 and shares["[CLS]"] == 0


def test_batches_and_refusals():
    model, tokenizer = reader("gpt2 classes")
    both = bp.text.explain(model, tokenizer, TEXTS, 1, method="kernel_shap", n=30)
    alone = bp.text.explain(model, tokenizer, TEXTS[2], 1, method="kernel_shap", n=30)[0]
    assert_near(both[2].scores, alone.scores, 1e-8)
    with pytest.raises(bp.BackplayError, match="baseline='grey' is out of range: on text it must be one of 'mask'"):
        bp.text.explain(model, tokenizer, TEXT, method="lime", baseline="grey")
    with pytest.raises(bp.BackplayError, match=r"unknown parameter 'segments'.*on text 'lime' takes n, seed"):
        bp.text.explain(model, tokenizer, TEXT, method="lime", segments=3)
    with pytest.raises(bp.BackplayError, match="n=0 is out of range"):
        bp.text.explain(model, tokenizer, TEXT, method="kernel_shap", n=0)
