"""Attention maps of tokens against the weights that transformers itself reports, and their gradients by autograd."""

import pytest
import torch

import backplay as bp
from closeness import assert_near
from readers import TEXTS, reader

# its eager softmax is taken in float32 by some families
CASES = {"bert": 1e-6, "gpt2": 1e-6, "llama": 1e-5}


def told(name):
    """The row that is read, and for each block weights and their gradients (T, T) for class 1, heads kept."""
    model, tokenizer = reader(name, "eager")
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    out = model(ids, output_attentions=True)
    logit = out.logits[0, 1] if name == "bert" else out.logits[0, -1, 1]
    gradients = torch.autograd.grad(logit, out.attentions)
    row = 0 if name == "bert" else -1
    return row, [(a[0].detach(), g[0]) for a, g in zip(out.attentions, gradients, strict=True)]


def expected(name, method):
    row, blocks = told(name)
    eye = torch.eye(blocks[0][0].shape[-1], dtype=torch.float64)
    found = eye
    if method == "raw_attention":
        return blocks[-1][0].mean(0)[row]
    for weight, gradient in blocks:
        if method == "rollout":
            found = (0.5 * weight.mean(0) + 0.5 * eye).double() @ found
        else:
            found = found + (gradient * weight).clamp(min=0).mean(0).double() @ found
    return found[row]


@pytest.mark.parametrize("method", ["raw_attention", "rollout", "gae"])
@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_deciding_token(name, method):
    """The class token's row of BERT, the last token's of causal models; padding is given nothing."""
    maps = bp.text.explain(*reader(name), TEXTS[:2], 1, method=method)
    assert_near(maps[0].scores, expected(name, method), CASES[name])


def test_maps_of_embeddings():
    """`bp.explain` itself gives (B, T, 1), and these methods say that they fit."""
    model, tokenizer = reader("bert")
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    x = {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}
    network = bp.capture(model, x)
    for method in ("raw_attention", "rollout", "gae", "tibav"):
        assert bp.methods()[method].fits(network)
        assert bp.explain(network, x, 1, method=method).shape == (1, ids.shape[1], 1)
