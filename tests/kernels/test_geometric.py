"""Geometric kernels of every kind of node, row by row, on networks with attention, norms and products."""

import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from backplay.kernels.contributions import ByParts
from backplay.kernels.kernel import WALK
from backplay.trajectory.overlap import TwoPlays
from closeness import assert_near
from mixed import GAMES, Mixed, perturbed


def pairs_of_plays(game, options):
    model = Mixed().double().eval()
    x, y = torch.randn(2, 3, 3, dtype=torch.float64), torch.randn(2, 3, 3, dtype=torch.float64)
    network = alike(model, x)
    play = game(network, **options).play(x, [0, 1])
    yield TwoPlays(play, game(network.on(perturbed(model)), **options).play(y, [0, 1]))
    yield TwoPlays(play, game(network, **options).play(y, [0, 2]))


@pytest.mark.parametrize("game, options", GAMES)
def test_rows(game, options):
    """Each row of √(T_A T_B), way by way, and its cemetery overlap (eq:geom-kernel, S28)."""
    for plays in pairs_of_plays(game, options):
        for node in list(plays.a.visited())[:-1]:
            a, b, both = plays.a.kernel(node), plays.b.kernel(plays.twins[node]), plays.kernel(node)
            value = plays.a.solved[node]
            for state in torch.randperm(value.numel())[:6]:
                root = torch.zeros_like(value).flatten()
                root[state] = 1.0
                root = root.view(value.shape)
                pairs = list(zip(a.ways(root, 0 * root), b.ways(root, 0 * root), strict=True))
                for k, found in enumerate(both.pull(root, WALK)):
                    expected = sum((p.moved[k] * q.moved[k]).sqrt() for p, q in pairs)
                    assert_near(found, expected, scale=1.0, what=f"moves at {node.name}")
                ends = sum(
                    (p.ends * q.ends).sqrt().sum() for p, q in pairs if p.ends is not None and q.ends is not None
                )
                lost = both.lost(root)
                assert_near(0.0 if lost is None else lost.sum(), ends, scale=1.0, what=f"ends at {node.name}")


@pytest.mark.parametrize("game, options", GAMES)
def test_push_is_the_transpose_of_pull(game, options):
    """⟨pull m, f⟩ = ⟨m, push f⟩ for plain and geometric kernels; players' masses add up to the walk's."""
    for plays in pairs_of_plays(game, options):
        for node in list(plays.a.visited())[:-1]:
            for kernel in (plays.a.kernel(node), plays.kernel(node)):
                mass = torch.rand_like(plays.a.solved[node])
                moved = kernel.pull(mass, WALK)
                functions = [torch.rand_like(m) for m in moved]
                left = sum((m * f).sum() for m, f in zip(moved, functions, strict=True))
                assert_near((mass * kernel.push(functions)).sum(), left, what=f"{node.name} {type(kernel).__name__}")
            plus, minus = torch.rand_like(mass), torch.rand_like(mass)
            tagged = plays.a.kernel(node).pull_players(plus, minus)
            for (p, m), both in zip(tagged, plays.a.kernel(node).pull(plus + minus, WALK), strict=True):
                assert_near(p + m, both, what=f"players at {node.name}")


@pytest.mark.parametrize("game, options", GAMES)
def test_routes_agree(game, options):
    """Backward and forward pass, post-hoc and kernel-side conditioning, on attention, norms and products."""
    for plays in pairs_of_plays(game, options):
        h = bp.hellinger(plays.a, plays.b)
        kernel_side = bp.hellinger(plays.a, plays.b, conditioning="kernel")
        assert_near(h.bc_forward(), h.bc, what="BC")
        assert_near(kernel_side.bc_surviving, h.bc_surviving, what="BC given survival")
        for kind in ("trajectory", "marginal", "fraction"):
            assert_near(kernel_side.map(kind, True), h.map(kind, True), 1e-8, scale=1.0, what=kind)
        total = h.disagreement.flatten(1).sum(1) + h.cemetery_disagreement + h.constant_disagreement
        assert_near(total, h.distance**2, scale=1.0, what="Σ h²")
        curve = torch.stack([bc for _, bc in h.by_layer])
        assert (curve.diff(dim=0) <= 1e-12).all()


@pytest.mark.parametrize("less", [1.0, 1e-12])
def test_contributions_in_common(less):
    """Two plays that differ in weights and values: `√(c_A c_B)` of each pair, written out (S28).

    All that the first input contributes is positive: with next to no mass on that stream, a difference of the two would
    have no digits left (S37).
    """
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    network = bp.capture(nn.Linear(5, 7, bias=False).double(), draw(2, 5))
    node = network.output
    weights, values = draw(2, 7, 5), draw(2, 2, 5)
    weights[..., 0].abs_(), values[..., 0].abs_()
    a, b = (ByParts(node, w, v) for w, v in zip(weights, values, strict=True))
    on_plus, on_minus = draw(2, 7).abs() * less, draw(2, 7).abs()
    c, d = (v[:, None, :] * w for w, v in zip(weights, values, strict=True))  # (samples, outputs, inputs)
    streams = [(c * s).clamp(min=0).sqrt() * (d * s).clamp(min=0).sqrt() for s in (1, -1)]
    expected = (streams[0] * on_plus[..., None] + streams[1] * on_minus[..., None]).sum(1)
    found = a.geometric(b).pull(on_plus.clone(), on_minus.clone())
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    pushed = a.geometric(b).push(torch.ones_like(values[0]))
    for sums, stream in zip(pushed, streams, strict=True):
        torch.testing.assert_close(sums, stream.sum(2), rtol=1e-13, atol=0)
