"""Assumed-density filtering (S22): Monte-Carlo where independence holds, integration and rules by hand elsewhere."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
import hand
from alike import alike
from backplay.values.gaussian import relu_moments
from backplay.values.powers import BLOCK, in_blocks
from closeness import assert_near

pytestmark = pytest.mark.usefixtures("without_gradients")

DRAWS = 100_000
GATES = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "softplus": nn.Softplus}


def disjoint(inputs, outputs, gain=1.0):
    """A linear layer in which every output has inputs of its own."""
    layer = nn.Linear(inputs, outputs).double()
    each = inputs // outputs
    with torch.no_grad():
        mask = torch.zeros_like(layer.weight)
        for j in range(outputs):
            mask[j, j * each : (j + 1) * each] = gain
        layer.weight.copy_(torch.randn_like(layer.weight) * mask)
    return layer


def sampled(model, x, variance):
    """Outputs under DRAWS draws of input noise."""
    noise = torch.randn(DRAWS, *x.shape[1:], dtype=x.dtype) * math.sqrt(variance)
    with torch.no_grad():
        return model(x + noise)


def assert_sampled(moment, draws):
    """Mean and variance within five standard errors of the sample's; and the sample tells them apart from much."""
    n = len(draws)
    mean, variance = draws.mean(0), draws.var(0)
    fourth = (draws - mean).pow(4).mean(0)
    assert ((moment.mean[0] - mean).abs() <= 5 * (variance / n).sqrt()).all()
    error = 5 * ((fourth - variance.square()) / n).sqrt()
    assert ((moment.variance[0] - variance).abs() <= error).all()
    assert (error < 0.1 * variance).all()


class TestMonteCarlo:
    """`bp.moments(…, mean="filtered")` on networks with disjoint fan-in, where the filter's assumption is true."""

    @pytest.mark.parametrize("gate", GATES)
    @pytest.mark.parametrize("variance", [0.05, 0.8])
    def test_disjoint_fan_in(self, gate, variance):
        """S22: one gate between layers of disjoint fan-in; sums of independent gated Gaussians have these moments."""
        model = nn.Sequential(disjoint(8, 4), GATES[gate](), disjoint(4, 2)).double().eval()
        x = torch.randn(1, 8, dtype=torch.float64)
        filtered = bp.moments(alike(model, x), x, variance, mean="filtered")
        assert_sampled(filtered["2"], sampled(model, x, variance))

    def test_patches(self):
        """S22: convolution without overlap, batch norm behind a wire, average pooling, sum of disjoint halves."""

        class Patches(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm, self.pool = nn.Conv2d(1, 2, 2, stride=2), nn.BatchNorm2d(1), nn.AvgPool2d(2)

            def forward(self, x):
                a = torch.relu(self.norm(self.conv(x)[:, :1]))
                return self.pool(a).flatten(1)[:, :2] * 3 + self.pool(a).flatten(1)[:, 2:]

        model = Patches().double().eval()
        with torch.no_grad():
            model.norm.running_mean.fill_(0.2)
            model.norm.running_var.fill_(0.5)
        x = torch.randn(1, 1, 8, 8, dtype=torch.float64)
        network = bp.capture(model, x.expand(2, -1, -1, -1))
        filtered = bp.moments(network, x, 0.4, mean="filtered")
        assert_sampled(filtered[network.nodes[-1].name], sampled(model, x, 0.4))

    def test_real_means_are_another_filter(self):
        """S22: means of the games' filter stay the network's own; the textbook filter's do not."""
        model = hand.mlp(4, 5, 3)
        x = torch.randn(1, 4, dtype=torch.float64)
        real, filtered = bp.moments(alike(model, x), x, 0.5), bp.moments(alike(model, x), x, 0.5, mean="filtered")
        assert_near(real["2"].mean, model(x))
        assert_near(real["0"].mean, filtered["0"].mean)
        assert (filtered["2"].mean - model(x)).abs().max() > 0.01


# gates with the relative error of their moments; bends wider than the Gaussian and kinks cost digits
BENT = {
    "sigmoid": (nn.Sigmoid(), 1e-5),
    "tanh": (nn.Tanh(), 3e-3),
    "SiLU": (nn.SiLU(), 1e-5),
    "Mish": (nn.Mish(), 1e-4),
    "softplus": (nn.Softplus(beta=2.0), 1e-5),
    "hardswish": (nn.Hardswish(), 1e-5),
    "hardsigmoid": (nn.Hardsigmoid(), 1e-5),
    "hardtanh": (nn.Hardtanh(), 1e-5),
    "ELU": (nn.ELU(), 1e-2),
    "leaky": (nn.LeakyReLU(0.1), 1e-5),
    "PReLU": (nn.PReLU(3), 1e-5),
}


class TestGates:
    """Moments of single gates against numerical integration."""

    def probe(self, gate, means, variance):
        """Moments behind an identity layer and a gate, whose input is N(means, variance)."""
        layer = nn.Linear(len(means), len(means), bias=False)
        model = nn.Sequential(layer, gate).double().eval()
        with torch.no_grad():
            layer.weight.copy_(torch.eye(len(means)))
        return bp.moments(model, torch.tensor([means], dtype=torch.float64), variance)["1"]

    @pytest.mark.parametrize("variance", [0.01, 1.0, 10.0])
    def test_relu_closed_form(self, variance):
        """S22, gast2018lightweight: E and Var of ReLU(X), correct digits in both tails."""
        ratios = np.array([-7.0, -3.0, -0.5, 0.0, 0.5, 3.0, 7.0])
        means = ratios * math.sqrt(variance)
        found = self.probe(nn.ReLU(), means.tolist(), variance)
        mean, spread = hand.relu_moments(means, np.full(7, variance))
        np.testing.assert_allclose(hand.numbers(found.mean)[0], mean, rtol=1e-9)
        np.testing.assert_allclose(hand.numbers(found.variance)[0], spread, rtol=1e-9)
        closed = hand.relu_closed(means, np.full(7, variance))
        assert_near(found.mean, closed[0])
        assert_near(found.variance, closed[1])

    def test_relu_without_variance(self):
        """S22: a certain pre-activation has a certain activation, at 0 too."""
        found = self.probe(nn.ReLU(), [-1.0, 0.0, 2.0], 0.0)
        assert found.mean.tolist() == [[0.0, 0.0, 2.0]] and found.variance.abs().max() == 0

    @pytest.mark.parametrize("variance, close", [(0.01, 1e-10), (0.1, 1e-8), (1.0, 1e-5), (9.0, 1e-6), (100.0, 1e-6)])
    @pytest.mark.parametrize("approximate", ["none", "tanh"])
    def test_gelu_quadrature(self, variance, close, approximate):
        """S22: moments of GELU by quadrature, for narrow and for wide Gaussians."""
        means = np.array([-3.0, -1.0, -0.3, 0.0, 0.4, 1.0, 3.0])

        def gelu(z):
            if approximate == "none":
                return z * hand.cdf(z)
            return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))

        found = self.probe(nn.GELU(approximate), means.tolist(), variance)
        mean, spread = hand.each(gelu, means, np.full(7, variance))
        assert_near(found.mean, mean, close)
        assert_near(found.variance, spread, close)

    @pytest.mark.parametrize("variance", [0.2, 2.0, 16.0, 400.0])
    @pytest.mark.parametrize("name", BENT)
    def test_other_gates(self, name, variance):
        """S22: any other gate goes by quadrature; one Gaussian lies on a bend, the others on either side."""
        gate, close = BENT[name]
        means = np.array([-2.0, 0.0, 1.5])

        def activation(z):
            columns = torch.as_tensor(np.broadcast_to(np.asarray(z)[..., None], (*np.shape(z), 3)).copy())
            return gate.double()(columns.reshape(-1, 3)).detach().numpy()[:, 1].reshape(np.shape(z))

        found = self.probe(gate, means.tolist(), variance)
        exact = [hand.gridded_moments(activation, m, math.sqrt(variance)) for m in means]
        mean, spread = zip(*exact, strict=True)
        assert_near(found.mean, [mean], close)
        assert_near(found.variance, [spread], close)


class Rules(nn.Module):
    """One node of every kind on the way; `step` says which."""

    def __init__(self, step, wide=4):
        super().__init__()
        self.lin, self.step, self.head = nn.Linear(4, wide), step, nn.Linear(wide, 2)

    def forward(self, x):
        return self.head(self.step(self.lin(x)))


# norms as models write them: the variance that they divide by, and the square of what they multiply with
SPELLED = {
    "Llama": (
        lambda z: z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-3),
        lambda z: (z.square().mean() + 1e-3, 1.0),
    ),
    "square root": (lambda z: z / (z * z).mean(-1, keepdim=True).sqrt(), lambda z: (z.square().mean(), 1.0)),
    "centred": (
        lambda z: (z - z.mean(-1, keepdim=True)) / torch.sqrt(z.var(-1, keepdim=True, correction=0) + 1e-3),
        lambda z: (z.var(correction=0) + 1e-3, 1.0),
    ),
    "length one": (lambda z: nn.functional.normalize(z, dim=-1), lambda z: (z.square().mean(), 1 / 4)),
}


class TestRules:
    """One rule of S22 at a time, by hand; nothing is squared twice and nothing is left out."""

    def variances(self, model, x, variance=0.3):
        network = bp.capture(model.double().eval(), torch.cat([x, x]))
        return network, bp.moments(network, x, variance)

    def test_affine(self):
        """S22: `W²`, bias without effect."""
        model, x = hand.mlp(4, 3), torch.randn(1, 4, dtype=torch.float64)
        found = bp.moments(alike(model, x), x, 0.3)
        assert_near(found["0"].variance, 0.3 * model[0].weight.square().sum(1)[None])
        assert (found["input"].variance == 0.3).all()

    @pytest.mark.parametrize("padding", ["zeros", "circular"])
    def test_convolution(self, padding):
        """S22: a convolution of variances with squared weights; padding has no variance."""
        conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode=padding, dilation=1).double().eval()
        model = nn.Sequential(conv, nn.Flatten(), nn.Linear(27, 2)).double().eval()
        x = torch.randn(1, 2, 6, 6, dtype=torch.float64)
        found = bp.moments(alike(model, x), x, 0.3)["0"].variance.flatten()
        weight, _ = hand.matrix(conv, (2, 6, 6))
        assert_near(found, (weight**2) @ np.full(72, 0.3))

    def test_sum(self):
        """S22: variances of the operands of a sum add, as if independent."""

        class Residual(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(x - 2 * self.lin(x))

        model, x = Residual(), torch.randn(1, 4, dtype=torch.float64)
        _, found = self.variances(model, x)
        summed = 0.3 + 4 * 0.3 * model.lin.weight.square().sum(1)
        assert_near(found["head"].variance[0], model.head.weight.square() @ summed)

    def test_diagonal(self):
        """S22: scale² for a constant factor and for batch norm; a constant added changes nothing."""
        norm = nn.BatchNorm1d(4)
        with torch.no_grad():
            norm.running_var.copy_(torch.rand(4) + 0.5)
            norm.weight.copy_(torch.randn(4))
            norm.running_mean.normal_()
        model = Rules(lambda z: 0.0, 4)

        class Diagonal(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = norm

            def forward(self, z):
                return self.norm(torch.relu(z)) * torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=torch.float64) + 1

        model.step = Diagonal()
        x = torch.randn(1, 4, dtype=torch.float64)
        _, found = self.variances(model, x)
        z, v = model.lin(x), 0.3 * model.lin.weight.square().sum(1)
        _, spread = hand.relu_moments(hand.numbers(z)[0], hand.numbers(v))
        factor = norm.weight.square() / (norm.running_var + norm.eps) * torch.tensor([1.0, 4.0, 0.0, 9.0])
        assert_near(found["head"].variance[0], model.head.weight.square() @ (torch.tensor(spread) * factor), 1e-9)

    def test_product(self):
        """S22: the detached factor squared."""

        class Gated(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(4, 4)

            def forward(self, z):
                return z * torch.sigmoid(self.gate(z))

        model, x = Rules(Gated()), torch.randn(1, 4, dtype=torch.float64)
        _, found = self.variances(model, x)
        z, v = model.lin(x)[0], 0.3 * model.lin.weight.square().sum(1)
        factor = torch.sigmoid(model.step.gate(z))
        assert_near(found["head"].variance[0], model.head.weight.square() @ (v * factor.square()))

    def test_layer_norm(self):
        """S22: `v γ² / (s² + mean v)`, `s²` the sample's variance plus eps."""
        norm = nn.LayerNorm(4)
        model, x = Rules(norm), torch.randn(1, 4, dtype=torch.float64)
        with torch.no_grad():
            norm.weight.normal_()
            norm.bias.normal_()
        _, found = self.variances(model, x)
        z, v = model.lin(x)[0], 0.3 * model.lin.weight.square().sum(1)
        expected = v * norm.weight.square() / (z.var(correction=0) + norm.eps + v.mean())
        assert_near(found["step"].variance[0], expected)

    def test_rms_norm(self):
        """S22: the same with the mean square in place of the variance."""
        norm = nn.RMSNorm(4, eps=1e-3)
        model, x = Rules(norm), torch.randn(1, 4, dtype=torch.float64)
        with torch.no_grad():
            norm.weight.normal_()
        _, found = self.variances(model, x)
        z, v = model.lin(x)[0], 0.3 * model.lin.weight.square().sum(1)
        expected = v * norm.weight.square() / (z.square().mean() + 1e-3 + v.mean())
        assert_near(found["step"].variance[0], expected)

    @pytest.mark.parametrize("name", SPELLED)
    def test_spelled_out_norms(self, name):
        """S22: matched moments do not depend on how a norm is written."""
        step, statistic = SPELLED[name]
        model, x = Rules(step), torch.randn(1, 4, dtype=torch.float64)
        network, found = self.variances(model, x)
        z, v = model.lin(x)[0], 0.3 * model.lin.weight.square().sum(1)
        total, times = statistic(z)
        last = [n for n in network.nodes if n.kind == "norm"][-1]
        assert_near(found[last].variance[0], v * times / (total + v.mean()))

    def test_other_statistics_scale(self):
        """S22: a statistic that is no deviation of the sample scales the variance, and that is all."""
        model, x = Rules(lambda z: z * z.mean(-1, keepdim=True).sigmoid()), torch.randn(1, 4, dtype=torch.float64)
        network, found = self.variances(model, x)
        z, v = model.lin(x)[0], 0.3 * model.lin.weight.square().sum(1)
        last = [n for n in network.nodes if n.kind in ("norm", "product")][-1]
        assert_near(found[last].variance[0], v * z.mean().sigmoid().square())

    def test_group_norm(self):
        """S22: statistics and the mean of `v` are those of the element's own group."""
        conv, norm = nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)
        model = nn.Sequential(conv, norm, nn.Flatten(), nn.Linear(36, 2)).double().eval()
        with torch.no_grad():
            norm.weight.normal_()
        x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
        found = bp.moments(alike(model, x), x, 0.3)
        z, v = conv(x), found["0"].variance
        for g in (slice(0, 2), slice(2, 4)):
            gamma = norm.weight[g].square()[:, None, None]
            expected = v[0, g] * gamma / (z[0, g].var(correction=0) + norm.eps + v[0, g].mean())
            assert_near(found["1"].variance[0, g], expected)

    def test_norms_bound_variances(self):
        """S22: the reason for moment matching: 30 residual blocks of a transformer stay bounded by γ² and the depth."""

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

            def forward(self, x):
                return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

        model = nn.Sequential(*(Block() for _ in range(30)), nn.Linear(8, 2)).double().eval()
        found = bp.moments(model, torch.randn(1, 8, dtype=torch.float64), 50.0)
        for k in range(30):
            assert found[f"{k}.norm"].variance.mean() < 1

    def test_mix(self):
        """S22: `w²` for pooling and up-sampling; a mean of n has a variance n times smaller."""
        model = nn.Sequential(
            nn.Conv2d(1, 2, 1), nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten()
        )
        model = nn.Sequential(*model, nn.Linear(72, 2)).double().eval()
        x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
        found = bp.moments(alike(model, x), x, 0.3)
        below = found["0"].variance
        assert_near(found["1"].variance, nn.functional.avg_pool2d(below, 2) / 4)
        weight, _ = hand.matrix(model[2], (2, 3, 3))
        assert_near(found["2"].variance.flatten(), (weight**2) @ hand.numbers(found["1"].variance.flatten()))

    def test_max(self):
        """S22: the winner's variance, not the largest, winners being those of the real pass."""
        model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2))
        model = model.double().eval()
        x = torch.randn(1, 1, 5, 5, dtype=torch.float64)
        found = bp.moments(alike(model, x), x, 0.3)
        value = model[1](model[0](x))
        _, index = nn.functional.max_pool2d(value, 2, return_indices=True)
        below = found["1"].variance
        expected = below.flatten(2).gather(2, index.flatten(2)).view_as(index)
        assert_near(found["2"].variance, expected)
        assert (nn.functional.max_pool2d(below, 2) - expected).abs().max() > 1e-3

    def test_maximum_of_two(self):
        """S22: elementwise maximum takes the variance of the larger operand."""

        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(torch.maximum(self.a(x), self.b(x)))

        model, x = Pair().double().eval(), torch.randn(1, 4, dtype=torch.float64)
        found = bp.moments(alike(model, x), x, 0.3)
        va, vb = (0.3 * f.weight.square().sum(1) for f in (model.a, model.b))
        v = torch.where(model.a(x)[0] > model.b(x)[0], va, vb)
        assert_near(found["head"].variance[0], model.head.weight.square() @ v)

    @pytest.mark.parametrize("fused", [True, False])
    def test_attention(self, fused):
        """S22: fixed weights, `A²` on the variances of the values."""
        model, x = hand.attention(fused), torch.randn(1, 3, 3, dtype=torch.float64)
        network = bp.capture(model, torch.cat([x, x]))
        found = bp.moments(network, x, 0.3)
        h, v = model.embed(x), 0.3 * model.embed.weight.square().sum(1).expand(1, 3, 4)
        v = torch.tensor(hand.relu_moments(hand.numbers(h), hand.numbers(v))[1])
        h = torch.relu(h)
        a = torch.softmax(model.split(model.q(h)) @ model.split(model.k(h)).mT / math.sqrt(2), -1)
        values = model.split(v @ model.v.weight.square().T)
        mixed = (a.square() @ values).transpose(1, 2).flatten(2)
        assert_near(found["proj"].variance, mixed @ model.proj.weight.square().T, 1e-9)

    def test_wires(self):
        """S22: wires move variances; a constant that is joined has none."""

        class Wired(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.head = nn.Linear(4, 3), nn.Linear(6, 2)

            def forward(self, x):
                z = self.lin(x).flip(1)
                return self.head(torch.cat([z, torch.ones_like(z)], 1))

        model, x = Wired().double().eval(), torch.randn(1, 4, dtype=torch.float64)
        v = 0.3 * model.lin.weight.square().sum(1).flip(0)
        assert_near(bp.moments(alike(model, x), x, 0.3)["head"].variance[0], model.head.weight[:, :3].square() @ v)


@pytest.mark.parametrize(
    "keywords", [{"input_variance": -0.1}, {"input_variance": float("nan")}, {"input_variance": 1, "mean": "mode"}]
)
def test_bad_keywords(keywords):
    """api.md: out of range is a ValueError that names the keyword."""
    x = torch.randn(1, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=next(reversed(keywords))) as error:
        bp.moments(hand.mlp(4, 3), x, **keywords)
    assert isinstance(error.value, bp.BackplayError)


@pytest.mark.parametrize("turned", [False, True])
def test_many_elements(turned):
    """Large tensors are worked through in blocks, which changes no number, in whatever order they lie in memory."""
    shape = (3, 2 * BLOCK // 3 + 1)
    mean, variance = torch.randn(shape), torch.rand(1, shape[1]).expand(shape)
    if turned:
        mean, variance = torch.randn(shape[::-1]).mT, torch.rand(shape[::-1]).mT
    assert mean.numel() > 2 * BLOCK
    for found, expected in zip(in_blocks(relu_moments, mean, variance), relu_moments(mean, variance), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_a_variance_of_another_precision():
    """A model that casts on the way may leave float32 variances beside float64 means: what is certain stays certain."""
    mean, variance = torch.tensor([0.0, 2.0, -2.0], dtype=torch.float64), torch.zeros(3)
    expected, spread = relu_moments(mean, variance)
    assert expected.tolist() == [0, 2, 0]
    assert spread.tolist() == [0, 0, 0]
