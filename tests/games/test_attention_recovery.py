"""αβ-LRP through every attention block of a transformer, from the model's own tensors (thm:attn-ab-recovery)."""

import pytest
import torch

import backplay as bp
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
