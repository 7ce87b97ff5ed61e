"""Targets as indices: bare classes, whole indices, padding (S26b, api: inputs)."""

import functools
import warnings

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near
from families import prepared
from series import series

pytestmark = pytest.mark.capture

F64 = torch.float64
TOKENS, WIDTH = 5, 16


class Segment(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))

    def forward(self, x):
        return self.body(x)


class Tagger(nn.Module):
    """Logits (B, T, 4) from embeddings; a position sees itself alone."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, inputs_embeds, attention_mask=None):
        h = self.body(inputs_embeds)
        return h if attention_mask is None else h + 0 * attention_mask[..., None]


def gradient(model, x, pick, **keywords):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(pick(model(x, **keywords)).sum(), x)[0]


def test_segmentation_takes_whole_indices():
    """A bare class or None on (B, K, H, W) says nothing of where; each index has its own bounds."""
    model, x = Segment().double().eval(), torch.randn(2, 2, 4, 6, dtype=F64)
    game = bp.StoppingGame(model)
    assert_near(game.attribute(x, (2, 3, 5)), gradient(model, x, lambda y: y[:, 2, 3, 5]))
    assert_near(game.attribute(x, [(0, 1, 2), (2, 0, 5)]), gradient(model, x, lambda y: y[0, 0, 1, 2] + y[1, 2, 0, 5]))
    assert_near(game.attribute(x, torch.tensor([[0, 1, 2], [2, 0, 5]])), game.attribute(x, [(0, 1, 2), (2, 0, 5)]))
    for call in (game.attribute, game.play, lambda x, t: bp.explain(model, x, t, method="gradient"), game.targets):
        for target in (1, None, [1, 1], torch.tensor([0, 2])):
            with pytest.raises(ValueError, match=r"whole index|row, column"):
                call(x, target)
        for target in ((3, 0, 0), (0, 4, 0), (0, 0, 6), (0, -1, 0), [(0, 0, 0), (0, 0, 6)]):
            with pytest.raises(ValueError, match="out of range"):
                call(x, target)
        for target in ((1, 2), (1, 2, 3, 0), [(1, 2), (0, 1)]):
            with pytest.raises(ValueError, match="target"):
                call(x, target)


def test_bare_class_means_the_last_position_that_is_no_padding():
    """Right padding, left padding and holes, per sample; without a mask, the last position."""
    model, x = Tagger().double().eval(), torch.randn(3, 5, 3, dtype=F64)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    last = torch.tensor([1, 4, 3])
    for given in ({"inputs_embeds": x, "attention_mask": mask}, (x, mask), (x, mask.bool())):
        for target, classes in ((2, [2, 2, 2]), ([0, 3, 1], [0, 3, 1]), (None, None)):
            logits = model(x, mask)
            here = logits[torch.arange(3), last]
            picked = here.argmax(1) if classes is None else torch.tensor(classes)
            play = bp.RoutingGame(model).play(given, target)
            assert_near(play.value, here[torch.arange(3), picked])
            assert play.target.tolist() == (last * 4 + picked).tolist()
            found = bp.explain(model, given, target, method="gradient")
            assert_near(
                found, bp.explain(model, given, list(zip(last.tolist(), picked.tolist(), strict=True)), method="sg")
            )
    assert bp.StoppingGame(model).targets(x, 1).tolist() == [[4, 1]] * 3
    unmasked = {"inputs_embeds": x, "attention_mask": torch.zeros(3, 5, dtype=torch.long)}
    assert bp.StoppingGame(model).targets(unmasked, 1).tolist() == [[4, 1]] * 3


def test_tuple_is_one_index_list_has_one_entry_a_sample():
    """(position, class) for all; on two samples, a list of two is two bare classes."""
    model, x = Tagger().double().eval(), torch.randn(2, 5, 3, dtype=F64)
    game = bp.StoppingGame(model)
    assert game.targets(x, (1, 2)).tolist() == [[1, 2], [1, 2]]
    assert game.targets(x, [1, 2]).tolist() == [[4, 1], [4, 2]]
    assert game.targets(x, ((1, 2), (0, 3))).tolist() == [[1, 2], [0, 3]]
    for target in ((1, 2, 3), (1,)):
        with pytest.raises(ValueError, match="indices"):
            game.targets(x, target)
    flat = nn.Linear(3, 4).double()
    assert bp.StoppingGame(flat).targets(x[:, 0], (3,)).tolist() == [[3], [3]]


# text classifiers that read the last position -----------------------------------------------------------
@functools.cache
def classifier(name):
    import transformers

    torch.manual_seed(3)
    common = {"vocab_size": 20, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": WIDTH, "intermediate_size": 24}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "gpt2":
            config = transformers.GPT2Config(n_embd=WIDTH, n_layer=1, n_head=2, **common)
            model = transformers.GPT2ForSequenceClassification(config)
        elif name == "llama":
            config = transformers.LlamaConfig(**small, num_key_value_heads=1, **common)
            model = transformers.LlamaForSequenceClassification(config)
        else:
            model = transformers.BertForSequenceClassification(
                transformers.BertConfig(**small, vocab_size=20, num_labels=3)
            )
        return prepared(model)


@pytest.mark.parametrize("name", series(["gpt2", "llama", "bert"], ("bert",)))
def test_padding_that_is_read(name):
    """Right padding under a causal classifier is refused, whatever the method; BERT reads the first."""
    model = classifier(name)
    x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(5), dtype=F64)
    right = torch.tensor([[1] * TOKENS, [1, 1, 1, 0, 0]])
    left = right.flip(1)
    routing = bp.RoutingGame(model)
    stopping = bp.StoppingGame(model)
    calls = {
        "rg": lambda mask: routing.attribute({"inputs_embeds": x, "attention_mask": mask}, 1),
        "play": lambda mask: stopping.play({"inputs_embeds": x, "attention_mask": mask}, 1).attribution(),
        "gradient": lambda mask: bp.explain(model, {"inputs_embeds": x, "attention_mask": mask}, 1, method="gradient"),
    }
    seen, read, side = (left, right, "left") if name != "bert" else (right, left, "right")
    for call in calls.values():
        with pytest.raises(ValueError, match=r"(?s)attention_mask hides.*Pad on the " + side):
            call(read)
        found = call(seen)
        assert not found[1][seen[1] == 0].any() and found[1][seen[1] == 1].any()
        assert call(torch.ones_like(right)).any(2).all()
