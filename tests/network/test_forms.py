"""S3a-S3d: one function has one map, however it is spelled."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import backplay as bp
from closeness import assert_near, unscaled

pytestmark = pytest.mark.capture

F64 = torch.float64


class Between(nn.Module):
    """`f(h, k)` of two linear layers on one input, behind it a third one."""

    def __init__(self, function):
        super().__init__()
        self.h, self.k, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5)
        self.function = function

    def forward(self, x):
        return self.out(self.function(self.h(x), self.k(x)))


def between(function):
    torch.manual_seed(3)
    return Between(function).double().eval()


def inputs():
    return torch.randn(4, 6, dtype=F64, generator=torch.Generator().manual_seed(1))


def gradient(model, x, target):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x)[:, target].sum(), x)[0]


def maps_and_walks(function):
    """Maps and walks of both games, the Routing Game at a second temperature too; all healthy."""
    x = inputs()
    network = bp.capture(between(function), x)
    games = bp.StoppingGame(network), bp.RoutingGame(network), bp.RoutingGame(network, tau=0.5, epsilon=0.1)
    plays = [game.play(x, 2) for game in games]
    for play in plays:
        assert play.health().ok and play.health().mass_error < 1e-12, play.health()
    return [play.attribution() for play in plays], [play.marginal("input") for play in plays]


def gpt2(h):
    return 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))


SPELLINGS = {
    "relu6": (lambda h, _: nn.ReLU6()(h), lambda h, _: F.relu6(h), lambda h, _: h.clamp(0, 6)),
    "relu": (
        lambda h, _: F.relu(h),
        lambda h, _: torch.maximum(h, torch.zeros(())),
        lambda h, _: torch.maximum(h, torch.zeros_like(h)),
        lambda h, _: torch.where(h > 0, h, 0.0),
        lambda h, _: h * (h > 0),
        lambda h, _: h.clamp(min=0),
        lambda h, _: h.clip(0),
        lambda h, _: h.masked_fill(h < 0, 0.0),
        lambda h, _: h * torch.heaviside(h, torch.zeros((), dtype=F64)),
    ),
    "silu": (
        lambda h, _: F.silu(h),
        lambda h, _: h * torch.sigmoid(h),
        lambda h, _: torch.sigmoid(h) * h,
        lambda h, _: h / (1 + torch.exp(-h)),
        lambda h, _: h * (1 / (1 + torch.exp(-h))),
    ),
    "hardswish": (
        lambda h, _: F.hardswish(h),
        lambda h, _: h * F.relu6(h + 3) / 6,
        lambda h, _: F.relu6(h + 3) / 6 * h,
        lambda h, _: h / 6 * F.relu6(h + 3),
        lambda h, _: h * F.hardsigmoid(h),
        lambda h, _: h * (h + 3).clamp(0, 6) / 6,
    ),
    "gelu": (lambda h, _: F.gelu(h), lambda h, _: h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))),
    "gelu tanh": (lambda h, _: F.gelu(h, approximate="tanh"), lambda h, _: gpt2(h)),
    "mish": (lambda h, _: F.mish(h), lambda h, _: h * torch.tanh(F.softplus(h))),
    "leaky relu": (lambda h, _: F.leaky_relu(h, 0.1), lambda h, _: torch.where(h > 0, h, 0.1 * h)),
    "twice silu": (
        lambda h, _: 2 * F.silu(h),
        lambda h, _: 2 * h * torch.sigmoid(h),
        lambda h, _: h * torch.sigmoid(h) * 2,
    ),
    "minus silu": (
        lambda h, _: -F.silu(h),
        lambda h, _: -(h * torch.sigmoid(h)),
        lambda h, _: h * torch.sigmoid(h) * -1.0,
    ),
    "softplus": (
        lambda h, _: F.softplus(h),
        lambda h, _: torch.log1p(torch.exp(h)),
        lambda h, _: torch.log(1 + h.exp()),
    ),
    "product": (
        lambda h, k: h * torch.sigmoid(k),
        lambda h, k: torch.einsum("bi,bi->bi", h, torch.sigmoid(k)),
        lambda h, k: torch.einsum("bi,bi->ib", h, torch.sigmoid(k)).T,
    ),
    "scaled": (
        lambda h, _: h * torch.linspace(-1, 1, 8),
        lambda h, _: torch.einsum("bi,i->bi", h, torch.linspace(-1, 1, 8)),
    ),
    "square": (
        lambda h, _: h**2,
        lambda h, _: torch.einsum("bi,bi->bi", h, h),
        lambda h, _: h * h,
        lambda h, _: torch.square(h),
    ),
    "square of relu": (lambda h, _: F.relu(h) ** 2, lambda h, _: (lambda r: r * r)(F.relu(h))),
    "softsign": (lambda h, _: F.softsign(h), lambda h, _: h / (1 + h.abs())),
    "sigmoid factor": (
        lambda h, k: h * torch.sigmoid(k),
        lambda h, k: h * (0.5 * torch.tanh(k / 2) + 0.5),
        lambda h, k: h * (1 / (1 + torch.exp(-k))),
    ),
    "hardsigmoid factor": (lambda h, k: h * F.hardsigmoid(k), lambda h, k: h * (F.relu6(k + 3) / 6)),
    "silu factor": (lambda h, k: h * F.silu(k), lambda h, k: h * (k * torch.sigmoid(k))),
    "layer norm": (
        lambda h, _: F.layer_norm(h, (8,), eps=1e-3),
        lambda h, _: (h - h.mean(1, keepdim=True)) / torch.sqrt(h.var(1, keepdim=True, correction=0) + 1e-3),
        lambda h, _: (lambda d: d * torch.rsqrt((d**2).mean(1, keepdim=True) + 1e-3))(h - h.mean(1, keepdim=True)),
        lambda h, _: (
            (h - h.mean(1, keepdim=True)) * (torch.ones(8) * torch.rsqrt(h.var(1, keepdim=True, correction=0) + 1e-3))
        ),
        lambda h, _: (lambda m, r: h * r - m * r)(
            h.mean(-1, keepdim=True), torch.rsqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-3)
        ),
    ),
    "rms norm": (
        lambda h, _: F.rms_norm(h, (8,), eps=1e-3),
        lambda h, _: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-3),
        lambda h, _: h / torch.sqrt((h * h).mean(-1, keepdim=True) + 1e-3),
    ),
    "l2 norm": (
        lambda h, _: h / h.norm(dim=-1, keepdim=True),
        lambda h, _: h / (h * h).sum(-1, keepdim=True).sqrt(),
        lambda h, _: h / torch.linalg.vector_norm(h, dim=-1, keepdim=True),
    ),
    "softmax factor": (
        lambda h, k: h * torch.softmax(k, -1),
        lambda h, k: h * (k.exp() / k.exp().sum(-1, keepdim=True)),
        lambda h, k: h * (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(k - k.amax(-1, keepdim=True))),
        lambda h, k: h * torch.log_softmax(k, -1).exp(),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name):
    """Every spelling of a function has the map and the walk of its first one."""
    plain, *others = SPELLINGS[name]
    maps, walks = maps_and_walks(plain)
    assert all(map_.abs().max() > 1e-6 for map_ in maps)
    for spelled in others:
        found, walked = maps_and_walks(spelled)
        for mine, its in zip(found + walked, maps + walks, strict=True):
            assert_near(mine, its, 1e-9)


EXACT = {
    "softplus with a threshold": lambda h, _: F.softplus(h, threshold=0.5),
    "two carrying factors": lambda h, k: h * k,
    "cube": lambda h, _: h * h * h,
    "signed square": lambda h, _: h * h.abs(),
    "z tanh z": lambda h, _: h * torch.tanh(h),
    "spelled-out tanh": lambda h, _: (h.exp() - (-h).exp()) / (h.exp() + (-h).exp()),
    "reciprocal": lambda h, _: 1 / (h * h + 1),
    "exponent": lambda h, _: 2.0**h,
    "duelling head": lambda h, k: h + k - k.mean(1, keepdim=True),
    "broadcast sum": lambda h, k: k + h.sum(1, keepdim=True),
    "mean taken off": lambda h, _: h - h.mean(1, keepdim=True),
    "deviation added": lambda h, _: h + h.std(1, keepdim=True),
    "variance added": lambda h, k: k + h.var(1, keepdim=True),
    "norm added": lambda h, k: k + h.norm(dim=1, keepdim=True),
    "largest magnitude added": lambda h, k: k + torch.linalg.vector_norm(h, math.inf, 1, keepdim=True),
    "other side": lambda h, k: torch.where(k > 0, h, 0.1 * h),
    "masked": lambda h, k: h.masked_fill(k < 0, 0.5),
    "clamped by a live bound": lambda h, k: torch.clamp(h, min=k),
    "log of a sum of exponentials": lambda h, k: k + 100 * torch.logsumexp(10 * h, 1, keepdim=True),
    "arc cosine": lambda h, _: torch.acos(torch.tanh(h)),
    "remainder": lambda h, _: torch.remainder(h, 0.7),
    "clamped": lambda h, _: h.clip(-0.3, 0.4),
    "step factor": lambda h, k: h * (k > 0).to(h.dtype),
    "rounded": lambda h, k: h + torch.round(k),
}


@pytest.mark.parametrize("name", EXACT)
def test_is_the_gradient(name):
    """S9 where nothing is detached: the difference of the Stopping Game is the gradient, and the walk is whole."""
    model, x = between(EXACT[name]), inputs()
    play = bp.StoppingGame(model).play(x, 2)
    assert_near(play.attribution(), gradient(model, x, 2))
    for each in (play, bp.RoutingGame(play.network).play(x, 2)):
        assert each.health().ok and each.health().mass_error < 1e-12, each.health()
        assert bp.hellinger(each, each.game.play(x.flip(0), 2)).distance.isfinite().all()


HELD = {
    "quick GELU": (lambda h, _: h * torch.sigmoid(1.702 * h), lambda h, _: h * torch.sigmoid(1.702 * h).detach()),
    "folded": (
        lambda h, _: h * (3 * torch.tanh(h) ** 2) / 3,
        lambda h, _: h * (torch.tanh(h) ** 2).detach(),
    ),
    "half": (lambda h, _: h * (0.5 * torch.sigmoid(h)), lambda h, _: h * (0.5 * torch.sigmoid(h)).detach()),
    "mean for two": (
        lambda h, k: (lambda d: d / d.norm(dim=1, keepdim=True) + k * d)(h - h.mean(1, keepdim=True)),
        lambda h, k: (
            (h - h.mean(1, keepdim=True).detach()) / (h - h.mean(1, keepdim=True)).norm(dim=1, keepdim=True).detach()
            + k * (h - h.mean(1, keepdim=True))
        ),
    ),
    "divisor": (lambda h, k: h / (k * k + 1), lambda h, k: h / (k * k + 1).detach()),
    "detached and added": (lambda h, k: h + k.detach(), lambda h, k: h + k.detach()),
    "detached factor": (lambda h, k: h * k.detach(), lambda h, k: h * k.detach()),
    "detached part": (
        lambda h, k: torch.cat([h[:, :5], k[:, 5:].detach()], 1),
        lambda h, k: torch.cat([h[:, :5], k[:, 5:].detach()], 1),
    ),
    "detached rival": (lambda h, k: torch.maximum(h, k.detach()), lambda h, k: torch.maximum(h, k.detach())),
}


@pytest.mark.parametrize("name", HELD)
def test_held(name):
    """S3a-S3d: the difference is the gradient of the network in which exactly this is held fixed."""
    function, twin = HELD[name]
    model, x = between(function), inputs()
    play = bp.StoppingGame(model).play(x, 2)
    assert_near(play.attribution(), gradient(between(twin), x, 2))
    for each in (play, bp.RoutingGame(play.network).play(x, 2)):
        assert each.health().ok and each.health().mass_error < 1e-12, each.health()


@pytest.mark.parametrize("name", ["detached part", "detached rival", "masked"])
def test_constant_ends(name):
    """S3d, S26: where a wire, a maximum or a mask leads to a constant, the walk ends there; sampling agrees."""
    model, x = between((HELD | {"masked": (EXACT["masked"],)})[name][0]), inputs()
    play = bp.StoppingGame(model).play(x, 2)
    assert (play.constant > 0.001).all() and play.constant.max() > 0.1
    walks = play.sample(4000)
    assert_near((walks.ends == -2).double().mean(1), play.constant, 0.1)
    assert (walks.check("input") > 1e-4).all()


def hidden(a, c, model, x, target):
    """αβ-LRP (α = 2, β = 1, ε = 0.5) of one hidden layer with values `a` and openings `c`, in dense matrices."""

    def split(value, weight, relevance):
        parts = value[:, None, :] * weight[None]  # (B, out, in)
        up, down = parts.clamp(min=0), (-parts).clamp(min=0)
        share = 2 * up / (up.sum(2, keepdim=True) + 0.5) - down / (down.sum(2, keepdim=True) + 0.5)
        return (share * relevance[:, :, None]).sum(1)

    with torch.no_grad():
        logits = model.out(a)
        root = torch.zeros_like(logits)
        root[:, target] = logits[:, target]
        return split(x, model.h.weight, c * split(a, model.out.weight, root))


OPENINGS = {
    "z tanh z": (lambda h, _: h * torch.tanh(h), lambda h: torch.ones_like(h)),
    "signed square": (lambda h, _: h * h.abs(), lambda h: torch.ones_like(h)),
    "quick GELU": (lambda h, _: h * torch.sigmoid(1.702 * h), lambda h: torch.sigmoid(1.702 * h)),
    "shut at 0": (lambda h, _: h * h.clamp(0, 2), lambda h: (h > 0).to(h.dtype)),
    "softsign": (lambda h, _: F.softsign(h), lambda h: torch.ones_like(h)),
    "leaky": (lambda h, _: torch.where(h > 0, h, 0.25 * h), lambda h: torch.where(h > 0, 1.0, 0.25)),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_openings(name):
    """S8: what a gate lets through in the Routing Game, against dense matrices."""
    function, opening = OPENINGS[name]
    model, x = between(function), inputs()
    with torch.no_grad():
        h = model.h(x)
        expected = hidden(function(h, None), opening(h), model, x, 1)
    assert_near(bp.RoutingGame(model).attribute(x, 1), expected)


class Swish(nn.Module):
    """A factor of `z` with constants that may be learned."""

    def __init__(self):
        super().__init__()
        self.h, self.out = nn.Linear(6, 8), nn.Linear(8, 5)
        self.steep, self.size = nn.Parameter(torch.ones(())), nn.Parameter(torch.full((), 0.5))

    def forward(self, x):
        h = self.h(x)
        return self.out(h * (self.size * torch.sigmoid(self.steep * h)))


@pytest.mark.parametrize("steep, size", [(2.0, 0.5), (1.0, 1.0), (1.0, 3.0), (1.0, -0.5), (0.0, 1.0)])
def test_decided_again(steep, size):
    """S3a: what a spelled-out gate is follows its constants, also after they have changed."""
    model, x = Swish().double().eval(), inputs()
    games = bp.StoppingGame(model), bp.RoutingGame(model)
    for game in games:
        game.attribute(x, 0)
    with torch.no_grad():
        model.steep.fill_(steep)
        model.size.fill_(size)
    again = bp.capture(model, x)
    for game in games:
        assert_near(game.attribute(x, 0), type(game)(again).attribute(x, 0))


class HandMade(nn.Module):
    """Attention whose softmax may be spelled out."""

    def __init__(self, softmax):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))
        self.softmax = softmax

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / math.sqrt(6)
        return self.out(self.softmax(scores) @ self.v(x)).mean(1)


def stable(s):
    e = torch.exp(s - s.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def logs_of_shifted(s):
    s = s - s.amax(-1, keepdim=True)
    return torch.exp(s - s.exp().sum(-1, keepdim=True).log())


def logs_shifted_back(s):
    largest = s.max(-1, keepdim=True).values
    return torch.exp(s - (largest + torch.exp(s - largest).sum(-1, keepdim=True).log()))


def by_the_inverse(s):
    e = torch.exp(s)
    return e * (1 / e.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    "spelled",
    [
        stable,
        lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
        by_the_inverse,
        lambda s: s.exp().sum(-1, keepdim=True).reciprocal() * s.exp(),
        lambda s: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)),
        lambda s: torch.exp(s - torch.log(torch.sum(torch.exp(s), -1, keepdim=True))),
        lambda s: torch.exp(s - s.exp().sum(-1).log().unsqueeze(-1)),
        logs_of_shifted,
        logs_shifted_back,
    ],
    ids=[
        *("stable", "plain", "inverse", "reciprocal", "log sum"),
        *("log of a sum", "log of a narrow sum", "log of a stable sum", "log of a stable sum, shifted back"),
    ],
)
def test_softmax_by_hand(spelled):
    """S3b: `exp(x − c) / Σ exp(x − c)` is the oracle's softmax, in every mode of attention."""
    x = torch.randn(2, 5, 6, dtype=F64)
    maps = []
    for softmax in (lambda s: torch.softmax(s, -1), spelled):
        torch.manual_seed(5)
        model = HandMade(softmax).double().eval()
        network = bp.capture(model, x)
        games = (
            bp.StoppingGame(network),
            bp.RoutingGame(network, tau=0.7),
            bp.RoutingGame(network, attention_risk=-1.0, input_variance=0.1),
        )
        maps.append([game.attribute(x, 1) for game in games])
    for plain, found in zip(*maps, strict=True):
        assert_near(found, plain, 1e-9)


class Scaled(nn.Module):
    """Non-negative values times a constant, pooled: one stream only while the constant is not negative."""

    def __init__(self):
        super().__init__()
        self.h, self.out = nn.Linear(6, 8), nn.Linear(4, 5)
        self.register_buffer("size", torch.rand(8))

    def forward(self, x):
        return self.out(F.avg_pool1d((F.relu(self.h(x)) * self.size)[:, None], 2)[:, 0])


def test_nonnegative_constants():
    """S5: a diagonal ≥ 0 keeps values non-negative; a constant that turns negative asks for a new capture."""
    model, x = Scaled().double().eval(), inputs()
    game = bp.RoutingGame(model)
    play = game.play(x, 0)
    assert next(n for n in play.network.nodes if n.kind == "mix").operand.nonnegative
    with torch.no_grad():
        model.size.neg_()
    with pytest.raises(bp.BackplayError, match="capture it again"):
        bp.RoutingGame(play.network).play(x, 0)
    again = game.play(x, 0)
    assert again.health().ok and not next(n for n in again.network.nodes if n.kind == "mix").operand.nonnegative


MODES = [
    (bp.RoutingGame, {"risk": -1.0, "input_variance": 0.3}),
    (bp.RoutingGame, {"entropy_bias": 0.3, "gate": "noisy"}),
    (bp.RoutingGame, {"tau": 0.5, "tau_forward": True}),
    (bp.RoutingGame, {"risk": -0.5, "input_variance": 0.3, "risk_forward": True}),
    (bp.StoppingGame, {"risk": -1.0, "input_variance": 0.3}),
    (bp.StoppingGame, {"softplus": 0.5}),
]


@pytest.mark.parametrize("name", ["relu", "silu", "gelu tanh", "hardswish", "minus silu", "layer norm", "rms norm"])
def test_modes(name):
    """Risk, noise, entropy and forward modes see the gate or norm, not its spelling."""
    x = inputs()
    plain, *others = [bp.capture(between(function), x) for function in SPELLINGS[name]]
    for game, modes in MODES:
        expected = game(plain, **modes).attribute(x, 2)
        for other in others:
            assert_near(game(other, **modes).attribute(x, 2), expected, 1e-8, what=f"{game.__name__} {modes}")


def pooled(h):
    """Features that are means themselves, as behind global pooling."""
    return torch.stack([h, 2 * h.flip(-1)], -1).mean(-1)


@pytest.mark.parametrize("gate", [torch.relu, torch.abs, torch.tanh, nn.Identity(), pooled])
@pytest.mark.parametrize("spelling", ["deviation", "root", "inverse root"])
def test_norms_behind_gates(gate, spelling):
    """S3b: the sample that a norm centres may come out of a gate or a pooling; the mean is the norm's all the same."""

    class Normed(nn.Module):
        def __init__(self, spelled):
            super().__init__()
            self.first, self.last, self.spelled = nn.Linear(3, 4), nn.Linear(4, 2), spelled

        def forward(self, x):
            h = gate(self.first(x))
            if not self.spelled:
                return self.last(nn.functional.layer_norm(h, (4,)))
            d = h - h.mean(-1, keepdim=True)
            if spelling == "deviation":
                return self.last(d / (h.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt())
            variance = d.pow(2).mean(-1, keepdim=True) + 1e-5
            return self.last(d / variance.sqrt() if spelling == "root" else d * torch.rsqrt(variance))

    spelled, plain = Normed(True).double(), Normed(False).double()
    plain.load_state_dict(spelled.state_dict())
    x = torch.randn(2, 3, dtype=torch.float64)
    for game in (bp.StoppingGame, bp.RoutingGame):
        assert_near(game(spelled).attribute(x, 0), game(plain).attribute(x, 0), what=game.__name__)


def test_in_place_on_a_copy():
    """S3: `y = x.clone(); y *= sigmoid(x)` is SiLU, in both games and for the walk."""

    class Copied(nn.Module):
        def __init__(self, copied):
            super().__init__()
            self.first, self.last, self.copied = nn.Linear(3, 4), nn.Linear(4, 2), copied

        def forward(self, x):
            h = self.first(x)
            if not self.copied:
                return self.last(nn.functional.silu(h))
            y = h.clone()
            y *= torch.sigmoid(h)
            return self.last(y)

    copied, plain = Copied(True).double(), Copied(False).double()
    plain.load_state_dict(copied.state_dict())
    x = torch.randn(2, 3, dtype=torch.float64)
    for game in (bp.StoppingGame, bp.RoutingGame):
        found, expected = game(copied).play(x, 0), game(plain).play(x, 0)
        assert_near(found.attribution(), expected.attribution(), what=game.__name__)
        assert_near(found.marginal("input"), expected.marginal("input"), what=game.__name__)


@pytest.mark.parametrize("spelled", SPELLINGS["relu"])
def test_pooled_relu(spelled):
    """S5, S18: a ReLU in any spelling is non-negative, so that its sum is one stream, at any temperature too."""
    x, maps = inputs(), []
    for function in (SPELLINGS["relu"][0], spelled):
        model = between(lambda h, k, f=function: f(h, k).sum(1, keepdim=True).expand(-1, 8))
        maps.append(bp.RoutingGame(model, tau=0.5).attribute(x, 2))
    assert_near(maps[1], maps[0])


class Capped(nn.Module):
    """A factor that is a probability as long as its cap is at most 1."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5)
        self.cap = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.out(self.a(x) * torch.minimum(self.b(x).relu(), self.cap))


def test_factors_decided_again():
    """S3a, S17: which factor carries follows constants that have changed."""
    model, x = Capped().double().eval(), inputs()
    games = bp.StoppingGame(model), bp.RoutingGame(model)
    before = [game.attribute(x, 0) for game in games]
    with torch.no_grad():
        model.cap.fill_(2.0)
    for game, old in zip(games, before, strict=True):
        found = game.attribute(x, 0)
        assert_near(found, type(game)(model).attribute(x, 0))
        assert (found - old).abs().max() > 1e-3


class Given(nn.Module):
    """Gates whose constants come with each call, one for each sample."""

    def __init__(self, gate):
        super().__init__()
        self.h, self.out, self.gate = nn.Linear(6, 8), nn.Linear(8, 5), gate

    def forward(self, x, slope):
        return self.out(self.gate(self.h(x), slope))


@pytest.mark.parametrize(
    "gate",
    [
        lambda h, s: torch.where(h > 0, h, s * h),
        lambda h, s: h * torch.sigmoid(s * h),
        lambda h, s: h * (s * torch.sigmoid(h)),
    ],
    ids=["leaky", "swish", "scaled"],
)
@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_constants_of_a_call(gate, game):
    """S1, S3a: what a gate is rests on the constants of this play, and a sample's on its own alone."""
    model, x = Given(gate).double().eval(), inputs()
    played = game(model)
    first, second = torch.full((4, 1), 0.1, dtype=F64), torch.tensor([[0.1], [1.0], [0.9], [0.5]], dtype=F64)
    played.attribute(x, 0, additional_forward_args=(first,))
    found = played.attribute(x, 0, additional_forward_args=(second,))
    for k in range(4):
        one = game(model).attribute(x[k : k + 1], 0, additional_forward_args=(second[k : k + 1],))
        assert_near(found[k : k + 1], one)


@pytest.mark.parametrize(
    "function",
    [
        lambda h, _: (h + h.mean(1, keepdim=True)) / h.std(1, keepdim=True),
        lambda h, _: torch.cat(
            [(h[:, :4] - h[:, 4:].mean(1, keepdim=True)) / h[:, :4].std(1, keepdim=True), h[:, 4:]], 1
        ),
    ],
    ids=["added", "of others"],
)
def test_means_outside_a_norm(function):
    """S3b: only the sample's own mean, taken off whole, is part of its norm."""
    model, x = between(function), inputs()

    real = torch.Tensor.std
    torch.Tensor.std = lambda self, *args, **keywords: real(self, *args, **keywords).detach()
    try:
        expected = gradient(model, x, 2)
    finally:
        torch.Tensor.std = real
    assert_near(bp.StoppingGame(model).attribute(x, 2), expected)


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda h: h.norm(dim=1, keepdim=True), lambda h: h.square().sum(1, keepdim=True).sqrt()),
        (lambda h: h.std(1, keepdim=True), lambda h: h.var(1, keepdim=True).sqrt()),
        (
            lambda h: F.pad(F.relu(h), (0, 2), value=0.5),
            lambda h: torch.cat([F.relu(h), torch.full((len(h), 2), 0.5)], 1),
        ),
        (lambda h: F.pad(F.relu(h), (0, 2)), lambda h: torch.cat([F.relu(h), torch.zeros(len(h), 2)], 1)),
    ],
    ids=["norm", "deviation", "padding", "zeros"],
)
def test_nonnegative_in_every_spelling(one, other):
    """S5: whether a mean has one stream or two does not rest on the spelling of what it averages."""
    x = inputs()
    maps = []
    for function in (one, other):
        model = between(lambda h, k, f=function: f(h).mean(1, keepdim=True).expand(-1, 8) + k)
        maps.append(bp.RoutingGame(model).attribute(x, 2))
    assert_near(maps[1], maps[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda h, k: h * torch.where(k > 0, 1.0, 0.2),
        lambda h, _: h * torch.where(h > 0, 1.0, 0.2),
        lambda h, _: torch.where(h > 0, h, torch.linspace(0.1, 0.9, 8) * h),
    ],
    ids=["other", "own", "by channel"],
)
def test_steps(function):
    """S3a, S8: a step between constants is told, and a leaky gate may have a slope for each channel."""
    model, x = between(function), inputs()
    assert_near(bp.StoppingGame(model).attribute(x, 2), gradient(model, x, 2))
    assert bp.RoutingGame(model).play(x, 2).health().ok


def test_slopes_by_channel():
    """S3a: `where(h > 0, h, s h)` with a slope for each channel is PReLU."""
    slopes = torch.linspace(0.1, 0.9, 8, dtype=F64)
    spelled = between(lambda h, _: torch.where(h > 0, h, slopes * h))
    assert_near(
        bp.RoutingGame(spelled).attribute(inputs(), 2),
        bp.RoutingGame(between(lambda h, _: F.prelu(h, slopes))).attribute(inputs(), 2),
    )


@pytest.mark.parametrize(
    "weights",
    [
        lambda e: e / e.sum(1).unsqueeze(2),
        lambda e: e / e.sum(2, keepdim=True).flip(1),
        lambda e: e * (1 / e.sum(2, keepdim=True).flip(1)),
        lambda e: torch.exp(e - torch.logsumexp(e.flip(1), 2, keepdim=True)),
        lambda e: torch.exp(e - e.flip(1).exp().sum(2, keepdim=True).log()),
        lambda e: torch.exp(e - e.exp().sum(1).log().unsqueeze(2)),
        lambda e: torch.exp(e - (e.amin(2, keepdim=True) + (e - e.amax(2, keepdim=True)).exp().sum(2, True).log())),
    ],
    ids=[
        *("another axis", "another order", "another inverse", "another log sum"),
        *("log of another sum", "log along another axis", "another shift back"),
    ],
)
def test_no_softmax(weights):
    """S3b: a quotient that is no softmax is not taken for one: what is replayed is what the model computes."""

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.out = nn.Linear(6, 9), nn.Linear(9, 5)

        def forward(self, x):
            return self.out(weights(torch.exp(self.h(x).view(-1, 3, 3))).flatten(1))

    play = bp.StoppingGame(Other().double().eval()).play(inputs(), 1)
    assert play.health().ok


def test_never_a_map_of_nan():
    """S38: where numbers leave the range of a dtype there is an error, never a map."""

    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.out = nn.Linear(6, 8), nn.Linear(8, 5)

        def forward(self, x):
            return self.out(1 / (self.h(x) - self.h(x)[:, :1]))

    model, x = Steep().eval(), inputs().float()
    for ask in (bp.StoppingGame(model).attribute, lambda x, t: bp.explain(model, x, t, method="sg")):
        with pytest.raises(bp.BackplayError, match="NaN or infinite"):
            ask(x, 1)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_tails_are_values(dtype):
    """S16, S37: far left of 0 GELU is small, not 0: its stream is not empty, though torch's own formula says so."""
    model = nn.Sequential(nn.Linear(1, 2), nn.GELU(), nn.Linear(2, 1, bias=False)).to(dtype).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-9.0], [1.0]]))
        model[0].bias.zero_()
        model[2].weight.fill_(1.0)
    x = torch.ones(1, 1, dtype=dtype)
    assert float(F.gelu(-9 * x)) == 0
    play = bp.RoutingGame(model, epsilon=0.0, empty_stream="reroute").play(x, 0)
    occupation = play.occupation("1")
    assert_near(unscaled(occupation.difference, occupation.difference_log_scale), [[-1.0, 2.0]], 1e-6)
