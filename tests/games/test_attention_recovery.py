"""αβ-LRP through every attention block of a transformer, from the model's own tensors (thm:attn-ab-recovery)."""

import pytest
import torch

import backplay as bp
from attention_blocks import drawn as drawn_block
from backplay.network.attention import Attention
from closeness import assert_near, unscaled
from toys import picture, tiny_vit


def signed(play, node):
    """Γ₊ − Γ₋ in true units."""
    found = play.occupation(node)
    return torch.as_tensor(unscaled(found.difference, found.difference_log_scale))


def read(model, x):
    """Of every block: the tokens X that the projections see (B, S, E) and the weights A (B, heads, queries, keys)."""
    seen = {}
    hooks = [
        block.norm1.register_forward_hook(lambda _, __, out, k=k: seen.__setitem__(k, out))
        for k, block in enumerate(model.blocks)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return [(seen[k], block.weights.detach()) for k, block in enumerate(model.blocks)]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("alpha, beta, epsilon", [(2.0, 1.0, 0.0), (2.0, 1.0, 0.5), (1.0, 0.0, 0.1)])
def test_recovery_at_every_layer(fused, alpha, beta, epsilon):
    """eq:attn-ab-recovery at every block: Γ^X from Γ^O, A, W_V and X alone; eq:attn-Gamma-V-corollary for Γ^V.

    Streams are split by the sign of the contribution W_V X (S12), since normalised tokens are signed; the outside
    option stands once, at the key choice (S23).
    """
    x, depth, heads = picture(), 3, 2
    spelled = tiny_vit(fused=False, depth=depth, heads=heads)
    model = tiny_vit(fused=fused, depth=depth, heads=heads)
    play = bp.RoutingGame(model, alpha=alpha, beta=beta, epsilon=epsilon).play(x, [0, 2])
    mixing = [n for n in play.network.nodes if isinstance(n, Attention)]
    assert len(mixing) == depth
    for block, node, (tokens, weights), k in zip(model.blocks, mixing, read(spelled, x), range(depth), strict=True):
        width = tokens.shape[-1]
        value = block.qkv.weight.detach()[2 * width :].view(heads, -1, width)  # (head, feature, embedding)
        c = torch.einsum("hde,bke->bhkde", value, tokens)
        above = signed(play, node)  # Γ^O, (B, heads, queries, features)
        at_tokens, at_values = torch.zeros_like(tokens), torch.zeros(*c.shape[:-1], dtype=c.dtype)
        for side, count in ((1, alpha), (-1, -beta)):
            part = (side * c).clamp(min=0)
            v = part.sum(-1)
            z = epsilon + torch.einsum("bhqk,bhkd->bhqd", weights, v)
            assert float(z.min()) > 0
            at_values += count * torch.einsum("bhqk,bhkd,bhqd->bhkd", weights, v, above / z)
            at_tokens += count * torch.einsum("bhqk,bhkde,bhqd->bke", weights, part, above / z)
        assert_near(signed(play, f"blocks.{k}.norm1"), at_tokens, what=f"Γ^X of block {k}")
        projected = signed(play, f"blocks.{k}.qkv")[..., 2 * width :].unflatten(-1, (heads, -1)).transpose(1, 2)
        assert_near(projected, at_values, what=f"Γ^V of block {k}")
        assert float(at_tokens.abs().max()) > 1e-3


def wires_behind(network, node):
    """The wires that lead from the V projection of a mixing to its values, found by following the graph."""
    found, here = [], node.operand
    while here is not node.projection:
        found.append(here)
        here = here.inputs[0]
    return found[::-1]


@pytest.mark.parametrize("fused", [True, False])
def test_wires_between_projection_and_mixing(fused):
    """eq:attn-Gamma-V-corollary on every wire: Γ^V stands there as it does at the projection, under other names.

    Where the wires end it has the values' own layout, in which the formula is written out again.
    """
    x, heads = picture(), 2
    model, spelled = tiny_vit(fused=fused), tiny_vit(fused=False)
    play = bp.RoutingGame(model, epsilon=0.0).play(x, [0, 2])
    drawn = play.sample(4000, seed=3)
    arriving = play.sample(4000, seed=4, arriving=True)
    (tokens, weights), *_ = read(spelled, x)
    node = next(n for n in play.network.nodes if isinstance(n, Attention))
    width = tokens.shape[-1]
    c = torch.einsum("hde,bke->bhkde", model.blocks[0].qkv.weight.detach()[2 * width :].view(heads, -1, width), tokens)
    expected = 0
    for side, count in ((1, 2.0), (-1, -1.0)):
        v = (side * c).clamp(min=0).sum(-1)
        share = signed(play, node) / torch.einsum("bhqk,bhkd->bhqd", weights, v)
        expected = expected + count * torch.einsum("bhqk,bhkd,bhqd->bhkd", weights, v, share)
    wires = wires_behind(play.network, node)
    assert len(wires) > 1
    assert_near(signed(play, wires[-1]), expected, what="in the values' layout")
    at_projection = play.occupation(node.projection)
    for wire in wires:
        found = play.occupation(wire)
        assert found.difference.shape == play.solved[wire].shape
        assert_near(signed(play, wire).sum(), expected.sum(), scale=expected.abs().sum(), what=wire.name)
        assert_near(found.plus.sum(), at_projection.plus.sum(), what=f"Γ₊ at {wire.name}")
        assert_near(play.marginal(wire).sum(), play.marginal(node.projection).sum(), what="walk")
        for walks in (drawn, arriving):
            assert bool((walks.check(wire) > 1e-4).all()), wire.name
        assert float(drawn.frequencies(wire).sum()) > 0.01


@pytest.mark.parametrize("name", ["grouped, spelled out", "grouped, fused"])
def test_wires_that_repeat_shared_keys(name):
    """Where heads share values, Γ at the repeating wire is that of each head, and its sum over them Γ^V."""
    block, network, x, _ = drawn_block(name, 7, 0.0)
    play = bp.RoutingGame(network).play(block.shaped(x), 0)
    node = next(n for n in play.network.nodes if isinstance(n, Attention))
    last = node.operand
    each_head = signed(play, last)  # (B, 2 heads, keys, 2 features), of one head that both share
    assert each_head.shape[1] == 2 and each_head.shape[3] == 2
    shared = signed(play, node.projection)[..., -2:]  # the values' columns, which are the last ones of a packed layer
    assert_near(each_head.sum(1), shared, what="Γ^V")
    assert float((each_head[:, 0] - each_head[:, 1]).abs().max()) > 1e-3, "the heads differ"
    assert bool((play.sample(4000, seed=5).check(last) > 1e-4).all())
