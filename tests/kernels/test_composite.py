"""The composite AV+W_V rule against its matrix form, eq:attn-target-input and thm:attn-ab-recovery (S23)."""

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from closeness import array, assert_near, unscaled
from oracles.matrices import negative, positive, ratio

F64 = torch.float64
TOKENS, WIDTH = 5, 6


class Attention(nn.Module):
    """One attention layer on (B, S, D) tokens and a linear head that reads every output entry.

    `layout` says how values reach the mixing: one head without any wire, heads, sequence first, packed projections,
    grouped heads; `rectified` puts a ReLU before the projections, so that X ≥ 0 is known statically (S5).
    """

    def __init__(self, layout="heads", heads=2, features=3, groups=None, rectified=False, bias=False):
        super().__init__()
        self.layout, self.heads, self.groups = layout, heads, groups or heads
        self.relu = nn.ReLU() if rectified else None
        inner, kv = heads * features, self.groups * features
        self.features = features
        self.q, self.k = nn.Linear(WIDTH, inner), nn.Linear(WIDTH, kv)
        self.v = nn.Linear(WIDTH, kv, bias=bias)
        self.attend = Mixing(layout, heads, self.groups)
        self.head = nn.Linear(TOKENS * inner, 4)
        self.double().eval()

    def forward(self, x):
        if self.relu is not None:
            x = self.relu(x)
        return self.head(self.attend(self.q(x), self.k(x), self.v(x)).flatten(1))

    def policy(self, x):
        """(B, heads, S, S) softmax weights."""
        x = x if self.relu is None else self.relu(x)
        query = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.k(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        key = key.repeat_interleave(self.heads // self.groups, 1)
        return (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1).detach().numpy()


class Mixing(nn.Module):
    """softmax(QKᵀ) V, (B, S, heads · features) out, in several layouts."""

    def __init__(self, layout, heads, groups):
        super().__init__()
        self.layout, self.heads, self.groups = layout, heads, groups

    def forward(self, query, key, value):
        scale = (query.shape[-1] // self.heads) ** -0.5
        if self.layout == "bare":  # one head, no wire at all
            return (query @ key.transpose(1, 2) * scale).softmax(-1) @ value
        if self.layout == "einsum":
            query, key, value = (
                t.unflatten(-1, (n, -1)) for t, n in ((query, self.heads), (key, self.groups), (value, self.groups))
            )
            weights = (torch.einsum("bqhd,bkhd->bhqk", query, key) * scale).softmax(-1)
            return torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2)
        if self.layout == "folded":  # batch and heads in one axis, as torch's multi-head attention does
            batch, length = query.shape[:2]
            query, key, value = (
                t.transpose(0, 1).reshape(length, batch * self.heads, -1).transpose(0, 1) for t in (query, key, value)
            )
            weights = (torch.bmm(query, key.transpose(1, 2)) * scale).softmax(-1)
            out = torch.bmm(weights, value).transpose(0, 1).reshape(length, batch, -1)
            return out.transpose(0, 1)
        query = query.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = (t.unflatten(-1, (self.groups, -1)).transpose(1, 2) for t in (key, value))
        if self.layout == "fused":
            out = nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=self.groups != self.heads)
            return out.transpose(1, 2).flatten(2)
        if self.groups != self.heads:  # as Llama repeats its heads
            repeats = self.heads // self.groups
            key, value = (t[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for t in (key, value))
        if self.layout == "right":
            weights = (key @ query.transpose(-2, -1) * scale).softmax(-2)
            return (value.transpose(-2, -1) @ weights).permute(0, 3, 1, 2).flatten(2)
        weights = (query @ key.transpose(-2, -1) * scale).softmax(-1)
        return (weights @ value).transpose(1, 2).flatten(2)


LAYOUTS = {
    "heads": {},
    "fused": {"layout": "fused"},
    "bare": {"layout": "bare", "heads": 1},
    "einsum": {"layout": "einsum"},
    "folded": {"layout": "folded"},
    "right": {"layout": "right"},
    "grouped": {"heads": 4, "groups": 2, "features": 2},
    "grouped, fused": {"layout": "fused", "heads": 4, "groups": 2, "features": 2},
    "multi-query": {"heads": 3, "groups": 1, "features": 2},
}


def effective(model, weights):
    """W^eff_{(q,hd),(k,e)} = A_qk W_V, eq:attn-composite-weight, and the projection's rows: (S·inner, S·D)."""
    value = model.v.weight.detach().numpy()
    serves = np.arange(model.heads) * model.groups // model.heads  # the value head of each query head
    spread = value.reshape(model.groups, model.features, WIDTH)[serves].reshape(-1, WIDTH)
    heads = np.repeat(np.arange(model.heads), model.features)
    dense = np.einsum("jqk,je->qjke", weights[heads], spread)
    return dense.reshape(TOKENS * len(spread), TOKENS * WIDTH)


def recovered(matrix, x, relevance, alpha, beta, epsilon):
    """eq:attn-target-input as one αβ rule on the composite map, with the outside option of S13."""
    contributions = matrix * x
    up, down = positive(contributions), negative(contributions)
    z_up, z_down = (c.sum(1, keepdims=True) + epsilon for c in (up, down))
    kernel = alpha * ratio(up, np.broadcast_to(z_up, up.shape)) - beta * ratio(down, np.broadcast_to(z_down, up.shape))
    return kernel.T @ relevance


@pytest.mark.parametrize("alpha, beta, epsilon", [(2.0, 1.0, 0.0), (2.0, 1.0, 0.5), (1.0, 0.0, 1e-6), (1.5, 0.5, 0.1)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_matrix_form(name, alpha, beta, epsilon):
    """eq:attn-target-input: the exit difference is the αβ rule of the composite map on the entry difference.

    eq:attn-Gamma-X, eq:attn-Gamma-O, eq:attn-composite-weight.
    """
    model = Attention(**LAYOUTS[name])
    x = torch.randn(2, TOKENS, WIDTH, dtype=F64)
    play = bp.RoutingGame(alike(model, x), alpha=alpha, beta=beta, epsilon=epsilon).play(x, 1)
    assert play.health().ok
    entry, leave = play.occupation("attend"), play.occupation("input")
    entries = unscaled(entry.difference, entry.difference_log_scale).reshape(2, -1)
    exits = unscaled(leave.difference, leave.difference_log_scale).reshape(2, -1)
    for sample, weights, before, after in zip(array(x), model.policy(x), entries, exits, strict=True):
        expected = recovered(effective(model, weights), sample.reshape(-1), before, alpha, beta, epsilon)
        assert_near(after, expected, what="Γ^X")


@pytest.mark.parametrize("rectified", [True, False], ids=["static", "signed"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_recovery_theorem(name, rectified):
    """thm:attn-ab-recovery on X ≥ 0, ε = 0, in its own words: Z^σ from W_V^σ, both players by their recursion."""
    model = Attention(**LAYOUTS[name], rectified=rectified)
    x = torch.rand(2, TOKENS, WIDTH, dtype=F64) + 0.1
    play = bp.RoutingGame(alike(model, x), alpha=2.0, beta=1.0, epsilon=0.0).play(x, 2)
    entry, leave = play.occupation("attend"), play.occupation("input")
    gamma_o = [unscaled(t, entry.log_scale).reshape(2, -1) for t in (entry.plus, entry.minus)]
    gamma_x = [unscaled(t, leave.log_scale).reshape(2, -1) for t in (leave.plus, leave.minus)]
    for n, weights in enumerate(model.policy(x)):
        matrix, tokens = effective(model, weights), array(x[n]).reshape(-1)
        up = positive(matrix) * tokens  # A_qk W⁺_ed X_ke, the sign being that of the weight
        down = negative(matrix) * tokens
        up, down = (ratio(c, np.broadcast_to(c.sum(1, keepdims=True), c.shape)) for c in (up, down))
        for r in (0, 1):  # eq:attn-Gamma-X-recursion
            expected = 2.0 * up.T @ gamma_o[r][n] + 1.0 * down.T @ gamma_o[1 - r][n]
            assert_near(gamma_x[r][n], expected, what=f"Γ of player {r}")
        expected = (2.0 * up - down).T @ (gamma_o[0][n] - gamma_o[1][n])
        assert_near(gamma_x[0][n] - gamma_x[1][n], expected, relative=1e-9, what="player difference")


def test_two_stages():
    """eq:attn-target-rule, eq:attn-target-input-via-V: relevance at the values, stream by stream, then at the tokens.

    eq:attn-V-forward, eq:attn-AV-forward, eq:attn-Z-def, eq:attn-V-routing-policy-O, eq:attn-V-routing-policy written
    out for every query, key, head and feature.
    """
    alpha, beta, model = 1.5, 0.5, Attention()
    x = torch.rand(1, TOKENS, WIDTH, dtype=F64) + 0.1
    play = bp.RoutingGame(alike(model, x), alpha=alpha, beta=beta, epsilon=0.0).play(x, 2)
    differences = {}
    for name in ("attend", "v", "input"):
        found = play.occupation(name)
        differences[name] = unscaled(found.difference, found.difference_log_scale)[0]
    tokens, weight = array(x[0]), model.v.weight.detach().numpy().reshape(2, 3, WIDTH)  # (heads, features, inputs)
    policy = model.policy(x)[0]
    values = np.einsum("hde,ke->khd", weight, tokens)
    assert_near(play.solved[play.network.find("v")][0], values.reshape(TOKENS, -1))
    assert_near(
        play.solved[play.network.find("attend")][0], np.einsum("hqk,khd->qhd", policy, values).reshape(TOKENS, -1)
    )
    relevance = differences["attend"].reshape(TOKENS, 2, 3)
    at_values, at_tokens = np.zeros((TOKENS, 2, 3)), np.zeros((TOKENS, WIDTH))
    for factor, part in ((alpha, positive), (-beta, negative)):
        chosen = np.einsum("hde,ke->khde", part(weight), tokens)
        stream = chosen.sum(3)  # ṽ^σ
        mixed = np.einsum("hqk,khd->qhd", policy, stream)  # Z^σ
        keys = np.einsum("hqk,khd->qhdk", policy, stream)
        keys = ratio(keys, np.broadcast_to(mixed[..., None], keys.shape))
        routed = np.einsum("qhdk,qhd->khd", keys, relevance)  # R^{V,σ}
        inputs = ratio(chosen, np.broadcast_to(stream[..., None], chosen.shape))
        at_values += factor * routed
        at_tokens += factor * np.einsum("khde,khd->ke", inputs, routed)
    assert_near(differences["v"], at_values.reshape(TOKENS, -1), what="R^V")
    assert_near(differences["input"], at_tokens, what="R^X")


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("bias", ["ignore", "absorb"])
@pytest.mark.parametrize("name", ["heads", "fused", "bare", "grouped"])
def test_temperature_and_bias(name, bias, tau):
    """S23: weights stand inside the exponent, input policy of its own, outside option and bias once, at the keys."""
    epsilon = 0.3
    model = Attention(**LAYOUTS[name], bias=True)
    x = torch.randn(2, TOKENS, WIDTH, dtype=F64)
    play = bp.RoutingGame(alike(model, x), epsilon=epsilon, tau=tau, bias=bias).play(x, 0)
    before = array(play.marginal("attend")).reshape(2, TOKENS, -1)
    found = array(play.marginal("input"))
    offsets = model.v.bias.detach().numpy().reshape(model.groups, -1)
    heads = np.arange(model.heads) * model.groups // model.heads
    rows = model.v.weight.detach().numpy().reshape(model.groups, model.features, WIDTH)[heads].reshape(-1, WIDTH)
    offsets = offsets[heads].reshape(-1)
    for n, weights in enumerate(model.policy(x)):
        spread = np.repeat(weights, model.features, axis=0)  # (inner, q, k)
        expected, crossed = np.zeros((TOKENS, WIDTH)), np.zeros((TOKENS, model.groups * model.features))
        for part in (positive, negative):
            contributions = part(np.einsum("je,ke->kje", rows, array(x[n])))
            streams = contributions.sum(2)  # ṽ^σ_kd
            scores = np.einsum("jqk,kj->qjk", spread, streams) ** (1 / tau)
            rest = epsilon ** (1 / tau) + (part(offsets) ** (1 / tau) if bias == "absorb" else 0.0)
            keys = scores / (scores.sum(2) + rest)[..., None]
            for j, g in enumerate(np.repeat(heads, model.features)):  # eq:attn-Gamma-V-corollary
                crossed[:, g * model.features + j % model.features] += 0.5 * before[n, :, j] @ keys[:, j]
            inputs = contributions ** (1 / tau)
            inputs = ratio(inputs, np.broadcast_to(inputs.sum(2, keepdims=True), inputs.shape))
            expected += 0.5 * np.einsum("qj,qjk,kje->ke", before[n], keys, inputs)
        assert_near(found[n], expected, what="walk")
        assert_near(play.marginal("v")[n], crossed, what="walk through V")


class Crossing(nn.Module):
    """The V projection is also read by the head itself: mass arrives at it by another route."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(WIDTH, n) for n in (4, 4, 4, 2))
        self.head = nn.Linear(8, 2)
        self.double().eval()

    def forward(self, x):
        heads = [t.unflatten(-1, (2, 2)).transpose(1, 2) for t in (self.q(x), self.k(x))]
        value = self.v(x)
        mixed = nn.functional.scaled_dot_product_attention(*heads, value.unflatten(-1, (2, 2)).transpose(1, 2))
        return self.head(torch.cat([mixed.transpose(1, 2).flatten(2), value], -1).sum(1))


def test_projection_keeps_its_own_kernel():
    """S23: mass that arrives at V by other routes leaves it by the affine rule; the composite's only crosses it.

    `play.marginal` at V is the sum of both (eq:attn-Gamma-V-corollary).
    """
    model = Crossing()
    x = torch.randn(2, TOKENS, WIDTH, dtype=F64)
    play = bp.RoutingGame(alike(model, x), epsilon=0.2).play(x, 0)
    assert play.health().ok
    mixing = next(n for n in play.visited() if n.kind == "mix" and play.kernel(n).crossed is not None)
    walk = array(play.visited()[play.network.find("v")].plain())
    mass = play.marginal(mixing)
    both = array(mass - play.kernel(mixing).lost(mass)).reshape(2, -1).sum(1) + walk.reshape(2, -1).sum(1)
    assert_near(array(play.marginal("v")).reshape(2, -1).sum(1), both, what="both routes")
    assert (walk.reshape(2, -1).sum(1) > 0.05).all()
    # the head's walk splits between mixed values and V itself: what stands at V came by the second route alone
    total = array(play.marginal("head")).sum(1)
    assert_near(total, np.ones(2))
    value = array(model.v(x))
    pooled = array(torch.cat([torch.zeros(2, TOKENS, 4, dtype=F64), model.v(x)], -1).sum(1))
    heads = [t.unflatten(-1, (2, 2)).transpose(1, 2) for t in (model.q(x), model.k(x), model.v(x))]
    mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    everything = np.concatenate([array(mixed.sum(1)), pooled[:, 4:]], 1)
    for n in range(2):
        contributions = model.head.weight.detach().numpy()[0] * everything[n]
        expected = np.zeros((TOKENS, 4))
        for part in (positive, negative):
            c = part(contributions)
            first = 0.5 * c / (c.sum() + 0.2)  # head → pooled element
            for d in range(4):
                for other in (positive, negative):  # the sum over tokens is a signed mix (S18)
                    s = other(value[n, :, d])
                    if s.any():
                        expected[:, d] += first[4 + d] * 0.5 * s / (s.sum() + 0.2)
        assert_near(walk[n], expected, what="walk at V")


def test_rows_scaled_to_zero():
    """A head whose V projection is 0 on every key loses all of its mass to †; nothing is divided by 0."""
    model = Attention()
    with torch.no_grad():
        model.v.weight[:3] = 0.0
    x = torch.randn(2, TOKENS, WIDTH, dtype=F64)
    for epsilon in (0.0, 0.5):
        play = bp.RoutingGame(alike(model, x), epsilon=epsilon).play(x, 0)
        assert play.health().ok and play.health().mass_error < 1e-12
        at_dead = array(play.marginal("attend"))[..., :3].sum((1, 2))
        assert (array(play.cemetery) >= at_dead - 1e-12).all()
