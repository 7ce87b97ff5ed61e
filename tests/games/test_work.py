"""What a map does, counted exactly on a small network of each kind, so that no product, pass or copy creeps back in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import backplay as bp
from backplay.network import products
from counted import Counting, Work


class Skips(nn.Module):
    """Two convolutions with batch norm, and a skip connection over both."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 20)

    def forward(self, x):
        y = torch.relu(self.norms[0](self.first(x)))
        y = torch.relu(self.norms[1](self.second(y)) + x)
        return self.head(y.mean((2, 3)))


class Attending(nn.Module):
    """One block of a transformer."""

    def __init__(self, width=64, heads=2):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 20)

    def forward(self, x):
        y = self.norms[0](x)
        q, k, v = (f(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return self.head(x.mean(1))


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 20)),
    )


def perceptron():
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 20))


@dataclass(frozen=True)
class Kind:
    """A network, the shape of its input, and the elements of its smallest hidden output: from there on, all is large.

    Inputs are so wide that in no layer one stream is empty beside the other, which would cost more products.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    large: int


KINDS = {
    "convolutions": Kind(convolutions, (2, 8, 32, 32), 2 * 8 * 16 * 16),
    "skips": Kind(Skips, (2, 8, 32, 32), 2 * 8 * 32 * 32),
    "attention": Kind(Attending, (2, 128, 64), 2 * 128 * 64),
    "perceptron": Kind(perceptron, (160, 64), 160 * 64),
}
GAMES: dict[str, Callable[[bp.Network], Any]] = {
    "Stopping map": bp.StoppingGame,
    "Routing anchor": bp.RoutingGame,
    "τ = 0.5": lambda network: bp.RoutingGame(network, tau=0.5),
}

# Products: a layer has one forward and one back in the Stopping Game, one more on each way for the streams of the
# Routing Game; at another temperature neither sum of a stream is known from the forward pass, which makes five.
# Passes and tensors made begin with what every call does at its two ends (looks at the input and copies it; scales the
# map, looks at it, adds it up) and with the forward pass; what follows is named for each kind.
# A gate makes one tensor, what it lets through; mass that leaves it is written there.
# The Routing Game ends with one for each gate whose value a layer reads: it was forgotten, and is made again.
# No weight is read beside the products: they were prepared, and a look at them takes some entries.
WORK = {
    # mean, two gates, max pooling, the convolution behind a ReLU, the one behind the signed input; the head is small
    ("convolutions", "Stopping map"): Work(
        products=2 * 3, passes=9 + 5 + 2 + 2 * 2 + 2, reads=0, made=4 + 7 + 1 + 2 + 1 + 2 * 2
    ),
    ("convolutions", "Routing anchor"): Work(
        products=4 * 3, passes=10 + 5 + 4 + 2 * 2 + 2 + 10 + 20 + 1, reads=0, made=5 + 7 + 2 + 2 + 1 + 7 + 12 + 1
    ),
    ("convolutions", "τ = 0.5"): Work(
        products=5 * 3, passes=10 + 5 + 13 + 2 * 2 + 2 + 15 + 28 + 1, reads=0, made=5 + 7 + 6 + 2 + 1 + 10 + 16 + 1
    ),
    # mean, two gates, both ends of the skip, the convolution behind a ReLU, the one behind the signed input
    ("skips", "Stopping map"): Work(
        products=2 * 3, passes=9 + 6 + 2 + 2 * 2 + 1, reads=0, made=4 + 7 + 1 + 2 + 1 + 2 * 2
    ),
    ("skips", "Routing anchor"): Work(
        products=4 * 3, passes=10 + 6 + 4 + 2 * 2 + 2 + 10 + 20 + 2, reads=0, made=5 + 7 + 2 + 2 + 2 + 7 + 12 + 2
    ),
    ("skips", "τ = 0.5"): Work(
        products=5 * 3, passes=10 + 6 + 13 + 2 * 2 + 2 + 15 + 28 + 2, reads=0, made=5 + 7 + 6 + 2 + 2 + 10 + 16 + 2
    ),
    # mean, the gate, both norms, wires, attention, linear layers (in the Routing Game that of the values is a part of
    # attention), skips. Queries and keys have products forward alone; forward attention has two.
    ("attention", "Stopping map"): Work(
        products=7 + 2 + 5 + 2, passes=9 + 6 + 2 + 6 + 2 * 7 + 2 + 5, reads=0, made=4 + 12 + 1 + 4 + 2 * 5 + 4 + 7 + 4
    ),
    ("attention", "Routing anchor"): Work(
        products=7 + 2 + 3 * 5 + 7,
        passes=10 + 6 + 10 + 6 + 0 + 1 + 41 + 3 * 20 + 2 * 2 + 1,
        reads=0,
        made=5 + 12 + 4 + 4 + 0 + 2 + 38 + 3 * 10 + 2 * 2 + 1,
    ),
    ("attention", "τ = 0.5"): Work(
        products=7 + 2 + 4 * 5 + 1 + 7,  # one more: the sums of the values' projection as they are, and as powers
        passes=10 + 6 + 20 + 6 + 0 + 1 + 77 + 3 * 28 + 2 * 2 + 1,
        reads=0,
        made=5 + 12 + 8 + 4 + 0 + 2 + 56 + 3 * 14 + 2 * 2 + 1,
    ),
    # two gates, looks at the size of small masses, the layers from the head to the input
    ("perceptron", "Stopping map"): Work(products=2 * 3, passes=9 + 2 + 2 * 2 + 2 * 2, reads=0, made=4 + 4 + 2 + 2 + 3),
    ("perceptron", "Routing anchor"): Work(
        products=4 * 3,
        passes=10 + 2 + 2 * 2 + 2 * 2 + 2 + 10 + 20 + 2,
        reads=0,
        made=5 + 4 + 2 + 2 + 2 + 5 + 10 + 2,
    ),
    ("perceptron", "τ = 0.5"): Work(
        products=5 * 3,
        passes=10 + 2 + 2 * 2 + 2 * 2 + 11 + 24 + 37 + 2,
        reads=0,
        made=5 + 4 + 2 + 2 + 6 + 15 + 21 + 2,
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def played(request):
    """A kind's name, its network captured in float64, and an input."""
    torch.manual_seed(0)
    kind = KINDS[request.param]
    model = kind.build().double().eval().requires_grad_(False)
    x = torch.randn(kind.shape, dtype=torch.float64)
    return request.param, bp.capture(model, x), x


def weights_of(network: bp.Network) -> list[Tensor]:
    """Matrices and kernels of the model, and all of their shapes that were prepared from them."""
    own = [p for p in network.model.parameters() if p.ndim > 1]
    weights = network.weights()
    kept = [*weights._prepared.values(), *(made for _, made in weights._latest.values())]
    tensors = [t for value in kept for t in (value if isinstance(value, tuple) else (value,)) if isinstance(t, Tensor)]
    shapes = {p.shape for p in own}
    return [*own, *(t for t in tensors if t.shape in shapes)]


def counted(name: str, network: bp.Network, call: Callable[[], object]) -> Counting:
    """The work of a call that has been made before, so that all is prepared."""
    call()
    with Counting(network.precision.itemsize * KINDS[name].large, weights_of(network)) as counting:
        call()
    return counting


def test_a_gradient(played):
    """What maps are compared with: two products a layer, and seven of attention."""
    name, network, x = played
    y = x.clone().requires_grad_()
    found = counted(name, network, lambda: torch.autograd.grad(network.model(y)[:, 0].sum(), y))
    assert found.work.products == (2 * 7 + 7 if name == "attention" else 2 * 3), found


@pytest.mark.parametrize("game", GAMES)
def test_a_map(played, game):
    """Exactly so much, and no more."""
    name, network, x = played
    chosen = GAMES[game](network)
    found = counted(name, network, lambda: chosen.attribute(x, 0))
    assert found.work == WORK[name, game], f"{name}, {game}: {found.work}\n{found}"


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("name", KINDS)
def test_a_map_in_single_precision(name, game):
    """The same work where oneDNN multiplies."""
    torch.manual_seed(0)
    model, x = KINDS[name].build().eval().requires_grad_(False), torch.randn(KINDS[name].shape)
    network = bp.capture(model, x)
    chosen = GAMES[game](network)
    found = counted(name, network, lambda: chosen.attribute(x, 0))
    assert found.work == WORK[name, game], f"{name}, {game}: {found.work}\n{found}"
    if name in ("attention", "perceptron") and products.serves(x):
        assert found.products["mkldnn::_linear_pointwise"], "the way back through linear layers"


@pytest.mark.parametrize("game, more", [("Stopping map", 0), ("Routing anchor", 2), ("τ = 0.5", 2)])
def test_a_layer_whose_streams_cancel(game, more):
    """A filter without negative contributions: both its sums are made anew, from weights taken apart by sign (S37).

    That reads the weight once for each sign, for the sums and again on the way back.
    """
    torch.manual_seed(0)
    model = convolutions().double().eval().requires_grad_(False)
    model[0].weight[0].abs_()
    x = torch.rand(KINDS["convolutions"].shape, dtype=torch.float64)
    network = bp.capture(model, x)
    chosen = GAMES[game](network)
    found = counted("convolutions", network, lambda: chosen.attribute(x, 0))
    assert found.work.products == WORK["convolutions", game].products + more, found
    assert found.work.reads == 2 * more, found


def test_what_is_counted():
    """The counter itself: a product, two passes of which one writes in place, reads of a whole weight, tensors made."""
    weight, small, x = torch.randn(6, 6), torch.randn(2), torch.randn(8, 6)
    with Counting(8 * 6 * 4, [weight]) as counting:
        y = x @ weight.t()  # a view of a weight is that weight
        y.view(-1).mul_(2)
        z = y.abs()
        weight.t().abs(), weight[0].abs()
        small.exp()
        torch.empty(48)
    assert counting.work == Work(products=1, passes=2, reads=1, made=3), counting
    assert z.shape == y.shape
