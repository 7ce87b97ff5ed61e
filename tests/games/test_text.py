"""Text models from `inputs_embeds`: relevance for each token, masks, positions in targets (api: inputs and targets)."""

import numpy as np
import pytest
import torch

import backplay as bp
from closeness import array, assert_near
from language_models import TOKENS, build, words

F64 = torch.float64
NAMES = ("bert", "gpt2", "llama")


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_relevance_of_tokens(name, attention):
    """Both games play from `inputs_embeds`; summed over features there is one number for each token."""
    (model, network), x = build(name, attention), words()
    game = bp.RoutingGame(network)
    play = game.play(x, 1)
    assert play.health().ok and play.health().mass_error < 1e-6, play.health()
    found = game.attribute(x, 1)
    assert found.shape == x["inputs_embeds"].shape
    tokens = found.sum(-1)
    assert tokens.shape == (2, TOKENS) and (tokens.abs() > 0).all()
    logits = model(**x).logits
    assert_near(play.value, (logits[:, -1] if name == "llama" else logits)[:, 1], what="value")
    stopping = bp.StoppingGame(play.network).play(x, 1)
    assert stopping.health().ok and stopping.attribution().shape == found.shape
    alone = [game.attribute({k: v[n : n + 1] for k, v in x.items()}, 1) for n in (0, 1)]
    assert_near(torch.cat(alone), found, 1e-6, what="one by one")


@pytest.mark.parametrize("name", NAMES)
def test_sdpa_and_eager(name):
    """S23: the same game, whichever way transformers computes attention (its eager softmax is float32)."""
    x = words()
    fused, told = (bp.RoutingGame(build(name, attention)[1]).attribute(x, 2) for attention in ("sdpa", "eager"))
    assert_near(told, fused, 1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_masked_tokens(name, attention):
    """A key that the mask forbids is reached by nobody; the mask is fixed and may differ between plays and samples."""
    model, network = build(name, attention)
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[0, 1] = mask[1, 2] = mask[1, 3] = 0
    game = bp.RoutingGame(network)
    open_play = game.play(words(), 1)
    play = game.play(words(mask), 1)
    assert play.health().ok
    relevance = np.abs(array(play.attribution())).sum(-1)
    assert (relevance[mask.numpy() == 0] == 0).all() and (relevance[mask.numpy() == 1] > 0).all()
    assert (np.abs(array(open_play.attribution())).sum(-1) > 0).all()
    gradient = np.abs(array(bp.StoppingGame(network).attribute(words(mask), 1))).sum(-1)
    assert (gradient[mask.numpy() == 0] == 0).all()
    logits = model(**words(mask)).logits
    assert_near(play.value, (logits[:, -1] if name == "llama" else logits)[:, 1])


def test_positions():
    """(position, class) names an output of (B, T, K); a bare class means the last position; None its argmax."""
    (model, network), x = build("llama"), words()
    logits = model(**x).logits
    game = bp.RoutingGame(network)
    last = game.attribute(x, 7)
    assert_near(game.attribute(x, (TOKENS - 1, 7)), last, what="bare class")
    assert_near(game.play(x, (2, 7)).value, logits[:, 2, 7], what="value")
    assert_near(game.play(x).value, logits[:, -1].max(-1).values, what="argmax of the last position")
    middle = game.attribute(x, (2, 7))
    assert not middle[:, 3:].any() and (middle[:, :3].abs().sum(-1) > 0).all(), "no later token counts"
    each = game.attribute(x, [(2, 7), (4, 7)])
    assert_near(each[0], middle[0], what="a position for each sample")
    assert_near(each[1], last[1], what="a position for each sample")
    assert_near(game.attribute(x, torch.tensor([7, 7])), last, what="a class for each sample")
    assert_near(game.attribute(x, [7, 7]), last, what="a sequence of classes")


@pytest.mark.parametrize("name", NAMES)
def test_composites(name):
    """S23 with grouped heads and Conv1D projections: the Routing walk passes by the projection of the values."""
    (_, network), x = build(name), words()
    routing, stopping = (game(network).play(x, 1) for game in (bp.RoutingGame, bp.StoppingGame))
    passed = [
        n.name
        for n in network.nodes
        if n.kind == "affine"
        and n not in routing.visited()
        and routing.marginal(n).any()
        and stopping.marginal(n).any()
    ]
    assert len(passed) == 2, passed
    assert all("v_proj" in n or "value" in n or "c_attn" in n for n in passed)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_queries_and_keys_are_oracles(name, attention):
    """S3, S23, app:attention-grad-detach: query, key and softmax are of kind oracle, in either spelling."""
    _, network = build(name, attention)
    kinds = {n.name: n.kind for n in network.nodes}
    asked = [k for k in kinds if k.endswith(("q_proj", "k_proj", "self.query", "self.key"))]
    assert name == "gpt2" or len(asked) == 4
    assert {kinds[k] for k in asked} <= {"oracle"}
    assert sum(k == "oracle" for k in kinds.values()) >= 4


def test_other_options():
    """The options act on Llama's attention, norms and gated units, and every walk ends somewhere."""
    (_, network), x = build("llama"), words()
    plain = bp.RoutingGame(network).attribute(x, 1)
    for options in ({"tau": 0.5}, {"epsilon": 0.0}, {"residual": "proportional"}, {"empty_stream": "reroute"}):
        play = bp.RoutingGame(network, **options).play(x, 1)
        assert play.health().ok and play.health().mass_error < 1e-6, (options, play.health())
        if "empty_stream" not in options:
            assert (play.attribution() - plain).abs().max() > 1e-3 * plain.abs().max(), options
