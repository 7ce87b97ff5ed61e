"""The Stopping Game is the gradient (S9, thm:deriv-occ): every torchvision CNN family against `torch.autograd`.

Where a gate's slope is not its c(z), or a product has a factor that the game holds fixed, the gradient is that of the
same network with gates and factors detached by hand (S8, S9, S17).
"""

import copy

import pytest
import torch
from torch import nn

import backplay as bp
from closeness import assert_near, unscaled
from held import EXACT, HeldGate
from networks import family, lively, photo, side
from series import series

FAST = [
    "vgg11",
    "resnet18",
    "squeezenet1_1",
    "googlenet",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "mnasnet0_5",
    "shufflenet_v2_x0_5",
]
SLOW = [  # of each family the shapes that no other member shows, and its deepest: what lies between proves the same
    "vgg16",
    "vgg19_bn",
    "resnet50",
    "resnet152",
    "wide_resnet50_2",
    "resnext50_32x4d",
    "densenet121",
    "squeezenet1_0",
    "inception_v3",
    "efficientnet_v2_s",
]
# plain, residual, squeezed and excited, shuffled
FAMILIES = series([*FAST, *SLOW], ("squeezenet1_1", "resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5"), SLOW)


class HeldSqueeze(nn.Module):
    """A squeeze-and-excitation block: the excitation is held fixed, or both factors carry (S7, S17)."""

    def __init__(self, block, both):
        super().__init__()
        self.block, self.both = block, both

    def forward(self, x):
        scale = self.block._scale(x)
        return x * (scale if self.both else scale.detach())


OPENNESS = {**EXACT, nn.Mish: lambda z: torch.tanh(nn.functional.softplus(z))}


def held(model, both_factors=False):
    """A copy of `model` with gates and excitations detached by hand."""
    from torchvision.ops.misc import SqueezeExcitation

    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in OPENNESS:
                setattr(parent, name, HeldGate(OPENNESS[type(child)]))
            elif isinstance(child, SqueezeExcitation):
                setattr(parent, name, HeldSqueeze(child, both_factors))
    return model


def gradient(model, x, target):
    """Target logits and their gradient."""
    x = x.clone().requires_grad_()
    logits = model(x).gather(1, target[:, None])[:, 0]
    (grad,) = torch.autograd.grad(logits.sum(), x)
    return logits.detach(), grad


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    """S9, thm:gradient on torchvision's networks, random weights, float64, 1e-10 of the largest entry; all healthy."""
    model = lively(family(name), side(name))
    x = photo(2, side(name))
    target = model(x).argmax(1)
    reference = held(model, both_factors=name.startswith("efficientnet"))
    value, expected = gradient(reference, x, target)
    network = bp.capture(model, x)
    play = bp.StoppingGame(network).play(x)
    assert expected.abs().max() > 1e-8, "a dead network proves nothing"
    assert_near(play.value, value, what="value of the argmax")
    assert_near(play.attribution(), expected, what="attribution")
    occupation = play.occupation("input")
    assert_near(unscaled(occupation.difference, occupation.difference_log_scale), expected, what="difference")
    assert play.health().ok, play.health()
    routed = bp.RoutingGame(network).play(x)
    assert routed.health().ok, routed.health()
    assert routed.attribution().abs().max() > 0
    assert_near(routed.marginal("input").flatten(1).sum(1) + routed.cemetery + routed.constant, [1.0, 1.0], what="mass")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["maxpool", "layer1", "layer2.0", "layer2.0.downsample", "layer3.1.conv2", "avgpool"])
def test_inner_nodes(path):
    """thm:deriv-occ at inner nodes: Γ₊ − Γ₋ is the derivative of the logit by that module's output."""
    model = lively(family("resnet18"), 32)
    if path.endswith("conv2"):
        path = "layer3.1.bn2"  # the convolution and its batch norm are one node (S4)
    x = photo(2, 32)
    seen = {}

    def keep(module, args, output):
        seen["output"] = output.clone()
        return seen["output"] * 1  # in-place ops downstream must not touch what is kept

    handle = model.get_submodule(path).register_forward_hook(keep)
    x_grad = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(x_grad)[:, 3].sum(), seen["output"])
    handle.remove()
    occupation = bp.StoppingGame(model).play(x, 3).occupation(path)
    assert_near(unscaled(occupation.difference, occupation.difference_log_scale), expected, what=path)


def test_targets():
    """`target`: None is the argmax, an int serves every sample, a sequence or tensor has one for each."""
    model = lively(family("squeezenet1_1"), 32)
    x = photo(3, 32)
    game = bp.StoppingGame(model)
    by_sample = torch.tensor([4, 0, 9])
    _, expected = gradient(model, x, by_sample)
    assert_near(game.attribute(x, by_sample), expected, what="tensor")
    assert_near(game.attribute(x, [4, 0, 9]), expected, what="sequence")
    _, expected = gradient(model, x, torch.full((3,), 7))
    assert_near(game.attribute(x, 7), expected, what="int")
    _, expected = gradient(model, x, model(x).argmax(1))
    assert_near(game.attribute(x), expected, what="argmax")


def test_multiply_by_input():
    """`multiply_by_input=True` is gradient times input."""
    model = lively(family("squeezenet1_1"), 32)
    x = photo(2, 32)
    _, expected = gradient(model, x, torch.tensor([1, 1]))
    assert_near(bp.StoppingGame(model, multiply_by_input=True).attribute(x, 1), expected * x, what="gradient × input")


SMOOTH = {
    "gelu": (nn.GELU(), True),
    "silu": (nn.SiLU(), True),
    "mish": (nn.Mish(), True),
    "softplus": (nn.Softplus(beta=2.0), False),
    "tanh": (nn.Tanh(), False),
    "sigmoid": (nn.Sigmoid(), False),
    "elu": (nn.ELU(), False),
    "selu": (nn.SELU(), False),
    "celu": (nn.CELU(alpha=0.5), False),
    "leaky": (nn.LeakyReLU(0.3), False),
    "prelu": (nn.PReLU(init=-0.4), False),
    "hardtanh": (nn.Hardtanh(-0.5, 0.75), False),
    "relu6": (nn.ReLU6(), False),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_gates(name):
    """S9: exact for derivative gates (decreasing ones switch the player), detached for z·h(z) gates."""
    gate, is_held = SMOOTH[name]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        copy.deepcopy(gate),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2),
        copy.deepcopy(gate),
        nn.Flatten(),
        nn.Linear(72, 16),
        copy.deepcopy(gate),
        nn.Linear(16, 5),
    ).double()
    x = photo(2, 16)
    target = torch.tensor([1, 4])
    _, expected = gradient(held(model) if is_held else model, x, target)
    assert_near(bp.StoppingGame(model).attribute(x, target), expected, what=name)


class Handwritten(nn.Module):
    """Functional ops, in-place ops, a reused module, nested containers, chunk and cat.

    Nothing but what people write (S3).
    """

    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3, padding=1)})
        self.shared = nn.Conv2d(8, 8, 1)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.nn.functional.relu(self.stem["conv"](x))
        x = self.act(self.shared(x))
        y = self.shared(x)
        y += x
        left, right = y.relu_().chunk(2, dim=1)
        x = torch.cat([right, left.clamp(min=0.0), torch.nn.functional.max_pool2d(y, 3, 1, 1)], dim=1)
        x = x.mean(dim=(2, 3)).view(x.size(0), -1)
        return self.head(x)


def test_handwritten_forward():
    """S3: in-place ops mean their plain twins, a reused module is several nodes."""
    model = Handwritten().double()
    x = photo(2, 12)
    target = torch.tensor([2, 0])
    _, expected = gradient(model, x, target)
    net = bp.capture(model, x)
    assert_near(bp.StoppingGame(net).attribute(x, target), expected, what="handwritten")
    names = [node.name for node in net.nodes]
    assert len(set(names)) == len(names), "node names are unique"
    assert "shared" in names and "shared#2" in names
