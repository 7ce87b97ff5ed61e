"""Single precision against double, and ranges that overflow by nature (S11, S37, S38)."""

import math

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near, l1_relative, unscaled
from networks import family, lively, photo, twin

ANCHORS = [0.0, 1e-6, 0.5]


def play_both(model, x, make):
    """The same game in float32 and in float64, on the same weights."""
    single = make(twin(model, torch.float32)).attribute(x.float(), 1)
    double = make(twin(twin(model, torch.float32), torch.float64)).attribute(x.float().double(), 1)
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    return single, double


def agree(model, x, make):
    single, double = play_both(model, x, make)
    assert double.abs().max() > 0
    error = l1_relative(single, double)
    assert error < 1e-4, f"L1 relative error {error:.2e}"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def small_residual():
    """A few residual blocks with batch norm, average and max pooling."""
    blocks = [Block(12) for _ in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", ANCHORS)
def test_small_network(epsilon, tau):
    """S37 on a small residual network."""
    model = lively(small_residual(), 24)
    agree(model, photo(1, 24), lambda m: bp.RoutingGame(m, epsilon=epsilon, tau=tau))


def test_small_network_stopping():
    """S37 for the Stopping Game."""
    agree(lively(small_residual(), 24), photo(1, 24), bp.StoppingGame)


def full_size(name):
    import torchvision.models as models

    if name == "vgg16":
        return models.vgg16(weights=None).double().eval()
    return lively(models.resnet50(weights=None), 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("vgg16", marks=pytest.mark.large), "resnet50"])
def test_full_size(name, monkeypatch):
    """S37 on VGG-16 and ResNet-50 at 224×224, for every ε and for τ at both ends; and the Stopping Game."""
    single, x = twin(full_size(name), torch.float32), photo(1, 224).float()
    low, high = bp.capture(single, x), bp.capture(twin(single, torch.float64), x.double())
    winners = check_stopping(low, high, x)

    def found(**options):
        return bp.RoutingGame(low, **options).attribute(x, 1)

    def exact(**options):
        return bp.RoutingGame(high, **options).attribute(x.double(), 1)

    expected = bp.sweep(bp.RoutingGame(high), x.double(), 1, epsilon=ANCHORS)  # on one forward pass
    for options, map_ in (*expected.items(), ((("tau", 5.0),), exact(tau=5.0))):
        assert l1_relative(found(**dict(options)), map_) < 1e-4, options
    # Some entries of a pooling window lie closer than float32 can tell (3 windows of VGG-16 here), so the precisions
    # pick different winners; at τ = 0.3 enough mass runs through them to show, whatever the kernels do.
    sharp = {"tau": 0.3, "epsilon": 0.0}
    expected = exact(**sharp)
    assert l1_relative(found(**sharp), expected) < 1e-3
    for node in low.nodes:  # the maxima are won by the entries that win in double precision
        if node.kind == "max":
            monkeypatch.setattr(node, "winners", lambda scope, index=winners[node.name]: index)
    assert l1_relative(found(**sharp), expected) < 1e-4


def check_stopping(low, high, x):
    """Gates that rounding opens or closes move any gradient: the game loses no more digits than autograd does.

    Returns the winners of all maxima in double precision.
    """
    play = bp.StoppingGame(high).play(x.double(), 1)
    exact, found = play.attribution(), bp.StoppingGame(low).attribute(x, 1)
    assert found.dtype == torch.float32 and exact.dtype == torch.float64
    lost = l1_relative(input_gradient(low.model, x), exact)
    assert l1_relative(found, exact) < 3 * lost + 1e-4
    return {node.name: node.winner(play.observed(node.inputs[0])) for node in high.nodes if node.kind == "max"}


def input_gradient(model, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x)[:, 1].sum(), x)[0]


def exploding(depth):
    """Layers that multiply absolute mass by 100 and the signed one by 0: W = [[50, −50], [−50, 50]]."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(depth)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.tensor([[50.0, -49.0], [-49.0, 50.0]]))
    return nn.Sequential(*layers)


def test_occupation_beyond_float32():
    """S11: Γ± of 10³⁹⁴ are kept with a logarithmic scale, and the difference has a pass of its own."""
    depth = 200
    play = bp.StoppingGame(exploding(depth)).play(torch.tensor([[1.0, 2.0]]), 0)
    occupation = play.occupation("input")
    for part in (occupation.plus, occupation.minus, occupation.difference):
        assert torch.isfinite(part).all()
    total = float((occupation.plus.double() + occupation.minus.double()).sum())
    found = math.log(total) + float(occupation.log_scale[0])
    assert math.isclose(found, depth * math.log(99.0), rel_tol=1e-5)
    # W has eigenvalues 1 on (1, 1) and 99 on (1, −1): the first row of W^200 is (1 + 99²⁰⁰, 1 − 99²⁰⁰)/2
    signed = math.log(float(occupation.difference[0, 0])) + float(occupation.difference_log_scale[0])
    assert math.isclose(signed, depth * math.log(99.0) - math.log(2.0), rel_tol=1e-5)
    assert occupation.difference[0, 1] < 0


def test_difference_is_not_a_subtraction():
    """S11: where Γ₊ and Γ₋ agree to sixteen digits the difference still has correct digits."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(30)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(
                torch.tensor([[3.0, -2.0], [2.0, -1.0]])
            )  # nilpotent part: W^n = 1 + n·[[2, −2], [2, −2]]
    model = nn.Sequential(*layers)
    occupation = bp.StoppingGame(model).play(torch.tensor([[1.0, 1.0]]), 0).occupation("input")
    signed = unscaled(occupation.difference, occupation.difference_log_scale)[0]
    assert signed[0] == pytest.approx(61.0, rel=1e-5) and signed[1] == pytest.approx(-60.0, rel=1e-5)
    plus = unscaled(occupation.plus, occupation.log_scale)[0]
    assert plus[0] > 1e15


def test_vanishing_walk():
    """S30's concern: a walk that hardly survives keeps its digits in log space: 150 gates of probability 1/2 …"""
    layers = []
    for _ in range(150):
        layers += [nn.Linear(1, 1, bias=False), nn.Hardswish()]
    model = nn.Sequential(*layers, nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    x = torch.tensor([[1e-6]])
    play = bp.StoppingGame(model).play(x, 0)
    logarithm = float(play.marginal("input", log=True)[0, 0])
    assert logarithm == pytest.approx(-150 * math.log(2.0), rel=1e-4)
    assert float(play.cemetery[0]) == pytest.approx(1.0)


@pytest.mark.slow
def test_resnet152_does_not_overflow():
    """Issue bar: Γ± of ResNet-152 are finite in float32, at the input and inside."""
    model = lively(family("resnet152"), 64, torch.float32)
    play = bp.StoppingGame(model).play(photo(1, 64, torch.float32))
    for path in ("input", "layer1", "layer4.2.bn3"):
        occupation = play.occupation(path)
        for part in (occupation.plus, occupation.minus, occupation.log_scale, occupation.difference):
            assert torch.isfinite(part).all(), path
        assert occupation.plus.max() > 0 and occupation.minus.max() > 0
        assert occupation.plus.min() >= 0 and occupation.minus.min() >= 0
    assert float(play.occupation("input").log_scale[0]) + math.log(float(play.occupation("input").plus.max())) > 60
    assert play.health().ok, play.health()


def test_health_reports():
    """S38: forward error, mass error, bias leak, finiteness; all small on a sound network."""
    health = bp.RoutingGame(lively(small_residual(), 24, torch.float32)).play(photo(2, 24, torch.float32)).health()
    assert health.ok and health.finite
    assert float(torch.as_tensor(health.forward_error).max()) < 1e-4
    assert float(torch.as_tensor(health.mass_error).max()) < 1e-4


def test_forward_error_of_a_vanishing_logit():
    """api: where the logit cancels, the forward error is relative to the last node's |W||a|; 0 where both are 0."""
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, -2.0]]))
    assert bp.StoppingGame(model).play(torch.tensor([[0.1, 0.2, 0.15]]), 0).health().ok
    health = bp.StoppingGame(model).play(torch.zeros(1, 3), 0).health()
    assert health.ok and float(torch.as_tensor(health.forward_error).max()) == 0


def test_health_names_a_map_that_fades():
    """S38: a map too small for float32 comes out as 0, and health says so; in float64 it is there."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(60)]
    for layer in layers:
        nn.init.constant_(layer.weight, 1e-3)
    x = torch.ones(1, 2)
    for dtype, gone in ((torch.float32, 1.0), (torch.float64, 0.0)):
        play = bp.StoppingGame(nn.Sequential(*layers).to(dtype)).play(x.to(dtype), 0)
        assert bool((play.attribution() == 0).all()) == bool(gone)
        assert play.health().faded == gone and ("play in float64" in str(play.health())) == bool(gone)


class Casting(nn.Module):
    """Linear attention that is computed in float32, with a constant that is, whatever the model's precision."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype, self.table = dtype, torch.linspace(-1, 1, 16).reshape(4, 4)
        self.qkv, self.last = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = (t.to(self.dtype) for t in self.qkv(x).chunk(3, -1))
        mixed = q.relu() @ (k.relu().mT @ v) @ self.table.to(self.dtype)
        return self.last(mixed.mean(1).type_as(x))


@pytest.mark.parametrize("game", [bp.StoppingGame, bp.RoutingGame])
def test_casts_inside_a_double_model(game):
    """Mass moves in the model's precision, whatever the model casts its values to on the way (S38)."""
    models = [Casting(dtype).double() for dtype in (torch.float32, torch.float64)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    cast, whole = (game(model).play(x, 1) for model in models)
    assert cast.health().ok and cast.attribution().dtype == torch.float64
    assert_near(cast.value, models[0](x)[:, 1], what="value")
    assert_near(cast.attribution(), whole.attribution(), 1e-6, what="map")
    assert bp.hellinger(cast, game(models[0]).play(x + 0.1, 1)).distance.isfinite().all()
    assert cast.sample(5).frequencies("input").shape == x.shape
