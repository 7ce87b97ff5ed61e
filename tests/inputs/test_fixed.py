"""What is held fixed beside the explained input: per sample, one for all samples, of any first size."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import backplay as bp
from closeness import assert_near

pytestmark = pytest.mark.capture

F64 = torch.float64


class Prompts(nn.Module):
    """Images against N texts, as CLIP has it: logits (B, N)."""

    def __init__(self):
        super().__init__()
        self.image, self.words = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), nn.Embedding(11, 5)

    def forward(self, image, prompts):
        text = self.words(prompts).mean(1)
        return functional.normalize(self.image(image), dim=-1) @ functional.normalize(text, dim=-1).T


class Graph(nn.Module):
    """One round of messages along `edge_index` (2, E), for a batch of graphs with the same edges."""

    def __init__(self):
        super().__init__()
        self.own, self.other, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, edge_index):
        source, sink = edge_index
        pick = functional.one_hot(sink, x.shape[1]).to(x.dtype)
        messages = torch.einsum("en,bef->bnf", pick, self.other(x)[:, source])
        return self.head(torch.relu(self.own(x) + messages).mean(1))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x, *, mask=None, bias=None, times=1, sizes=(2, 3), name=None):
        h = self.head(x).mul(times)
        h = h if mask is None else h * mask[:, :, None]
        return h.sum(1) + (0 if bias is None else bias) + sum(sizes)


def gradient(model, x, *rest, target=0, **keywords):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x, *rest, **keywords)[:, target].sum(), x)[0]


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("texts", [1, 2, 3, 5])
def test_prompts(samples, texts):
    """N texts with B images, N = B among them: never mistaken for one text an image."""
    model = Prompts().double().eval()
    x, prompts = torch.randn(samples, 6, dtype=F64), torch.randint(0, 11, (texts, 4))
    game, target = bp.RoutingGame(model), texts - 1
    play = game.play(x, target, additional_forward_args=prompts)
    assert play.health().ok
    assert_near(play.value, model(x, prompts)[:, target])
    alone = [game.attribute(x[k : k + 1], target, prompts) for k in range(samples)]
    whole = game.attribute({"image": x, "prompts": prompts}, target)
    assert_near(whole, torch.cat(alone), what="images one by one")
    assert_near(game.attribute(x, target, prompts, internal_batch_size=2), whole)
    assert bp.explain(model, x, target, method="lrp_epsilon", additional_forward_args=prompts).shape == x.shape


def test_one_game_plays_any_number_of_prompts():
    """Another number of texts fits the capture, or is captured once more."""
    model = Prompts().double().eval()
    game, x = bp.StoppingGame(model), torch.randn(2, 6, dtype=F64)
    for texts in (2, 4, 3, 1, 2):
        prompts = torch.randint(0, 11, (texts, 4))
        fresh = bp.StoppingGame(model).attribute(x, 0, prompts)
        assert_near(game.attribute(x, 0, prompts), fresh)


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_edges(samples):
    """`edge_index` (2, E) is one for all samples, with two samples too."""
    model = Graph().double().eval()
    x, edges = torch.randn(samples, 5, 3, dtype=F64), torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 4, 0]])
    game = bp.StoppingGame(model)
    assert_near(game.attribute(x, 1, additional_forward_args=edges), gradient(model, x, edges, target=1))
    other = edges.flip(0)
    assert_near(game.attribute(x, 1, other, internal_batch_size=1), gradient(model, x, other, target=1))
    assert bp.RoutingGame(model).play({"x": x, "edge_index": edges}, 1).health().ok


def test_one_entry_serves_every_sample():
    """A per-sample argument of first size 1 is expanded; what a model broadcasts itself stays as it is."""
    model, x = Masked().double().eval(), torch.randn(3, 6, 4, dtype=F64)
    mask = (torch.rand(1, 6) > 0.4).double()
    expected = gradient(model, x, mask=mask.expand(3, -1))
    network = bp.capture(model, {"x": x, "mask": torch.ones(3, 6, dtype=F64)})
    for game in (bp.StoppingGame(network), bp.StoppingGame(model)):
        assert_near(game.attribute({"x": x, "mask": mask}, 0), expected)
        assert_near(game.attribute({"x": x, "mask": mask}, 0, internal_batch_size=2), expected)
    bias = torch.randn(3, dtype=F64)  # as many entries as there are samples, but classes
    assert_near(
        bp.StoppingGame(model).attribute({"x": x}, 0, {"bias": bias}, internal_batch_size=2),
        gradient(model, x, bias=bias),
    )
    with pytest.raises(ValueError, match="2 samples, the explained input 3"):
        bp.StoppingGame(network).attribute({"x": x, "mask": mask.expand(2, -1)}, 0)


def test_keyword_only_and_plain_values():
    """Keyword-only parameters, numbers, tuples of numbers and None stay what they are."""
    model, x = Masked().double().eval(), torch.randn(2, 6, 4, dtype=F64)
    game = bp.StoppingGame(model)
    for keywords in ({"times": 3}, {"sizes": (4, 5)}, {"name": None}, {"name": "a"}, {"times": 2, "name": "b"}):
        assert_near(game.attribute({"x": x, **keywords}, 1), gradient(model, x, target=1, **keywords))
        assert_near(game.play({"x": x, **keywords}, 1).value, model(x, **keywords)[:, 1])
    network = bp.capture(model, {"x": x, "times": 3})
    with pytest.raises(ValueError, match="'times' was 3 when the network was captured, now 4"):
        bp.StoppingGame(network).attribute({"x": x, "times": 4}, 1)


def test_fixed_arguments_of_other_shapes():
    """A captured network says what it was captured with."""
    model = Prompts().double().eval()
    x, prompts = torch.randn(3, 6, dtype=F64), torch.randint(0, 11, (2, 4))
    network = bp.capture(model, {"image": x, "prompts": prompts})
    for other in (torch.randint(0, 11, (2, 5)), prompts.int(), 3):
        with pytest.raises(ValueError, match="'prompts' was torch"):
            bp.RoutingGame(network).attribute({"image": x, "prompts": other}, 0)
