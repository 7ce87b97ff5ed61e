"""The games' own values (def:adf-recursion, eq:routing-forward-linear, eq:attn-qk-value), and the paper's figures."""

import math

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near
from refusals import refused
from toys import picture, tiny_vit

F64 = torch.float64


def figure():
    """The toy subnetwork of both figures: a = (1, 1, 0), the third neuron 40 − 100, W₂ = (7, 2, −1)."""
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False), nn.ReLU()).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [40.0, -100.0]]))
        model[2].weight.copy_(torch.tensor([[7.0, 2.0, -1.0]]))
    return model.eval(), torch.ones(1, 2, dtype=F64)


def test_stopping_figure():
    """fig:Stopping-Game-illustration: 0.7 and 0.2 kept, 0.1 switched; 40 and 100 at the third neuron, which stops."""
    model, x = figure()
    play = bp.StoppingGame(model).play(x, 0)
    ((kept, switched),) = play.policy("2", (0, 0)).values()
    assert_near(kept, [[0.7, 0.2, 0.0]])
    assert_near(switched, [[0.0, 0.0, 0.1]])
    gate = play.values("1")
    assert (gate.plus[0, 2], gate.minus[0, 2], gate.action[0, 2]) == (40, 100, -60)
    assert gate.value.tolist() == [[1, 1, 0]] and gate.continues.tolist() == [[1, 1, 0]]
    second = play.values("3")
    assert (second.plus.item(), second.minus.item(), second.value.item(), second.continues.item()) == (9, 0, 9, 1)
    assert play.marginal("0").tolist()[0][2] == 0, "trajectories end at the third neuron"


def test_routing_figure():
    """fig:Routing-Game-illustration: the value is log 9, the moves 7/18 and 2/18, the negative stream empty."""
    model, x = figure()
    play = bp.RoutingGame(model, epsilon=0.0).play(x, 0)
    second = play.values("3")
    assert_near(second.value, [[math.log(9)]])
    assert_near(second.plus, [[math.log(9)]])
    assert second.minus.item() == -math.inf and second.continues.item() == 1
    ((kept, switched),) = play.policy("2", (0, 0)).values()
    assert_near(kept, [[7 / 18, 2 / 18, 0.0]])
    assert not switched.any()
    first = play.values("1")
    assert first.value.exp().tolist() == [[1, 1, 0]] and bool(first.action[0, 2].isnan()), "ω at 40 − 100"
    assert_near(torch.stack([first.plus, first.minus])[:, 0, 2].exp(), [40, 100])


@pytest.mark.parametrize("tau, epsilon", [(1.0, 0.5), (0.5, 0.5), (2.0, 0.25)])
def test_routing_recursion_by_hand(tau, epsilon):
    """def:routing-recursion, eq:routing-linear-value, eq:soft-bellman: `τ log(ε^{1/τ} + Σ c^{1/τ})`, written out.

    Of contributions (eq:routing-linear-action, eq:q-value, eq:routing-sigma-def); at τ = 1 their difference is `z`.
    Going on is worth `ℓ(z)`, the state `ℓ(a)`, and the player goes on where `z > 0`: eq:routing-activation-continue,
    eq:routing-activation-value, eq:routing-forward-linear, eq:routing-forward-continue, eq:routing-forward-act,
    eq:routing-forward-stop.
    """
    torch.manual_seed(3)
    model, x = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double().eval(), torch.randn(2, 4, dtype=F64)
    play = bp.RoutingGame(model, tau=tau, epsilon=epsilon).play(x, 0)
    found, gate = play.values("0"), play.values("1")
    c = x[:, None, :] * model[0].weight
    for value, part in ((found.plus, c.clamp(min=0)), (found.minus, (-c).clamp(min=0))):
        assert_near(value, tau * (epsilon ** (1 / tau) + part.pow(1 / tau).sum(2)).log())
    if tau == 1:
        assert_near(found.plus.exp() - found.minus.exp(), model[0](x))
    z = model[0](x)
    for action in (found.action, gate.action):
        assert_near(action.exp().nan_to_num(0), model(x))
        assert torch.equal(action.isnan(), z < 0), "ω, the logarithm of a loss"
    assert_near(gate.value.exp(), model(x))
    assert torch.equal(gate.value == -math.inf, z <= 0) and torch.equal(gate.continues, (z > 0).double())


@pytest.mark.parametrize("keywords", [{}, {"softplus": 0.5}, {"risk": -1.0, "input_variance": 0.3}, {"gate": "noisy"}])
def test_stopping_recursion_by_hand(keywords):
    """eq:adf-q-bellman, eq:adf-q-cont, eq:adf-v-active layer by layer, with the policy that the play reports.

    Biases are paid out, inputs at the end (eq:adf-v-terminal), nothing where a player stops (eq:adf-q-stop). The
    advantage is the activation (eq:adf-advantage), the payoffs are the Stopping Decomposition (eq:adf-spne-values).
    """
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    x = torch.randn(2, 4, dtype=F64)
    play = bp.StoppingGame(model, **keywords).play(x, 1)
    plus, minus = x.clamp(min=0), (-x).clamp(min=0)
    ends = play.values("input")
    assert torch.equal(ends.plus, plus) and torch.equal(ends.minus, minus) and torch.equal(ends.value, x)
    for name in ("0", "2"):
        weight, bias = model[int(name)].weight, model[int(name)].bias
        up, down = weight.clamp(min=0).T, (-weight).clamp(min=0).T
        plus, minus = plus @ up + minus @ down + bias.clamp(min=0), minus @ up + plus @ down + (-bias).clamp(min=0)
        found = play.values(name)
        assert_near(found.plus, plus)
        assert_near(found.minus, minus)
        assert_near(found.action, plus - minus)
        if name == "0":
            gate = play.values("1")
            assert_near(gate.plus - gate.minus, plus - minus)
            assert_near(gate.continues, play.policy("1"))
            paid = gate.value - gate.continues * (plus - minus)  # 0 for ReLU; θ times an entropy for Softplus
            plus, minus = gate.continues * plus + paid.clamp(min=0), gate.continues * minus + (-paid).clamp(min=0)
    if not keywords:
        gate = play.values("1")
        assert (gate.value[gate.continues == 0] == 0).all() and (gate.continues == 0).any()
        assert_near(gate.value, model[:2](x))
        pair = bp.decompose(model, x)["2"]
        assert_near(play.values("2").plus, pair.plus * pair.log_scale.exp()[:, None])


@pytest.mark.parametrize("theta", [0.2, 1.5])
def test_softplus_values(theta):
    """thm:softplus-forward, eq:softplus-spne-tildes: payoffs are the Softplus Decomposition, values its activations.

    eq:softplus-soft-value: the gate is worth `σ_θ` of what going on is worth.
    """
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    x = torch.randn(3, 4, dtype=F64)
    play = bp.StoppingGame(model, softplus=theta).play(x, 1)
    soft = nn.Sequential(*(nn.Softplus(1 / theta, 1e9) if isinstance(m, nn.ReLU) else m for m in model))
    pairs = bp.decompose(model, x, kind="softplus", theta=theta)
    for k in range(5):
        found, pair = play.values(str(k)), pairs[str(k)]
        assert_near(found.value, soft[: k + 1](x), what=str(k))
        if isinstance(model[k], nn.ReLU):
            assert_near(found.value, theta * torch.log1p((found.action / theta).exp()))
            pair = pairs[str(k - 1)]  # streams of a gate are those of what it decides on
        for one, other in ((found.plus, pair.plus), (found.minus, pair.minus)):
            assert_near(one, other * pair.log_scale.exp()[:, None], what=str(k))


class Skip(nn.Module):
    """Two gated branches, their sum, and a maximum over pairs of it."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(4, 6), nn.Linear(4, 6), nn.ReLU()
        self.pool, self.head = nn.MaxPool1d(2), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.pool(self.relu(self.first(x)) + self.relu(self.second(x))))


def test_sums_and_winners():
    """prop:addition-equivalence, prop:routing-addition-val: a sum is worth what its operands are together.

    prop:maxpool-equivalence, prop:routing-maxpool-val: a maximum is worth what its winner is.
    """
    torch.manual_seed(6)
    model, x = Skip().double().eval(), torch.randn(3, 4, dtype=F64)
    stopping, routing = bp.StoppingGame(model).play(x, 0), bp.RoutingGame(model).play(x, 0)
    (total,) = [n.name for n in stopping.network.nodes if n.kind == "sum"]
    left, right = (torch.relu(layer(x)) for layer in (model.first, model.second))
    assert (left > 0).any() and ((left == 0) & (right > 0)).any() and ((left == 0) & (right == 0)).any()
    streams = []
    for name, layer in (("first", model.first), ("second", model.second)):
        open_gate = (layer(x) > 0).double()
        found = stopping.values(name)
        streams.append((open_gate * found.plus, open_gate * found.minus))
    added, winner = stopping.values(total), (left + right).unflatten(1, (3, 2)).argmax(2, keepdim=True)
    for found, pooled, parts in zip(
        (added.plus, added.minus),
        (stopping.values("pool").plus, stopping.values("pool").minus),
        zip(*streams, strict=True),
        strict=True,
    ):
        assert_near(found, sum(parts))
        assert_near(pooled, sum(parts).unflatten(1, (3, 2)).gather(2, winner)[..., 0])
    assert_near(routing.values(total).value.exp(), left + right)
    assert_near(routing.values("pool").value.exp(), (left + right).unflatten(1, (3, 2)).amax(2))


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_value_of_the_attention_oracle(fused):
    """eq:attn-qk-bilinear, eq:attn-qk-value: `ℓ(Σ_k exp e_qk)` of each head and query, `ℓ(Z^σ)` of the streams."""
    model, x = tiny_vit(fused=fused), picture()
    block = model.blocks[0]
    play = bp.RoutingGame(model, epsilon=0.0).play(x, 0)
    (name,) = [n.name for n in play.network.nodes if n.name.startswith("blocks.0") and type(n).__name__ == "Attention"]
    with torch.no_grad():
        y = model.embed(x).flatten(2).transpose(1, 2)
        y = block.norm1(torch.cat([model.token.expand(2, -1, -1), y], 1) + model.position)
        q, k, _ = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block.qkv(y).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        weight = block.qkv.weight[12:]
        c = (y[:, :, None, :] * weight).unflatten(2, (2, -1)).transpose(1, 2)  # (B, heads, keys, features, inputs)
        streams = [part.sum(-1) for part in (c.clamp(min=0), (-c).clamp(min=0))]
    found = play.values(name)
    assert_near(found.oracle, scores.logsumexp(-1))
    for value, stream in zip((found.plus, found.minus), streams, strict=True):
        assert_near(value.exp(), scores.softmax(-1) @ stream)
    assert_near(bp.StoppingGame(model).play(x, 0).values(name).oracle, scores.logsumexp(-1))


def stack(depth):
    """A stack of equal layers, whose payoffs grow by 8 from layer to layer while its values stay about 1."""
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(2, 2, bias=False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(2, 1, bias=False)).eval()
    with torch.no_grad():
        for layer in model[:-1:2]:
            layer.weight.copy_(torch.tensor([[4.5, -3.5], [-3.5, 4.5]]))
        model[-1].weight.fill_(1.0)
    return model


@pytest.mark.slow
def test_payoffs_beyond_the_range_of_float32():
    """def:adf-recursion with pencil and paper: at (1, 1) both streams of layer n add up to 8ⁿ, and differ by 1.

    60 layers come to e^125, which float32 cannot hold; 400 to e^832, which no float can: that is said.
    """
    x = torch.ones(1, 2)
    model = stack(60)
    play = bp.StoppingGame(model).play(x, 0)
    for n in (1, 20, 60):
        found = play.values(str(2 * n - 2))
        assert found.plus.dtype == found.value.dtype == F64
        total = 8.0**n
        assert_near(found.plus, [[(total + 1) / 2] * 2], 1e-4, what=f"Q̃ of + at layer {n}")
        assert_near(found.minus, [[(total - 1) / 2] * 2], 1e-4, what=f"Q̃ of − at layer {n}")
        assert_near(found.value, [[1.0, 1.0]], 1e-5)
    deep = stack(400)
    said = refused(lambda: bp.StoppingGame(deep).play(x, 0).values("798"), "'798'", "e^8", "bp.decompose")
    assert "\n" not in said


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.3])
def test_outside_option_beside_tiny_contributions(tau):
    """eq:routing-linear-value where contributions are 10⁻³⁰ of ε: a stream is worth ℓ(ε), in float32 too."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)).eval()
    x = torch.rand(2, 3) * 1e-30
    found = bp.RoutingGame(model, tau=tau, epsilon=0.5).play(x, 0).values("0")
    for stream in (found.plus, found.minus):
        assert_near(stream, [[math.log(0.5)] * 2] * 2, what="ℓ(ε)")
    single, double = (
        bp.RoutingGame(model.to(dtype), tau=tau, epsilon=0.0).play(x.to(dtype), 0).values("0")
        for dtype in (torch.float32, F64)
    )
    for s, d in ((single.plus, double.plus), (single.minus, double.minus)):
        assert torch.equal(s.isfinite(), d.isfinite())
        assert_near(s[s.isfinite()], d[d.isfinite()], 1e-5, what="without one")


def test_refusals():
    """A name that is not there."""
    model, x = figure()
    refused(lambda: bp.RoutingGame(model).play(x, 0).values("fc9"), "no node or module named")


def test_values_of_a_changed_model_are_refused():
    """A play keeps what it was solved with: its values are not mixed with weights that changed since (S1)."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    play = bp.RoutingGame(model).play(torch.randn(1, 3, dtype=torch.float64), 1)
    play.values("2")
    with torch.no_grad():
        model[2].bias.add_(1.0)
    with pytest.raises(bp.BackplayError, match="has changed"):
        play.values("2")
