"""Every kernel, one layer at a time, against its dense matrix (S6-S8, S12-S18), float64.

A layer is played once for each of its output elements: the batch repeats one input, sample k has target k, so the
occupations are the rows of the kernel.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from alike import alike
from closeness import assert_near, unscaled
from oracles import geometry, matrices


def random(*shape):
    """Random numbers of which some are exactly 0."""
    values = torch.randn(*shape, dtype=torch.float64)
    return values * (torch.rand(*shape) > 0.15)


def filled(layer):
    """`layer` with random weights, zeros among them."""
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(random(*parameter.shape))
    return layer


def rows(game_class, layer, x, **options):
    """Play the layer from each output element: (kept, switched, walk) of shape (out, in), and cemetery."""
    model = nn.Sequential(layer, nn.Flatten()).double().eval()
    outputs = model(x).shape[1]
    play = game_class(alike(model, x), **options).play(x.expand(outputs, *x.shape[1:]), list(range(outputs)))
    occupation = play.occupation("input")
    parts = (unscaled(v, occupation.log_scale) for v in (occupation.plus, occupation.minus))
    kept, switched = (v.reshape(outputs, -1) for v in parts)
    walk = play.marginal("input").reshape(outputs, -1)
    signed = unscaled(occupation.difference, occupation.difference_log_scale)
    assert_near(signed, kept - switched, scale=(kept + switched).max() + 1e-300, what="difference")
    assert_near(walk.sum(1) + play.cemetery + play.constant, np.ones(outputs), what="mass")
    return kept, switched, walk


def check(found, expected, walk):
    """Compare the rows of a game with the matrices of the oracle."""
    kept, switched = expected
    largest = max(kept.max(), switched.max())
    assert_near(found[0], kept, scale=largest, what="player kept")
    assert_near(found[1], switched, scale=largest, what="player switched")
    assert_near(found[2], walk, scale=1.0, what="walk")


def alone(matrix):
    """A kernel that never switches the player."""
    return matrix, np.zeros_like(matrix)


def numbers(tensor):
    return tensor.detach().numpy().copy()


# affine layers: (layer, input shape, dense matrix) -------------------------------------------------
def _conv(layer, shape):
    options = {k: getattr(layer, k) for k in ("stride", "padding", "dilation", "groups")}
    return layer, shape, geometry.conv_matrix(numbers(layer.weight), shape, **options)[0]


def _transposed(layer, shape):
    options = {k: getattr(layer, k) for k in ("stride", "padding", "output_padding")}
    return layer, shape, geometry.transposed_conv_matrix(numbers(layer.weight), shape, **options)[0]


class Matmul(nn.Module):
    """x W with a constant: an affine node without a layer of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 3))
        self.bias = None

    def forward(self, x):
        return x @ self.weight


class Einsum(Matmul):
    def forward(self, x):
        return torch.einsum("bi,io->bo", x, self.weight)


class Addmm(Matmul):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(3))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


def _constant(layer):
    return layer, (4,), numbers(layer.weight).T


AFFINE = {
    "linear": lambda: (lambda m: (m, (5,), numbers(m.weight)))(filled(nn.Linear(5, 4))),
    "conv2d": lambda: _conv(filled(nn.Conv2d(2, 3, 3, padding=1)), (2, 4, 4)),
    "stride": lambda: _conv(filled(nn.Conv2d(2, 3, 2, stride=2, padding=1)), (2, 4, 5)),
    "groups": lambda: _conv(filled(nn.Conv2d(4, 4, 3, padding=1, groups=2)), (4, 3, 3)),
    "depthwise": lambda: _conv(filled(nn.Conv2d(3, 3, 3, padding=1, groups=3)), (3, 3, 3)),
    "dilation": lambda: _conv(filled(nn.Conv2d(1, 2, 2, dilation=2, padding=1)), (1, 4, 4)),
    "conv1d": lambda: _conv(filled(nn.Conv1d(2, 3, 3, padding=1, stride=2)), (2, 6)),
    "conv3d": lambda: _conv(filled(nn.Conv3d(1, 2, 2, padding=1)), (1, 2, 2, 3)),
    "transposed": lambda: _transposed(
        filled(nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1)), (2, 3, 2)
    ),
    "matmul": lambda: _constant(filled(Matmul())),
    "einsum": lambda: _constant(filled(Einsum())),
    "addmm": lambda: _constant(filled(Addmm())),
}


def bias_of(layer, outputs):
    """Bias of every output element."""
    if layer.bias is None:
        return np.zeros(outputs)
    return np.repeat(numbers(layer.bias), outputs // len(layer.bias))


@pytest.mark.parametrize("name", AFFINE)
def test_stopping_affine(name):
    """S6, eq:adf-kernel: |W|/γ with discount γ, real predecessors only."""
    layer, shape, matrix = AFFINE[name]()
    found = rows(bp.StoppingGame, layer, random(1, *shape))
    check(found, matrices.stopping_linear(matrix), matrices.stopping_linear_walk(matrix))


@pytest.mark.parametrize("epsilon, tau", [(0.0, 1.0), (0.5, 1.0), (1e-6, 0.5), (0.5, 2.0)])
@pytest.mark.parametrize("name", AFFINE)
def test_routing_affine(name, epsilon, tau):
    """S12, S13, eq:lrp-eps-recursion, eq:lrp-eps-policy, eq:gibbs-policy on signed inputs."""
    layer, shape, matrix = AFFINE[name]()
    x = random(1, *shape)
    arguments = matrix, numbers(x).ravel(), bias_of(layer, len(matrix))
    options = {"epsilon": epsilon, "tau": tau}
    found = rows(bp.RoutingGame, layer, x, **options)
    check(found, matrices.routing_linear(*arguments, **options), matrices.routing_linear_walk(*arguments, **options))


@pytest.mark.parametrize("empty_stream", ["cemetery", "reroute"])
@pytest.mark.parametrize("bias", ["ignore", "absorb"])
@pytest.mark.parametrize("alpha, beta", [(2.0, 1.0), (1.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_routing_options(name, alpha, beta, bias, empty_stream, quiet):
    """S13, S15, S16: stream discounts, absorbed bias, empty streams."""
    layer, shape, matrix = AFFINE[name]()
    with torch.no_grad():
        layer.weight[0].abs_()
        layer.weight[1].abs_().neg_()
        layer.weight[-1].zero_()
    matrix = numbers(layer.weight) if name == "linear" else _conv(layer, shape)[2]
    x = random(1, *shape).abs()
    arguments = matrix, numbers(x).ravel(), bias_of(layer, len(matrix))
    options = {"alpha": alpha, "beta": beta, "epsilon": 0.25, "empty_stream": empty_stream}
    expected = matrices.routing_linear(*arguments, bias_mode=bias, **options)
    walk = matrices.routing_linear_walk(*arguments, bias_mode=bias, **options)
    check(rows(bp.RoutingGame, layer, x, bias=bias, **options), expected, walk)


@pytest.mark.parametrize("negated", [False, True])
def test_non_negative_predecessors(negated):
    """S12: behind a ReLU the streams are the signs of the weights; the gate itself stops where z ≤ 0."""
    layer = filled(nn.Linear(6, 4))
    x = random(1, 6)
    matrix, a = numbers(layer.weight), np.maximum(numbers(x).ravel(), 0.0)
    if negated:
        x = -x
        a = np.maximum(numbers(x).ravel(), 0.0)
    found = rows(bp.RoutingGame, nn.Sequential(nn.ReLU(), layer), x, epsilon=0.5)
    arguments = matrix, a, bias_of(layer, 4)
    check(found, matrices.routing_linear(*arguments), matrices.routing_linear_walk(*arguments))


# mixes ---------------------------------------------------------------------------------------------
SHAPE = (2, 4, 4)
FLAT = int(np.prod(SHAPE))


class Reduce(nn.Module):
    """A reduction over the last axis."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _over_last(weight):
    return np.kron(np.eye(FLAT // SHAPE[-1]), np.full((1, SHAPE[-1]), weight))


MIXES = {
    "average": (nn.AvgPool2d(2), geometry.avg_matrix(SHAPE, 2, 2)[0]),
    "average, padded": (nn.AvgPool2d(3, 2, 1), geometry.avg_matrix(SHAPE, 3, 2, 1)[0]),
    "average, pad not counted": (
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        geometry.avg_matrix(SHAPE, 3, 2, 1, count_include_pad=False)[0],
    ),
    "adaptive": (nn.AdaptiveAvgPool2d(1), geometry.adaptive_avg_matrix(SHAPE, (1, 1))[0]),
    "adaptive, uneven": (nn.AdaptiveAvgPool2d((3, 2)), geometry.adaptive_avg_matrix(SHAPE, (3, 2))[0]),
    "adaptive, repeated": (nn.AdaptiveAvgPool2d(7), geometry.adaptive_avg_matrix(SHAPE, (7, 7))[0]),
    "mean": (Reduce(lambda x: x.mean(-1)), _over_last(1 / SHAPE[-1])),
    "sum": (Reduce(lambda x: x.sum(-1)), _over_last(1.0)),
    "nearest": (nn.Upsample(scale_factor=2, mode="nearest"), geometry.nearest_matrix(SHAPE, 2)[0]),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), geometry.bilinear_matrix(SHAPE, 2)[0]),
}


@pytest.mark.parametrize("name", MIXES)
def test_stopping_mix(name):
    """S7: a mix is an affine node with known weights."""
    layer, matrix = MIXES[name]
    found = rows(bp.StoppingGame, layer, random(1, *SHAPE))
    check(found, matrices.stopping_linear(matrix), matrices.stopping_linear_walk(matrix))


@pytest.mark.parametrize("tau", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("name", MIXES)
def test_routing_mix_of_non_negative(name, tau):
    """S18: one stream, no oracle, no outside option; nothing but zeros under the window: †."""
    layer, matrix = MIXES[name]
    x = random(1, *SHAPE)
    x[0, 0, :2, :2] = -1.0
    a = np.maximum(numbers(x).ravel(), 0.0)
    kernel = matrices.routing_mix(matrix, a, tau)
    check(rows(bp.RoutingGame, nn.Sequential(nn.ReLU(), layer), x, tau=tau, epsilon=0.5), alone(kernel), kernel)


@pytest.mark.parametrize("tau", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("name", MIXES)
def test_routing_mix_of_signed(name, tau):
    """S18: with a signed operand a mix is an affine node, sign oracle and outside option included."""
    layer, matrix = MIXES[name]
    x = random(1, *SHAPE)
    arguments = matrix, numbers(x).ravel(), np.zeros(len(matrix))
    check(
        rows(bp.RoutingGame, layer, x, epsilon=0.5, tau=tau),
        matrices.routing_linear(*arguments, tau=tau),
        matrices.routing_linear_walk(*arguments, tau=tau),
    )


# max, gates, diagonals, norms, sums ----------------------------------------------------------------
MAXES = {
    "max pool": (nn.MaxPool2d(2), geometry.max_groups(SHAPE, 2, 2)[0]),
    "max pool, padded": (nn.MaxPool2d(3, 2, 1), geometry.max_groups(SHAPE, 3, 2, 1)[0]),
    "amax": (Reduce(lambda x: x.amax(-1)), [list(range(i, i + 4)) for i in range(0, FLAT, 4)]),
}


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
@pytest.mark.parametrize("name", MAXES)
def test_max(name, game):
    """S7, def:maxpool-subgame, def:routing-maxpool: the winner of smallest index; ties are frequent here."""
    layer, groups = MAXES[name]
    x = torch.randint(-2, 3, (1, *SHAPE)).double()
    kernel = matrices.winner(groups, numbers(x).ravel())
    check(rows(game, layer, x), alone(kernel), kernel)


GATES = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(),
    "elu": nn.ELU(),
    "selu": nn.SELU(),
    "celu": nn.CELU(),
    "leaky_relu": nn.LeakyReLU(0.125),
    "prelu": nn.PReLU(init=0.125),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "hardswish": nn.Hardswish(),
    "mish": nn.Mish(),
    "softplus": nn.Softplus(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "hardsigmoid": nn.Hardsigmoid(),
}


@pytest.mark.parametrize("name", GATES)
def test_gates(name):
    """S8, eq:adf-kernel-stop on a grid through every branch of the gate, the kinks left out except 0 for ReLU."""
    z = np.array([-9.3, -3.1, -2.5, -0.7, -0.1, 0.2, 0.9, 1.4, 2.9, 3.3, 6.4, 11.0])
    if name == "relu":
        z = np.append(z, 0.0)
    x = torch.as_tensor(z)[None]
    found = rows(bp.StoppingGame, GATES[name], x)
    check(found, matrices.stopping_gate(name, z), matrices.stopping_gate_walk(name, z))
    kernel = matrices.routing_gate(name, z)
    check(rows(bp.RoutingGame, GATES[name], x), alone(kernel), kernel)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
def test_gates_far_left(name):
    """S37: far left of 0 the gate keeps correct digits."""
    z = np.array([-20.0, -12.0, -8.0])
    expected = matrices.gates.openness(name, z)
    if name == "gelu":
        expected = 0.5 * np.array([math.erfc(-v / 2**0.5) for v in z])
    if name == "mish":
        expected = np.tanh(np.log1p(np.exp(z)))
    kept, _, _ = rows(bp.RoutingGame, GATES[name], torch.as_tensor(z)[None])
    assert np.allclose(np.diag(kept), expected, rtol=1e-9, atol=0)


def _batch_norm():
    layer = filled(nn.BatchNorm2d(2)).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([-1.5, 0.5]))
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return layer, np.repeat(numbers(layer.weight / (layer.running_var + layer.eps).sqrt()), 16)


def _statistics(x, axes, eps):
    return 1.0 / np.sqrt(x.var(axis=axes, keepdims=True) + eps)


DIAGONALS = {
    "batch norm": lambda x: _batch_norm(),
    "scaled by −2": lambda x: (Reduce(lambda t: -2.0 * t), np.full(FLAT, -2.0)),
    "scaled by 0.3": lambda x: (Reduce(lambda t: 0.3 * t + 0.7), np.full(FLAT, 0.3)),
    "divided by −4": lambda x: (Reduce(lambda t: t / -4.0), np.full(FLAT, -0.25)),
    "negated": lambda x: (Reduce(torch.neg), np.full(FLAT, -1.0)),
    "offset": lambda x: (Reduce(lambda t: t + 1.5), np.ones(FLAT)),
    "taken from a constant": lambda x: (Reduce(lambda t: 1.0 - t), np.full(FLAT, -1.0)),
    "layer norm": lambda x: (lambda m: (m, (_statistics(x, (1, 2, 3), m.eps) * numbers(m.weight)).ravel()))(
        filled(nn.LayerNorm(SHAPE))
    ),
    "group norm": lambda x: (
        lambda m: (m, (_statistics(x, (2, 3), m.eps) * np.ones(x.shape) * numbers(m.weight)[:, None, None]).ravel())
    )(filled(nn.GroupNorm(2, 2))),
    "instance norm": lambda x: (lambda m: (m, (_statistics(x, (2, 3), m.eps) * np.ones(x.shape)).ravel()))(
        nn.InstanceNorm2d(2)
    ),
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_diagonals(name):
    """S7: discount |scale|, switched where negative, 0 → †; S17: the Routing Game passes, whatever the sign."""
    x = torch.randn(1, *SHAPE, dtype=torch.float64)
    layer, scale = DIAGONALS[name](numbers(x))
    found = rows(bp.StoppingGame, layer, x)
    check(found, matrices.stopping_diagonal(scale), matrices.stopping_diagonal_walk(scale))
    check(rows(bp.RoutingGame, layer, x), alone(np.eye(FLAT)), np.eye(FLAT))


class Residual(nn.Module):
    """branch(x) combined with x."""

    def __init__(self, branch, join):
        super().__init__()
        self.branch, self.join = branch, join

    def forward(self, x):
        return self.join(self.branch(x), x)


def _residual(sign):
    branch = filled(nn.Linear(4, 4))
    return Residual(branch, lambda a, b: a + b if sign > 0 else a - b), numbers(branch.weight), numbers(branch.bias)


@pytest.mark.parametrize("sign", [1, -1])
def test_stopping_sum(sign):
    """def:addition-subgame: 1/2 each with discount 2; a subtrahend switches the player."""
    layer, weight, _ = _residual(sign)
    expected = matrices.stopping_linear(weight), matrices.stopping_linear(sign * np.eye(4))
    kernel = tuple(a + b for a, b in zip(*expected, strict=True))
    walk = 0.5 * matrices.stopping_linear_walk(weight) + 0.5 * np.eye(4)
    check(rows(bp.StoppingGame, layer, random(1, 4)), kernel, walk)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("residual", ["uniform", "proportional"])
def test_routing_sum(residual, sign):
    """S17, def:routing-addition: mass goes to the operands by halves or by size; the player is kept throughout."""
    layer, weight, bias = _residual(sign)
    x = random(1, 4)
    a = numbers(x).ravel()
    branch = weight @ a + bias
    share = 0.5 * np.ones(4) if residual == "uniform" else np.abs(branch) / (np.abs(branch) + np.abs(a))
    kept, switched = matrices.routing_linear(weight, a, bias)
    walk = share[:, None] * matrices.routing_linear_walk(weight, a, bias) + np.diag(1 - share)
    expected = share[:, None] * kept + np.diag(1 - share), share[:, None] * switched
    check(rows(bp.RoutingGame, layer, x, residual=residual), expected, walk)


def test_routing_sum_of_zeros():
    """S17: proportional, both operands 0: 1/2 each."""
    layer = Residual(filled(nn.Linear(4, 4, bias=False)), lambda a, b: torch.relu(a) + torch.relu(b))
    zero = torch.zeros(1, 4, dtype=torch.float64)
    sums = Residual(nn.Sequential(nn.Linear(4, 4, bias=False)), lambda a, b: a + b).double()
    play = bp.RoutingGame(nn.Sequential(sums, nn.Flatten()), residual="proportional").play(zero, 2)
    expected = np.zeros((1, 4))
    expected[0, 2] = 0.5
    assert_near(play.marginal("input"), expected, what="the skip's half")
    assert_near(play.cemetery, [0.5], what="the empty branch")
    closed = bp.RoutingGame(nn.Sequential(layer, nn.Flatten()), residual="proportional").play(zero, 2)
    assert_near(closed.cemetery, [1.0], what="closed gates")


def test_broadcast_operand():
    """S7: a broadcast operand is an expand wire before the sum: its element collects from every place it went to."""
    head = nn.Linear(12, 1).double()
    model = nn.Sequential(Reduce(lambda x: x + x.amax(dim=-1, keepdim=True)), nn.Flatten(), head).eval()
    x = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert_near(bp.StoppingGame(model).attribute(x.detach(), 0), gradient, what="gradient")


@pytest.mark.parametrize("sign", [1, -1])
def test_stopping_sum_by_size(sign):
    """S7: with residual="proportional" the walk goes by |operand|, and discounts 1/p and 1/(1−p) keep the gradient."""
    layer, weight, bias = _residual(sign)
    x = random(1, 4)
    a = numbers(x).ravel()
    branch = np.abs(weight @ a + bias)
    share = branch / (branch + np.abs(a))
    expected = matrices.stopping_linear(weight), matrices.stopping_linear(sign * np.eye(4))
    kernel = tuple(a + b for a, b in zip(*expected, strict=True))
    walk = share[:, None] * matrices.stopping_linear_walk(weight) + np.diag(1 - share)
    check(rows(bp.StoppingGame, layer, x, residual="proportional"), kernel, walk)
